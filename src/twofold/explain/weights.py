"""The attention's weights of any model that `explain` knows, one layer at a time and all in one form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from twofold.explain.layer_weights import InputNorm, LayerWeights, as_float, bias_as_float
from twofold.explain.weights_own import own_layer

OWN = ("twofold", "twofold_encoder")
SHIFTED_SCALE = ("gemma", "gemma2", "gemma3", "gemma3_text")
"""Families whose norm multiplies by 1 + weight."""


@dataclass(frozen=True)
class Names:
    """Where a family keeps its blocks in the base model, and in a block the attention, its output and its norm."""

    blocks: str
    attention: str
    output: str
    norm: str


LLAMA = Names("layers", "self_attn", "o_proj", "input_layernorm")
FAMILIES = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"), LLAMA),
    "gemma3": Names("language_model.layers", "self_attn", "o_proj", "input_layernorm"),
    "opt": Names("decoder.layers", "self_attn", "out_proj", "self_attn_layer_norm"),
    "gpt2": Names("h", "attn", "c_proj", "ln_1"),
}


def read_weights(model: PreTrainedModel, layers: Sequence[int] | None = None) -> Iterator[LayerWeights]:
    """The weights of each layer in turn, or of `layers`; those of float32 models are views, others are converted one
    layer at a time.

    Knows Twofold decoders and encoders, Llama, Mistral, Qwen 2 and 3, Gemma 1 to 3, GPT-2 and OPT. Raises ValueError
    for other models, for layers that the model does not have, and for weights that are no plain matrices (quantised
    ones).
    """
    kind = model.config.model_type
    if kind not in (*OWN, *FAMILIES):
        raise ValueError(
            f"the attention of a {kind!r} model cannot be read: known are {', '.join((*OWN, *FAMILIES))}, which keep "
            "it in separate q_proj, k_proj, v_proj or in c_attn"
        )
    blocks, read = _own(model) if kind in OWN else _of_family(model, kind)
    chosen = range(len(blocks)) if layers is None else layers
    if unknown := [layer for layer in chosen if not 0 <= layer < len(blocks)]:
        raise ValueError(f"there is no layer {unknown[0]} in a model of {len(blocks)}: layers count from 0")
    return (read(layer) for layer in chosen)


def _own(model: PreTrainedModel) -> tuple[nn.ModuleList, Callable[[int], LayerWeights]]:
    blocks = model.base_model.layers
    is_decoder = model.config.model_type == "twofold"
    owners = model.config.architecture.row_owners if is_decoder else range(len(blocks))
    return blocks, lambda layer: own_layer(blocks, layer, owners[layer])


def _of_family(model: PreTrainedModel, kind: str) -> tuple[nn.ModuleList, Callable[[int], LayerWeights]]:
    names = FAMILIES[kind]
    blocks = model.base_model.get_submodule(names.blocks)
    read = _fused_layer if kind == "gpt2" else _separate_layer

    def read_layer(layer: int) -> LayerWeights:
        block = blocks[layer]
        norm = _norm(block.get_submodule(names.norm), shifted=kind in SHIFTED_SCALE)
        behind = kind == "opt" and not block.do_layer_norm_before
        return read(layer, block.get_submodule(names.attention), names.output, None if behind else norm)

    return blocks, read_layer


def _separate_layer(layer: int, attention: Any, output: str, norm: InputNorm | None) -> LayerWeights:
    """`q_proj`, `k_proj`, `v_proj` [heads·D, M]."""
    dims = attention.head_dim
    q, k, v = (_by_head(attention, f"{name}_proj", dims) for name in "qkv")
    output_HMD = _matrix(attention, output).unflatten(1, (-1, dims)).movedim(1, 0)
    return LayerWeights(layer, q[0], k[0], v[0], output_HMD, q[1], k[1], v[1], norm, norm)


def _fused_layer(layer: int, attention: Any, output: str, norm: InputNorm | None) -> LayerWeights:
    """GPT-2's `c_attn` [M, 3·M], which multiplies from the right, as `c_proj` [M, M] does."""
    heads = attention.num_heads
    q_HDM, k_HDM, v_HDM = _matrix(attention, "c_attn").T.unflatten(0, (3, heads, -1)).unbind()
    q_HD, k_HD, v_HD = as_float(attention.c_attn.bias).unflatten(0, (3, heads, -1)).unbind()
    output_HMD = _matrix(attention, output).unflatten(0, (heads, -1)).transpose(1, 2)
    return LayerWeights(layer, q_HDM, k_HDM, v_HDM, output_HMD, q_HD, k_HD, v_HD, norm, norm)


def _by_head(attention: Any, name: str, dims: int) -> tuple[Tensor, Tensor | None]:
    weight = _matrix(attention, name).unflatten(0, (-1, dims))
    bias = bias_as_float(attention.get_submodule(name).bias)
    return weight, None if bias is None else bias.unflatten(0, (-1, dims))


def _matrix(attention: Any, name: str) -> Tensor:
    weight = attention.get_submodule(name).weight
    if not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.ndim != 2 or weight.is_meta:
        raise ValueError(
            f"{name} is a {type(weight).__name__} of {getattr(weight, 'dtype', None)} and no matrix of numbers: load "
            "the model unquantised, with its weights in memory"
        )
    return as_float(weight)


def _norm(norm: Any, *, shifted: bool) -> InputNorm:
    scale_M, bias_M = as_float(norm.weight), bias_as_float(getattr(norm, "bias", None))
    return InputNorm(1 + scale_M if shifted else scale_M, bias_M, isinstance(norm, nn.LayerNorm))
