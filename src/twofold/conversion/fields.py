"""Configurations between families and `Architecture`, and what neither side can say of the other."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from twofold.models.architecture import Architecture, Reach
from twofold.models.configuration import TwofoldConfig
from twofold.variants.variant import Variant

if TYPE_CHECKING:
    from twofold.conversion.families import Family

TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
PLAIN: Mapping[str, Any] = {"scale_exponent": 0.5, "softcap": 0.0, "sinks": False, "scaled_embeddings": False}
"""Fields of `Architecture` that no family has otherwise."""

ACTIVATIONS: Mapping[str, str] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""Transformers' names of what an MLP with two matrices has between them → ours; of several the first is written."""


class Windows(Enum):
    """Which layers of a family may have a sliding window."""

    NONE = "no layer"
    ALL = "all layers or none"
    EACH = "any layers"


def config_in(family: Family, config: Any) -> TwofoldConfig:
    """Twofold's configuration of a model. Raises ValueError for what the decoder cannot express, by field."""
    for name, (allowed, why) in family.must.items():
        given = getattr(config, name, allowed[0])
        if given not in allowed:
            article = "an" if family.name[0] in "aeiou" else "a"
            raise ValueError(f"{article} {family.name} model with {name} {given!r} does not convert: {why}")
    known = {name: getattr(config, name, None) for name in TOKENS}
    sizes = Architecture(**{**family.has, **family.read(config), **_window_in(family.windows, config)})
    return TwofoldConfig.from_architecture(sizes, **known)


def config_out(family: Family, config: TwofoldConfig) -> dict[str, Any]:
    """Fields of the family's configuration for a Twofold model. Raises ValueError for what the family has not."""
    if lacks := unmet(family, config.architecture):
        raise ValueError(f"this model is none of the family {family.name}, {lacks}")
    known = {name: getattr(config, name) for name in TOKENS}
    return {**family.write(config.architecture), **_window_out(family.windows, config.architecture), **known}


def unmet(family: Family, sizes: Architecture) -> str:
    """The first thing of a decoder that the family does not have, in words; empty where it has everything."""
    for variant in sorted(set(sizes.variants), key=str):
        if variant != Variant(kv_heads=variant.kv_heads):
            return f"which keeps keys and values of their own: its variant is {variant}"
    if len(set(sizes.variants)) > 1:
        return f"all of whose layers have as many key/value heads: here are {', '.join(map(str, sizes.variants))}"
    for name, value in {**PLAIN, **family.has}.items():
        if getattr(sizes, name) != value:
            return f"whose {name} is {value!r}: here it is {getattr(sizes, name)!r}"
    return family.heads(sizes) or _unmet_window(family.windows, sizes)


def any_heads(sizes: Architecture) -> str:
    """Heads as in the decoder."""
    return ""


def whole_heads(sizes: Architecture) -> str:
    """As many query heads as divide the width, which transformers asks of Llama."""
    if sizes.width % sizes.heads == 0:
        return ""
    return f"whose width is a multiple of its heads: here it is {sizes.width} with {sizes.heads} heads"


def own_heads(sizes: Architecture) -> str:
    """Heads that share out the width, each with a key and a value."""
    if sizes.kv_heads == sizes.heads and sizes.heads * sizes.head_dim == sizes.width:
        return ""
    return (
        f"whose heads share out the width and have keys of their own: here are {sizes.heads} heads × "
        f"{sizes.head_dim} dims, {sizes.kv_heads} key/value heads and a width of {sizes.width}"
    )


def _unmet_window(windows: Windows, sizes: Architecture) -> str:
    kinds = set(sizes.reaches)
    if any(reach.block for reach in kinds):
        return "none of whose layers sees blocks"
    allowed = {Windows.NONE: kinds == {Reach()}, Windows.ALL: len(kinds) == 1, Windows.EACH: True}[windows]
    return "" if allowed else f"where {windows.value} may have a window: the pattern here is {sizes.layer_pattern}"


