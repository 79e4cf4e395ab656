"""Families of checkpoints as data: their names of tensors, what of them Twofold's decoder has, and what it has not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from twofold.attention.projections import NORM_EPSILON
from twofold.conversion import fields
from twofold.conversion.names import Line, NameMap, renamed
from twofold.models.architecture import Architecture

BOTH = ("weight", "bias")
_BLOCK, _OUR_BLOCK = "model.layers.{}.", "model.layers.{}."
_SEAM = "attention.projections."


@dataclass(frozen=True)
class Family:
    """One model type of transformers.

    `must` names fields of its configuration that allow one value, with what a decoder would need for others.
    `has` are fields of `Architecture` that it fixes; `windows` says how sliding windows may lie over its layers, and
    `heads` what is wrong with a decoder's heads, in words or "".
    `read` and `write` translate configurations, where `must` and `has` hold.
    """

    name: str
    names: NameMap
    must: Mapping[str, tuple[tuple[Any, ...], str]]
    has: Mapping[str, Any]
    windows: fields.Windows
    heads: Callable[[Architecture], str]
    read: Callable[[Any], dict[str, Any]]
    write: Callable[[Architecture], dict[str, Any]]


def _rotary_names(*, bias: bool = False, qk_norm: bool = False) -> NameMap:
    """Llama's names, with what its relatives have besides."""
    block = renamed(
        ("input_layernorm", "attention_norm"),
        ("self_attn.o_proj", f"{_SEAM}o_proj"),
        ("post_attention_layernorm", "mlp_norm"),
        *((f"mlp.{name}", f"mlp.{name}") for name in ("gate_proj", "up_proj", "down_proj")),
        theirs=_BLOCK,
        ours=_OUR_BLOCK,
    )
    projections = [(f"self_attn.{name}", f"{_SEAM}{name}") for name in ("q_proj", "k_proj", "v_proj")]
    block += renamed(*projections, theirs=_BLOCK, ours=_OUR_BLOCK, kinds=BOTH if bias else BOTH[:1])
    if qk_norm:
        norms = [(f"self_attn.{name}", f"{_SEAM}{name}") for name in ("q_norm", "k_norm")]
        block += renamed(*norms, theirs=_BLOCK, ours=_OUR_BLOCK)
    whole = renamed(("model.norm", "model.norm"))
    (embedding,) = renamed(("model.embed_tokens", "model.embed_tokens"))
    return NameMap(tuple(whole), tuple(block), embedding, Line("lm_head.weight", ("lm_head.weight",)))


def _gpt2_names() -> NameMap:
    """GPT-2's names; its matrices multiply from the right, and `c_attn` holds those of query, key and value."""
    norms = renamed(
        ("ln_1", "attention_norm"), ("ln_2", "mlp_norm"), theirs="transformer.h.{}.", ours=_OUR_BLOCK, kinds=BOTH
    )
    stacked = tuple(f"{_SEAM}{name}" for name in ("q_proj", "k_proj", "v_proj"))
    maps = {
        "attn.c_attn": stacked,
        "attn.c_proj": (f"{_SEAM}o_proj",),
        "mlp.c_fc": ("mlp.up_proj",),
        "mlp.c_proj": ("mlp.down_proj",),
    }
    turned = [
        Line(
            f"transformer.h.{{}}.{theirs}.{kind}",
            tuple(f"{_OUR_BLOCK}{name}.{kind}" for name in ours),
            kind == "weight",
        )
        for theirs, ours in maps.items()
        for kind in BOTH
    ]
    whole = renamed(("wpe", "embed_positions"), theirs="transformer.", ours="model.")
    whole += renamed(("ln_f", "norm"), theirs="transformer.", ours="model.", kinds=BOTH)
    (embedding,) = renamed(("wte", "embed_tokens"), theirs="transformer.", ours="model.")
    return NameMap(tuple(whole), tuple(norms + turned), embedding, Line("lm_head.weight", ("lm_head.weight",)))


def _opt_names() -> NameMap:
    """OPT's names."""
    modules = {
        "self_attn_layer_norm": "attention_norm",
        **{f"self_attn.{name}": f"{_SEAM}{name}" for name in ("q_proj", "k_proj", "v_proj")},
        "self_attn.out_proj": f"{_SEAM}o_proj",
        "final_layer_norm": "mlp_norm",
        "fc1": "mlp.up_proj",
        "fc2": "mlp.down_proj",
    }
    block = renamed(*modules.items(), theirs="model.decoder.layers.{}.", ours=_OUR_BLOCK, kinds=BOTH)
    whole = renamed(("embed_positions", "embed_positions"), theirs="model.decoder.", ours="model.")
    whole += renamed(("final_layer_norm", "norm"), theirs="model.decoder.", ours="model.", kinds=BOTH)
    (embedding,) = renamed(("embed_tokens", "embed_tokens"), theirs="model.decoder.", ours="model.")
    return NameMap(tuple(whole), tuple(block), embedding, Line("lm_head.weight", ("lm_head.weight",)))


