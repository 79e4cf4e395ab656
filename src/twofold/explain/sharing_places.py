"""Where a model keeps the matrices of one layer's keys and values, to read them and to put others in their place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from twofold.attention.latent import LatentProjections
from twofold.attention.projections import Projections
from twofold.attention.recurrent import RecurrentAttention
from twofold.explain.activations import attention_layers, row_owners
from twofold.explain.sharing import Rows
from twofold.explain.weights import OWN


class Places(NamedTuple):
    """One layer's maps of keys and values as they stand in the model: views of its parameters, [R, M] and [R]."""

    rows: Rows
    kv_heads: int

    @property
    def dims(self) -> int:
        """Dims of all keys of the layer, and of all its values: G·D."""
        return len(self.rows.key_RM)


def places_of(model: PreTrainedModel, layer: int) -> Places | str:
    """The places of layer `layer`; where its keys and values are not made by a matrix each, why not, in one line."""
    attention: Any = attention_layers(model)[layer]
    if model.config.model_type not in OWN:
        return _published(attention)
    if why := _refusal(model, layer, attention):
        return why
    seam = attention.projections
    if seam.fused:
        sizes, names = list(seam.outputs.values()), list(seam.outputs)
        key, value = (
            _part(seam.qkv_proj, sum(sizes[:place]), sizes[place]) for place in map(names.index, ("key", "value"))
        )
    else:
        key, value = _part(seam.k_proj), _part(seam.v_proj)
    return Places(Rows(key[0], value[0], key[1], value[1]), seam.kv_heads)


def refusals(model: PreTrainedModel, layers: Sequence[int]) -> list[str]:
    """For each reason why layers have no measures of sharing, a sentence that names them."""
    found: dict[str, list[int]] = {}
    for layer in layers:
        if isinstance(why := places_of(model, layer), str):
            found.setdefault(why, []).append(layer)
    named = {
        why: "any layer" if of == list(layers) else f"layers {', '.join(map(str, of))}" for why, of in found.items()
    }
    return [f"No cost of sharing in {where}: {why}." for why, where in named.items()]


@contextmanager
def replaced(places: Places, rows: Rows) -> Iterator[None]:
    """While the block lasts, the model makes keys and values by `rows`; then it has its own again, bit for bit."""
    kept = [None if own is None else own.clone() for own in places.rows]
    try:
        _put(places.rows, rows)
        yield
    finally:
        _put(places.rows, Rows(*kept))  # type: ignore[arg-type]  # its first two are tensors


@torch.no_grad()
def _put(own: Rows, others: Rows) -> None:
    for place, other in zip(own, others, strict=True):
        assert (place is None) == (other is None)
        if place is not None and other is not None:
            place.copy_(other)


def _refusal(model: PreTrainedModel, layer: int, attention: Any) -> str:
    """Why a layer of our own has no separate matrices of key and value; empty where it has."""
    seam: Projections = attention.projections
    variant = seam.variant
    if isinstance(attention, RecurrentAttention):
        return "a linear recurrence caches a state and no keys and values"
    if isinstance(seam, LatentProjections):
        return "MLA makes keys and values from one latent already"
    if variant.sharing.value_is_key:
        return "keys and values are one vector already"
    owner = row_owners(model, layer + 1)[layer]
    if owner != layer:
        return f"the layer reads the rows of layer {owner}"
    if sum(other.projections is seam for other in attention_layers(model)) > 1:
        return "several layers have these matrices in common"
    if seam.fused or all(isinstance(getattr(seam, name, None), nn.Linear) for name in ("k_proj", "v_proj")):
        return ""
    return f"{variant} does not make keys and values by one matrix each"


def _published(attention: Any) -> Places:
    if hasattr(attention, "c_attn"):  # GPT-2 multiplies from the right, and has query, key and value side by side
        width = attention.split_size
        key, value = (_part(attention.c_attn, place * width, width, transposed=True) for place in (1, 2))
    else:
        key, value = _part(attention.k_proj), _part(attention.v_proj)
    return Places(Rows(key[0], value[0], key[1], value[1]), len(key[0]) // attention.head_dim)


def _part(
    module: Any, first: int = 0, outputs: int | None = None, *, transposed: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The rows `first` … of a linear layer's weight, as a view, and of its bias."""
    weight = module.weight.detach().T if transposed else module.weight.detach()
    count = len(weight) if outputs is None else outputs
    return weight.narrow(0, first, count), None if module.bias is None else module.bias.detach().narrow(0, first, count)