def read_rotary(config: Any) -> dict[str, Any]:
    """Sizes of Llama and its relatives. Raises ValueError for scaled rotary positions, by their type."""
    rope = config.rope_parameters or {}
    if (kind := rope.get("rope_type", "default")) != "default":
        raise ValueError(
            f"a {config.model_type} model with rotary scaling {kind!r} does not convert: the decoder's angles are "
            "base^(−2i/r) per position, without scaling"
        )
    if (part := rope.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ValueError(f"a {config.model_type} model with partial_rotary_factor {part} does not convert")
    heads = config.num_attention_heads
    return {
        "layers": config.num_hidden_layers,
        "width": config.hidden_size,
        "heads": heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "mlp": config.intermediate_size,
        "vocab": config.vocab_size,
        "positions": config.max_position_embeddings,
        "tied": config.tie_word_embeddings,
        "rotary_base": float(rope.get("rope_theta", 10_000.0)),
        "norm_epsilon": config.rms_norm_eps,
        "initial_deviation": config.initializer_range,
        "variant": _with_heads(config.num_key_value_heads, heads),
    }


def write_rotary(sizes: Architecture) -> dict[str, Any]:
    """The inverse of `read_rotary`."""
    return {
        "num_hidden_layers": sizes.layers,
        "hidden_size": sizes.width,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "intermediate_size": sizes.mlp,
        "vocab_size": sizes.vocab,
        "max_position_embeddings": sizes.positions,
        "tie_word_embeddings": sizes.tied,
        "rope_parameters": {"rope_type": "default", "rope_theta": sizes.rotary_base},
        "rms_norm_eps": sizes.norm_epsilon,
        "initializer_range": sizes.initial_deviation,
    }


def read_gpt2(config: Any) -> dict[str, Any]:
    """Sizes of GPT-2."""
    return {
        "layers": config.n_layer,
        "width": config.n_embd,
        "heads": config.n_head,
        "mlp": config.n_inner or 4 * config.n_embd,
        "vocab": config.vocab_size,
        "positions": config.n_positions,
        "tied": config.tie_word_embeddings,
        "norm_epsilon": config.layer_norm_epsilon,
        "initial_deviation": config.initializer_range,
        "dropout": float(config.resid_pdrop),
        "activation": ACTIVATIONS[config.activation_function],
    }


def write_gpt2(sizes: Architecture) -> dict[str, Any]:
    """The inverse of `read_gpt2`; dropout elsewhere than on what a block adds is 0, as the decoder has none."""
    return {
        "n_layer": sizes.layers,
        "n_embd": sizes.width,
        "n_head": sizes.heads,
        "n_inner": sizes.mlp,
        "vocab_size": sizes.vocab,
        "n_positions": sizes.positions,
        "tie_word_embeddings": sizes.tied,
        "layer_norm_epsilon": sizes.norm_epsilon,
        "initializer_range": sizes.initial_deviation,
        "resid_pdrop": sizes.dropout,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "activation_function": _activation_out(sizes),
    }


def read_opt(config: Any) -> dict[str, Any]:
    """Sizes of OPT. Raises ValueError for token embeddings of another width than the blocks'."""
    if config.word_embed_proj_dim != config.hidden_size:
        raise ValueError(
            f"an opt model with word_embed_proj_dim {config.word_embed_proj_dim} and hidden_size {config.hidden_size} "
            "does not convert: the decoder's embeddings are as wide as its blocks, without a projection between"
        )
    return {
        "layers": config.num_hidden_layers,
        "width": config.hidden_size,
        "heads": config.num_attention_heads,
        "mlp": config.ffn_dim,
        "vocab": config.vocab_size,
        "positions": config.max_position_embeddings,
        "tied": config.tie_word_embeddings,
        "initial_deviation": config.init_std,
        "dropout": float(config.dropout),
        "activation": ACTIVATIONS[config.activation_function],
    }


def write_opt(sizes: Architecture) -> dict[str, Any]:
    """The inverse of `read_opt`; dropout inside attention and of whole layers is 0, as the decoder has none."""
    return {
        "num_hidden_layers": sizes.layers,
        "hidden_size": sizes.width,
        "word_embed_proj_dim": sizes.width,
        "num_attention_heads": sizes.heads,
        "ffn_dim": sizes.mlp,
        "vocab_size": sizes.vocab,
        "max_position_embeddings": sizes.positions,
        "tie_word_embeddings": sizes.tied,
        "init_std": sizes.initial_deviation,
        "dropout": sizes.dropout,
        "attention_dropout": 0.0,
        "layerdrop": 0.0,
        "activation_function": _activation_out(sizes),
    }


def _activation_out(sizes: Architecture) -> str:
    return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == sizes.activation)


def _with_heads(kv_heads: int, heads: int) -> Variant:
    return Variant(kv_heads=None if kv_heads == heads else kv_heads)


def _window_in(windows: Windows, config: Any) -> dict[str, Any]:
    """The window, and which layers have it. A family reads `layer_types` only where its layers may differ."""
    window = None if windows is Windows.NONE else config.sliding_window
    if not window:
        return {}
    every = ["sliding_attention"] * config.num_hidden_layers
    kinds = config.layer_types if windows is Windows.EACH else every
    pattern = "".join("S" if kind == "sliding_attention" else "L" for kind in kinds)
    if "S" not in pattern:
        return {}
    return {"window": window, "layer_pattern": pattern if "L" in pattern else "S"}


def _window_out(windows: Windows, sizes: Architecture) -> dict[str, Any]:
    """The inverse of `_window_in`."""
    if windows is Windows.NONE:
        return {}
    made: dict[str, Any] = {"sliding_window": sizes.window or None}
    if windows is Windows.EACH:
        kinds = ["full_attention" if window is None else "sliding_attention" for window in sizes.windows]
        made |= {"use_sliding_window": bool(sizes.window), "layer_types": kinds}
    return made
