"""`RowCache`: one `RowLayer` per decoder layer. What `generate()` on a Twofold model ends up with."""

from __future__ import annotations

import torch
from transformers.cache_utils import Cache, DynamicLayer, StaticLayer

from twofold.cache.layer import RowLayer
from twofold.variants.layout import RowLayout

IMPLEMENTATIONS = ("dynamic", "static", "offloaded", "offloaded_static")
"""The values of `generate()`'s `cache_implementation` that rows can follow."""


class RowCache(Cache):
    """Rows of all layers.

    `layers`: how many; `layout` and `kv_heads`: the row of each; `capacity`: tokens to allocate at once, None to
    grow. `offloading` keeps the rows on the CPU between uses (needs an accelerator, as in transformers). `dtype`: what
    to keep rows in, see `RowLayer`; by default what the model makes them in.
    """

    def __init__(
        self,
        layers: int,
        layout: RowLayout,
        kv_heads: int,
        capacity: int | None = None,
        offloading: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        if capacity is not None and capacity < 1:
            raise ValueError(f"a cache needs a capacity of at least 1 token, not {capacity}")
        if offloading:
            check_offloading(torch.accelerator.is_available())
        super().__init__(layers=_row_layers(layers, layout, kv_heads, capacity, dtype), offloading=offloading)

    @property
    def bytes_used(self) -> int:
        """Bytes of all rows in use."""
        return sum(layer.bytes_used for layer in self.layers)

    @property
    def bytes_reserved(self) -> int:
        """Bytes of the storages behind them, each counted once."""
        return sum({layer.storage_id: layer.bytes_reserved for layer in self.layers}.values())


def adopt(cache: Cache, layers: int, layout: RowLayout, kv_heads: int) -> Cache:
    """Make a cache that transformers or a user made store rows; returns it.

    The empty layers of a `DynamicCache` or `StaticCache` are swapped for `RowLayer`s, with the static cache's length
    as capacity. Raises ValueError for a cache that already holds keys and values, or whose layers do more than keep
    them (quantised, sliding, paged), or that was made for rows of another model.
    """
    if is_row_cache(cache):
        _check_fits(cache, layers, layout, kv_heads)
        return cache
    if not _is_replaceable(cache):
        raise ValueError(
            f"a Twofold model caches rows, and this {type(cache).__name__} cannot be made to: it must be an empty "
            "DynamicCache, an empty StaticCache or a RowCache. Leave `cache` out to get the right one"
        )
    capacities = {layer.max_cache_len for layer in cache.layers if isinstance(layer, StaticLayer)}
    cache.layers = _row_layers(layers, layout, kv_heads, capacities.pop() if capacities else None)
    cache.layer_class_to_replicate = None
    return cache


def is_row_cache(cache: Cache) -> bool:
    """Whether every layer keeps rows."""
    layers = getattr(cache, "layers", None) or []
    return len(layers) > 0 and all(isinstance(layer, RowLayer) for layer in layers)


def check_implementation(name: str | None, device: torch.device) -> None:
    """Raise ValueError for a `cache_implementation` of `generate()` that rows on `device` have no use for."""
    if name not in (None, *IMPLEMENTATIONS):
        raise ValueError(
            f"a Twofold model caches rows, and cache_implementation={name!r} stores something else: leave it out, or "
            f"choose one of {', '.join(IMPLEMENTATIONS)}"
        )
    if name is not None and name.startswith("offloaded"):
        check_offloading(device.type != "cpu")


def check_offloading(elsewhere: bool) -> None:
    """Raise ValueError unless rows are made `elsewhere`, on an accelerator."""
    if not elsewhere:
        raise ValueError(
            "an offloaded cache keeps its rows in the CPU's memory between uses, and here they are there already: "
            "leave the offloading out, or move the model to an accelerator"
        )


def _is_replaceable(cache: Cache) -> bool:
    """Whether it is empty, and would do no more than keep keys and values."""
    layers = getattr(cache, "layers", None)
    return (
        layers is not None
        and cache.layer_class_to_replicate in (None, DynamicLayer)
        and all(type(layer) in (DynamicLayer, StaticLayer) and int(layer.get_seq_length()) == 0 for layer in layers)
    )


def _check_fits(cache: Cache, layers: int, layout: RowLayout, kv_heads: int) -> None:
    made_for = {(layer.kv_heads, layer.layout) for layer in cache.layers}
    if len(cache.layers) != layers or made_for != {(kv_heads, layout)}:
        held = ", ".join(str(other.numbers(heads)) for heads, other in made_for)
        raise ValueError(
            f"this cache was made for another model: {len(cache.layers)} layers with rows of {held} numbers, and this "
            f"one has {layers} layers with rows of {layout.numbers(kv_heads)}. Use `model.model.new_cache()`"
        )


def _row_layers(
    layers: int, layout: RowLayout, kv_heads: int, capacity: int | None, dtype: torch.dtype | None = None
) -> list[RowLayer]:
    return [RowLayer(layout, kv_heads, capacity, dtype) for _ in range(layers)]