_SWIGLU = {"hidden_act": (("silu", "swish"), "SwiGLU is the one gated MLP of the decoder")}
_ROTARY = {"block": "modern", "rotary": "full", "qk_norm": False, "qkv_bias": False}
_PAPER = {"block": "paper", "rotary": "none", "qk_norm": False, "qkv_bias": False}
_ACTIVATION = {
    "activation_function": (
        tuple(fields.ACTIVATIONS),
        "an MLP with two matrices has GELU, exact or by a tanh, or ReLU between them",
    )
}
_NO_BIAS = {"attention_bias": ((False, None), "RMSNorm blocks have no bias on the attention's output")}

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family(
            "llama",
            _rotary_names(),
            _SWIGLU | _NO_BIAS | {"mlp_bias": ((False, None), "SwiGLU has no biases")},
            _ROTARY,
            fields.Windows.NONE,
            fields.whole_heads,
            fields.read_rotary,
            fields.write_rotary,
        ),
        Family(
            "mistral",
            _rotary_names(),
            _SWIGLU,
            _ROTARY,
            fields.Windows.ALL,
            fields.any_heads,
            fields.read_rotary,
            fields.write_rotary,
        ),
        Family(
            "qwen2",
            _rotary_names(bias=True),
            _SWIGLU,
            _ROTARY | {"qkv_bias": True},
            fields.Windows.EACH,
            fields.any_heads,
            fields.read_rotary,
            fields.write_rotary,
        ),
        Family(
            "qwen3",
            _rotary_names(qk_norm=True),
            _SWIGLU
            | _NO_BIAS
            | {"rms_norm_eps": ((NORM_EPSILON,), f"norms of queries and keys have an epsilon of {NORM_EPSILON:g}")},
            _ROTARY | {"qk_norm": True, "norm_epsilon": NORM_EPSILON},
            fields.Windows.EACH,
            fields.any_heads,
            fields.read_rotary,
            fields.write_rotary,
        ),
        Family(
            "gpt2",
            _gpt2_names(),
            _ACTIVATION
            | {
                "scale_attn_weights": ((True,), "scores are divided by √d"),
                "scale_attn_by_inverse_layer_idx": ((False,), "all layers scale their scores alike"),
                "add_cross_attention": ((False, None), "a decoder has no cross-attention"),
            },
            _PAPER | {"position_offset": 0},
            fields.Windows.NONE,
            fields.own_heads,
            fields.read_gpt2,
            fields.write_gpt2,
        ),
        Family(
            "opt",
            _opt_names(),
            _ACTIVATION
            | {
                "do_layer_norm_before": (
                    (True,),
                    "the decoder's norms stand before attention and MLP (OPT-350M's do not)",
                ),
                "_remove_final_layer_norm": ((False,), "the decoder has a norm behind its last block"),
                "enable_bias": ((True,), "blocks with LayerNorm have biases"),
                "layer_norm_elementwise_affine": ((True,), "the decoder's norms have weights and biases"),
            },
            _PAPER | {"position_offset": 2, "norm_epsilon": 1e-5},
            fields.Windows.NONE,
            fields.own_heads,
            fields.read_opt,
            fields.write_opt,
        ),
    )
}
"""By transformers' model type. SmolLM and SmolLM2 are of the type llama."""

REFUSED: Mapping[str, str] = {
    "smollm3": "some of its layers have no rotary, and the decoder has it in all or in none",
    "gemma": "its norms multiply by 1 + weight and its MLP is gated by GELU",
    "gemma2": "its blocks have norms behind attention and MLP as well",
    "gemma3_text": "its blocks have norms behind attention and MLP as well",
    "phi3": "its projections and its gated MLP are stacked, and its rotary is scaled",
    "mixtral": "its MLP is a mixture of experts",
    "gpt_neox": "its attention and its MLP read the same input side by side",
}
"""Model types that people ask for, and what the decoder lacks for them."""


def family_of(kind: str) -> Family:
    """The family of a model type. ValueError, with what is missing, for others."""
    if kind in FAMILIES:
        return FAMILIES[kind]
    why = REFUSED.get(kind, "nobody has compared it with Twofold's decoder")
    raise ValueError(f"a {kind!r} model does not convert: {why}; families that do are {', '.join(FAMILIES)}")
