"""One model for each thing that a variant can be: what the tests of layers, models and caches go through.

Sizes: width is not heads × head dim, except where the layer's input takes a projection's place. Spans of a row are
multiples of 8, so that decode steps in float32 reach the native kernel.
"""

from __future__ import annotations

from typing import Any

from small_models import randomise
from twofold.models.configuration import TwofoldConfig
from twofold.models.decoder import TwofoldForCausalLM
from twofold.variants.notation import parse

HEADS, HEAD_DIM, WIDTH, VOCAB, POSITIONS = 6, 8, 13, 29, 61


def _entries() -> dict[str, dict[str, Any]]:
    partial = {"rotary": "partial", "rotary_dims": 4}
    latent = {"rotary_dims": 8, "latent_dims": 24}
    apart = {"rotary_dims": 8}
    learned = {"rotary": "none"}
    paper = {"block": "paper"}
    window = {"window": 3, "layer_pattern": "SL"}

    def mixed(variants: list[str] | None, **others: Any) -> dict[str, Any]:
        return {"layer_variants": variants, "latent_norm": False, **others}

    named = [
        ("QKV", {}),
        ("QKV", partial),
        ("GQA-2", partial | paper),
        ("MQA", partial),
        ("Q=K", partial),
        ("K=V", {}),
        ("K=V", partial),
        ("K=V GQA-2", partial | paper),
        ("Q=K=V", partial),
        ("K=V on_read", {}),
        ("K=V GQA-3 on_read", partial),
        ("K=V on_read", learned),
        ("K=V kept", partial | paper),
        ("K=V GQA-2 kept", partial),
        ("K=V MQA kept", partial),
        ("K=V decoupled", apart),
        ("K=V GQA-2 decoupled", apart | paper),
        ("K=V MQA decoupled", apart),
        ("Q=K=V on_read", {}),
        ("Q=K=V kept", partial),
        ("MLA", latent),
        ("MLA", latent | paper),
        ("GQA-2 MLA", latent),
        ("MQA MLA", latent | {"latent_norm": False}),
        ("MLA on_read", {"latent_dims": 24}),
        ("GQA-2 MLA on_read", partial | {"latent_dims": 16, "latent_norm": False}),
        ("GQA-3 MLA on_read", learned | {"latent_dims": 24}),
        ("MLA", {"latent_dims": 16, "rotary_pairs": [3, 0, 2, 1]}),
        ("K=V decoupled", apart | {"latent_norm": False}),
        ("K=V GQA-3 decoupled", {"rotary_pairs": [0, 1, 3, 2], "latent_norm": False}),
        ("Q=K diagonal", partial),
        ("K=V diagonal", {}),
        ("K=V GQA-2 diagonal", partial),
        ("Q=K=V diagonal", learned),
        ("Q=K=V diagonal", partial),
        ("Q=K=V on_read diagonal", partial | paper),
        ("Q=K=V kept diagonal", partial),
        ("no-WQ", {}),
        ("GQA-2 no-WQ", partial | paper),
        ("K=V no-WQ", partial),
        ("no-WK", partial),
        ("no-WV", {}),
        ("no-WQ no-WK no-WV", partial),
        ("simplified", partial),
        ("simplified on_read", {}),
        ("QKV rank-3", {}),
        ("K=V GQA-2 rank-3", partial | paper),
        ("K=V rank-3 decoupled", apart),
        ("QKV nonlinear-WQ", {}),
        ("K=V nonlinear-WQ", partial | paper),
        ("QKV CLA-2", {}),
        ("K=V CLA-2", partial),
        ("GQA-2 CLA-2", paper | learned),
        ("K=V GQA-2 kept CLA-2", partial),
        ("K=V on_read CLA-2", partial),
        ("K=V decoupled CLA-2", apart),
        ("QKV tied-2", partial),
        ("K=V tied-2", {}),
        ("MLA tied-2", latent),
        ("K=V kept CLA-2 tied-2", partial),
        ("QKV CLA-2 tied-2", {}),
        ("QKV CLA-2 tied-4", partial | {"num_hidden_layers": 4}),
        ("K=V CLA-4 tied-2", {"num_hidden_layers": 4}),
        ("QKV", window),
        ("K=V GQA-2", partial | window),
        ("K=V on_read", partial | window),
        ("K=V kept", partial | {"window": 5}),
        ("K=V decoupled", apart | window),
        ("MLA", latent | window),
        ("K=V CLA-2", window | {"layer_pattern": "SSLL", "num_hidden_layers": 4}),
        ("QKV", learned | window | paper),
        ("QKV", {"softcap": 1.7}),
        ("K=V kept", partial | {"softcap": 1.7}),
        ("MLA", latent | {"softcap": 1.7}),
        ("QKV", {"sinks": True}),
        ("K=V on_read", partial | {"sinks": True, "softcap": 2.3} | window),
        ("MLA", latent | {"sinks": True}),
        ("K=V decoupled CLA-2", apart | {"sinks": True}),
        ("QKV", {"qk_norm": True}),
        ("Q=K", partial | {"qk_norm": True}),
        ("K=V GQA-2", partial | {"qk_norm": True}),
        ("K=V kept CLA-2", partial | {"qk_norm": True}),
        ("Q=K=V diagonal", partial | {"qk_norm": True}),
        ("GQA-2 MLA on_read", {"latent_dims": 16, "latent_norm": False, "qk_norm": True}),
        ("QKV", {"scale_exponent": 0.0}),
        ("K=V", {"scale_exponent": 1.0}),
        ("K=V decoupled", apart | {"scale_exponent": 0.75}),
        ("MLA", latent | {"scale_exponent": 1.0}),
        ("QKV", {"qkv_bias": True}),
        ("K=V GQA-2", partial | {"qkv_bias": True}),
        ("MLA", latent | {"qkv_bias": True}),
        ("QKV", {"scaled_embeddings": True, "tie_word_embeddings": False}),
        ("QKV", paper | {"activation": "gelu_tanh"}),
        ("GQA-2", paper | {"activation": "relu", "position_offset": 2}),
        ("K=V", learned | {"position_offset": 3}),
        ("GQA-2", mixed(["GQA-2", "GQA-2 MLA on_read"], layer_latents=[0, 16])),
        ("GQA-3 MLA on_read", mixed(None, layer_latents=[16, 24]) | window),
        ("GQA-2", mixed(["GQA-2", "GQA-2 MLA"], latent_dims=16, rotary_pairs=[3, 0, 2, 1])),
        ("K=V GQA-2 decoupled", mixed(["K=V GQA-2 decoupled", "MQA"], rotary_dims=8) | {"sinks": True}),
        ("K=V on_read", {"layer_variants": ["K=V on_read", "QKV"]}),
    ]
    entries = {_name(variant, fields): {"variant": variant, **fields} for variant, fields in named}
    assert len(entries) == len(named)
    return entries


