"""`StateCache`: one `StateLayer` per decoder layer. What `generate()` ends up with where attention is linear."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer, StaticLayer

from twofold.cache.row_cache import check_offloading
from twofold.cache.state_layer import StateLayer


class StateCache(Cache):
    """The states of all layers: `layers` of them, [B, *shape] each.

    Its size does not depend on the tokens. `offloading` as in `RowCache`.
    """

    def __init__(self, layers: int, shape: tuple[int, ...], offloading: bool = False) -> None:
        if offloading:
            check_offloading(torch.accelerator.is_available())
        super().__init__(layers=_state_layers(layers, shape), offloading=offloading)

    @property
    def bytes_used(self) -> int:
        """Bytes of all states."""
        return sum(layer.bytes_used for layer in self.layers)

    @property
    def bytes_reserved(self) -> int:
        """Bytes of the storages behind them, each counted once."""
        return sum({layer.storage_id: layer.bytes_reserved for layer in self.layers}.values())


def check_options(capacity: int | None, dtype: torch.dtype | str | None) -> None:
    """Raise ValueError for what a cache of rows can be made for, and one of states cannot."""
    if capacity is not None and capacity < 1:
        raise ValueError(f"a cache needs a capacity of at least 1 token, not {capacity}")
    if dtype is not None:
        raise ValueError(
            f"linear attention caches states, which are sums over all tokens and stay in float32, and not in {dtype}: "
            "leave the dtype out"
        )


def adopt_states(cache: Cache, layers: int, shape: tuple[int, ...]) -> Cache:
    """Make a cache that transformers or a user made keep states; returns it.

    The empty layers of a `DynamicCache` or `StaticCache` are swapped for `StateLayer`s. Raises ValueError for any other
    cache, and for one that was made for another model.
    """
    held = getattr(cache, "layers", None)
    if held and all(isinstance(layer, StateLayer) for layer in held):
        if len(held) != layers or any(layer.shape != shape for layer in held):
            raise ValueError(
                f"this cache was made for another model: {len(held)} layers with states of {list(held[0].shape)}, and "
                f"this one has {layers} layers with states of {list(shape)}. Use `model.model.new_cache()`"
            )
        return cache
    if held is None or cache.layer_class_to_replicate not in (None, DynamicLayer) or not all(map(_is_empty, held)):
        raise ValueError(
            f"linear attention caches states, and this {type(cache).__name__} cannot be made to: it must be an empty "
            "DynamicCache, an empty StaticCache or a StateCache. Leave `cache` out to get the right one"
        )
    cache.layers = _state_layers(layers, shape)
    cache.layer_class_to_replicate = None
    return cache


def _is_empty(layer: Any) -> bool:
    """Whether it would do no more than keep keys and values, and has none."""
    return type(layer) in (DynamicLayer, StaticLayer) and int(layer.get_seq_length()) == 0


def _state_layers(layers: int, shape: tuple[int, ...]) -> list[StateLayer]:
    return [StateLayer(shape) for _ in range(layers)]
