"""The maps of one layer of our own models, from the seam in which their variants differ."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from twofold.attention.latent import LatentProjections
from twofold.attention.projections import Projections
from twofold.attention.sources import LowRank
from twofold.explain.layer_weights import InputNorm, LayerWeights, as_float, bias_as_float
from twofold.variants.choices import ROLES
from twofold.variants.tensors import MATRIX_NAMES

Map = tuple[Tensor, Tensor | None]
"""A linear map by head [heads, D, M] and its bias [heads, D]."""


def own_layer(blocks: nn.ModuleList, layer: int, rows_of: int) -> LayerWeights:
    """Layer `layer` of a Twofold decoder or encoder, whose keys and values layer `rows_of` makes.

    MLA has a map for each head, W_U W_DKV with the scale of the latent's norm between them, and the rotary key below
    the content; a diagonal variant's scales multiply its rows. Raises ValueError for a query that is no linear map.
    """
    block: Any = blocks[layer]
    owner: Any = blocks[rows_of]
    seam = block.attention.projections
    key, value = _rows(owner.attention.projections)
    query = _query(seam, key)
    output_HMD = as_float(seam.o_proj.weight).unflatten(1, (seam.sizes.heads, -1)).movedim(1, 0)
    biases = query[1], key[1], value[1]
    return LayerWeights(layer, query[0], key[0], value[0], output_HMD, *biases, _norm(block), _norm(owner))


def _query(seam: Projections, key: Map) -> Map:
    if not seam.variant.sharing.query_is_key:
        return _content(seam, "query")
    if not seam.variant.diagonal:
        return key
    return _scaled(_content(seam, "key"), seam.query_scale.unflatten(0, (seam.sizes.heads, -1)))


def _rows(seam: Projections) -> tuple[Map, Map]:
    """The maps of key and value; one object where they are one."""
    if isinstance(seam, LatentProjections):
        key, value = _from_latent(seam, seam.k_up_proj), _from_latent(seam, seam.v_up_proj)
        return _below(key, _rotary_key(seam)) if seam.variant.rotary_apart else key, value
    sharing = seam.variant.sharing
    key = _content(seam, "key")
    value = key if sharing.value_is_key else _content(seam, "value")
    if seam.variant.decoupled:
        key = _below(key, _rotary_key(seam))
        dims = value[0].shape[1]
        value = key[0][:, :dims], None if key[1] is None else key[1][:, :dims]
    if seam.variant.diagonal:
        if sharing.value_is_key:
            value = _scaled(value, seam.value_scale.unflatten(0, (seam.kv_heads, -1)))
        key = _scaled(key, seam.key_factors())
    return key, value


def _content(seam: Projections, role: str) -> Map:
    """The map that makes `role`, which has one of its own or is the layer's input as it is."""
    heads = seam.sizes.heads if role == "query" else seam.kv_heads
    if seam.fused:
        sizes = list(seam.outputs.values())
        place = list(seam.outputs).index(role)
        weight = as_float(seam.qkv_proj.weight).split(sizes)[place]
        bias = None if seam.qkv_proj.bias is None else as_float(seam.qkv_proj.bias).split(sizes)[place]
        return _by_head(weight, bias, heads)
    made = getattr(seam, MATRIX_NAMES[role], None)
    if made is None:
        return torch.eye(seam.sizes.width).unflatten(0, (heads, -1)), None
    if isinstance(made, nn.Linear):
        return _by_head(as_float(made.weight), bias_as_float(made.bias), heads)
    if isinstance(made, LowRank):
        product = made.up.weight.detach().double() @ made.down.weight.detach().double()
        return _by_head(as_float(product), bias_as_float(made.up.bias), heads)
    raise ValueError(
        f"{seam.variant} makes its {role} with {type(made).__name__}, which is no linear map: measures of weights "
        f"need one for each of {', '.join(ROLES)}"
    )


def _from_latent(seam: LatentProjections, up: nn.Linear) -> Map:
    down = seam.latent_proj.weight.detach().double()
    raised = up.weight.detach().double()
    scale = seam.latent_norm.weight.detach().double() if seam.sizes.latent_norm else raised.new_ones(raised.shape[1])
    bias = seam.latent_proj.bias
    moved = None if bias is None else as_float(raised @ (scale * bias.detach().double()))
    return _by_head(as_float(raised @ (scale[:, None] * down)), moved, seam.score_heads)


def _rotary_key(seam: Projections) -> Map:
    """The rotary key that all heads share."""
    return _by_head(as_float(seam.k_rope_proj.weight), bias_as_float(seam.k_rope_proj.bias), 1)


def _below(content: Map, shared: Map) -> Map:
    """`shared` [1, r, M] below the content of every head."""
    heads = len(content[0])
    weight = torch.cat([content[0], shared[0].expand(heads, -1, -1)], dim=1)
    if content[1] is None and shared[1] is None:
        return weight, None
    biases = [weight.new_zeros(part.shape[:2]) if bias is None else bias for part, bias in (content, shared)]
    return weight, torch.cat([biases[0], biases[1].expand(heads, -1)], dim=1)


def _scaled(made: Map, scale: Tensor) -> Map:
    weight, bias = made
    factor = as_float(scale)
    return weight * factor[..., None], None if bias is None else bias * factor


def _by_head(weight: Tensor, bias: Tensor | None, heads: int) -> Map:
    return weight.unflatten(0, (heads, -1)), None if bias is None else bias.unflatten(0, (heads, -1))


def _norm(block: Any) -> InputNorm | None:
    """The norm before the attention; an encoder may have it behind."""
    if not getattr(block, "is_pre_norm", True):  # a decoder's always stands before
        return None
    norm = block.attention_norm
    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    return InputNorm(as_float(norm.weight), bias_as_float(bias), isinstance(norm, nn.LayerNorm))