def _name(variant: str, fields: dict[str, Any]) -> str:
    return ", ".join([variant, *(str(v) if isinstance(v, str) else f"{k} {v}" for k, v in fields.items())])


EVERY = _entries()
"""Name → fields of `TwofoldConfig`."""
KINDS = tuple({EVERY[name]["variant"]: name for name in reversed(EVERY)}.values())
"""Of every notation one entry, the first."""
WINDOWED = tuple(name for name in EVERY if "window" in EVERY[name])


def every_config(name: str, **others: Any) -> TwofoldConfig:
    fields = {**EVERY[name], **others}
    variant = parse(fields["variant"])
    head_dim = fields.pop("head_dim", HEAD_DIM)
    as_wide = variant.unprojected or variant.nonlinear_query
    sizes = {
        "num_hidden_layers": 2,
        "hidden_size": HEADS * head_dim if as_wide else WIDTH,
        "num_attention_heads": HEADS,
        "head_dim": head_dim,
        "intermediate_size": 17,
        "vocab_size": VOCAB,
        "max_position_embeddings": POSITIONS,
        "attn_implementation": "sdpa",
    }
    if "window" in fields:
        fields["sliding_window"] = fields.pop("window")
    return TwofoldConfig(**{**sizes, "rotary": "", **fields})


def every_model(name: str, *, deviation: float = 0.5, **others: Any) -> TwofoldForCausalLM:
    """In float64 and eval mode, with random values in every parameter, smaller where the width is larger."""
    model = TwofoldForCausalLM(every_config(name, **others)).double().eval()
    randomise(model, deviation * (WIDTH / model.config.hidden_size) ** 0.5)
    return model
