"""`RowCache`: one `RowLayer` per decoder layer. What `generate()` on a Twofold model ends up with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from transformers.cache_utils import (
    Cache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from twofold.cache.layer import RowLayer
from twofold.variants.layout import RowLayout

Windows = Sequence[int | None] | None
"""For each layer the tokens that it sees, None for all; None for layers without windows."""
IMPLEMENTATIONS = ("dynamic", "static", "offloaded", "offloaded_static")
"""The values of `generate()`'s `cache_implementation` that rows can follow."""


class RowCache(Cache):
    """Rows of all layers.

    `layers`: how many; `layout` and `kv_heads`: the row of all of them, or one of each for each; `capacity`: tokens to
    allocate at once, None to grow. `offloading` keeps the rows on the CPU between uses (needs an accelerator, as in
    transformers). `dtype`: what to keep rows in, see `RowLayer`; by default what the model makes them in.
    """

    def __init__(
        self,
        layers: int,
        layout: RowLayout | Sequence[RowLayout],
        kv_heads: int | Sequence[int],
        capacity: int | None = None,
        offloading: bool = False,
        dtype: torch.dtype | str | None = None,
        windows: Windows = None,
    ) -> None:
        if capacity is not None and capacity < 1:
            raise ValueError(f"a cache needs a capacity of at least 1 token, not {capacity}")
        if offloading:
            check_offloading(torch.accelerator.is_available())
        made = _row_layers(_of_each(layers, layout, kv_heads, windows), capacity, dtype)
        super().__init__(layers=made, offloading=offloading)

    @property
    def bytes_used(self) -> int:
        """Bytes of all rows in use."""
        return sum(layer.bytes_used for layer in self.layers)

    @property
    def bytes_reserved(self) -> int:
        """Bytes of the storages behind them, each counted once."""
        return sum({layer.storage_id: layer.bytes_reserved for layer in self.layers}.values())


class Kept(NamedTuple):
    """What one layer's rows are made for."""

    layout: RowLayout
    kv_heads: int
    window: int | None

    @property
    def numbers(self) -> int:
        """Numbers in one row."""
        return self.layout.numbers(self.kv_heads)


def adopt(
    cache: Cache,
    layers: int,
    layout: RowLayout | Sequence[RowLayout],
    kv_heads: int | Sequence[int],
    windows: Windows = None,
) -> Cache:
    """Make a cache that transformers or a user made store rows; returns it.

    The empty layers of a `DynamicCache` or `StaticCache` are swapped for `RowLayer`s, with the static cache's length
    as capacity; sliding ones where this model has windows too. Raises ValueError for a cache that already holds keys
    and values, or whose layers do more than keep them (quantised, paged, sliding where the model is not), or that was
    made for rows of another model.
    """
    each = _of_each(layers, layout, kv_heads, windows)
    if is_row_cache(cache):
        _check_fits(cache, each)
        return cache
    if not _is_replaceable(cache, each):
        raise ValueError(
            f"a Twofold model caches rows, and this {type(cache).__name__} cannot be made to: it must be an empty "
            "DynamicCache, an empty StaticCache or a RowCache. Leave `cache` out to get the right one"
        )
    capacities = {layer.max_cache_len for layer in cache.layers if type(layer) is StaticLayer}
    cache.layers = _row_layers(each, capacities.pop() if capacities else None)
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


def _of_each(
    layers: int, layout: RowLayout | Sequence[RowLayout], kv_heads: int | Sequence[int], windows: Windows
) -> list[Kept]:
    if windows is not None and len(windows) != layers:
        raise ValueError(f"{layers} layers need as many windows (None for a layer that sees all), not {len(windows)}")
    layouts = (layout,) * layers if isinstance(layout, RowLayout) else layout
    heads = (kv_heads,) * layers if isinstance(kv_heads, int) else kv_heads
    if not len(layouts) == len(heads) == layers:
        raise ValueError(f"{layers} layers need as many layouts and numbers of heads, not {len(layouts)}, {len(heads)}")
    return list(map(Kept, layouts, heads, windows or (None,) * layers))


def _is_replaceable(cache: Cache, each: list[Kept]) -> bool:
    """Whether it is empty, and would do no more than keep keys and values, or those of windows where there are any.

    Which layers slide is not compared: of a configuration with a window transformers makes all of them so.
    """
    layers = getattr(cache, "layers", None)
    if layers is None or cache.layer_class_to_replicate not in (None, DynamicLayer):
        return False
    slides = [type(layer) in (DynamicSlidingWindowLayer, StaticSlidingWindowLayer) for layer in layers]
    if any(slides) and not any(one.window for one in each):
        return False
    plain = all(
        slide or type(layer) in (DynamicLayer, StaticLayer) for layer, slide in zip(layers, slides, strict=True)
    )
    return plain and all(int(layer.get_seq_length()) == 0 for layer in layers)


def _check_fits(cache: Cache, each: list[Kept]) -> None:
    held = [Kept(layer.layout, layer.kv_heads, layer.window) for layer in cache.layers]
    if [one[:2] for one in held] != [one[:2] for one in each]:
        sizes = (", ".join(map(str, dict.fromkeys(one.numbers for one in some))) for some in (held, each))
        raise ValueError(
            f"this cache was made for another model: {len(held)} layers with rows of {next(sizes)} numbers, and this "
            f"one has {len(each)} layers with rows of {next(sizes)}. Use `model.model.new_cache()`"
        )
    held_windows, windows = ([one.window for one in some] for some in (held, each))
    if held_windows != windows:
        raise ValueError(
            f"this cache was made for another model: its layers see {held_windows} tokens (None: all), and those of "
            f"this one {windows}. Use `model.model.new_cache()`"
        )


def _row_layers(each: list[Kept], capacity: int | None, dtype: torch.dtype | str | None = None) -> list[RowLayer]:
    return [RowLayer(one.layout, one.kv_heads, capacity, dtype, one.window) for one in each]
