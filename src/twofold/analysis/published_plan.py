"""What a published model's cache costs at one context: in bytes, as a share, and in sequences that fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from twofold.analysis.published import CacheLayer, Kept, PublishedCache, as_variant, shared
from twofold.variants.layout import SCALE_BYTES, item_bytes
from twofold.variants.variant import Variant

NEEDED = "needed"
STORED = "transformers stores"
SHARED = "what if K=V, same heads"


@dataclass(frozen=True)
class Row:
    """One kind of rows that a kind of layer keeps; `stored` the numbers that transformers keeps, None if not known."""

    what: str
    kv_heads: int
    numbers: int
    stored: int | None
    tokens_per_row: int
    window: int | None
    unfinished: bool


@dataclass(frozen=True)
class LayerKind:
    """Layers that keep the same. Shares are of one token's numbers, before any window is full; None without heads.

    `share_of_own_widths`: of H·(`key_dim` + `value_dim`), keys and values for every query head at their own widths;
    `share_of_value_width`: of 2·H·`value_dim`.
    """

    kind: str
    layers: int
    query_heads: int
    key_dim: int
    value_dim: int
    rows: tuple[Row, ...]
    share_of_own_widths: float | None
    share_of_value_width: float | None


@dataclass(frozen=True)
class Figures:
    """Bytes of one way to cache. `bytes_per_token` before any window is full, `..._past_windows` when all are.

    `share` is of separate keys and values for every query head, at the context; `sequences_that_fit` None where no
    memory was given.
    """

    name: str
    bytes_per_token: float
    bytes_per_token_past_windows: float
    bytes: int
    bytes_batch: int
    share: float
    sequences_that_fit: int | None


@dataclass(frozen=True)
class PublishedPlan:
    """A published model's cache at one context. `parameters` None where no model could be built to count them."""

    model_type: str
    layers: int
    context: int
    batch: int
    dtype: str
    parameters: int | None
    weight_bytes: int | None
    memory_bytes: int | None
    kinds: tuple[LayerKind, ...]
    figures: tuple[Figures, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON takes it."""
        return asdict(self)


def plan_published(
    cache: PublishedCache,
    *,
    context: int | None = None,
    batch: int = 1,
    dtype: str = "bfloat16",
    variants: Sequence[Variant] = (),
    memory: int | None = None,
    parameters: int | None = None,
) -> PublishedPlan:
    """All figures of one model. `context` defaults to its positions; `memory` is in bytes.

    `variants`: what the cache would be with them, in every layer whose keys and values are separate; K=V with the
    model's own heads if none is given. Raises ValueError for sizes below 1, an unknown dtype, a model without
    positions where no context is given, and variants where no layer could take them.
    """
    context = cache.positions if context is None else context
    if context is None:
        raise ValueError(f"this {cache.model_type} configuration names no longest context: give one")
    for name, number in {"context": context, "batch": batch, "memory": memory}.items():
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, not {number}")
    weights = None if parameters is None else parameters * item_bytes(dtype)
    room = None if memory is None else memory - (weights or 0)
    figures = [
        _figures(name, way, name == STORED, context, batch, dtype, room)
        for name, way in ways(cache, dtype, variants).items()
    ]
    return PublishedPlan(
        model_type=cache.model_type,
        layers=len(cache.layers),
        context=context,
        batch=batch,
        dtype=dtype,
        parameters=parameters,
        weight_bytes=weights,
        memory_bytes=memory,
        kinds=tuple(_kind(layer, count) for layer, count in cache.distinct.items()),
        figures=tuple(figures),
        notes=(*cache.notes, *_notes(cache, dtype)),
        warnings=tuple(_warnings(cache, context, weights, memory)),
    )


def ways(cache: PublishedCache, dtype: str, variants: Sequence[Variant] = ()) -> dict[str, PublishedCache]:
    """The ways to cache that are planned, by name; of `STORED`, what transformers stores counts.

    Raises ValueError for variants where no layer could take them.
    """
    found = {NEEDED: cache}
    if cache.stored_is_known and dtype not in SCALE_BYTES:
        found[STORED] = cache
    return found | _what_if(cache, variants)


def _what_if(cache: PublishedCache, variants: Sequence[Variant]) -> dict[str, PublishedCache]:
    if not cache.has_ordinary_layers:
        if variants:
            raise ValueError(
                f"no layer of this {cache.model_type} model keeps separate keys and values of equal width, so that no "
                "variant can be tried on it: leave --variant out"
            )
        return {}
    if not variants:
        return {SHARED: cache.what_if(shared)}
    return {f"what if {variant}": cache.what_if(as_variant(variant)) for variant in variants}


def _figures(
    name: str, cache: PublishedCache, stored: bool, context: int, batch: int, dtype: str, room: int | None
) -> Figures:
    count = cache.stored_bytes if stored else cache.needed_bytes
    one, separate = count(context, dtype), cache.separate_bytes(context, dtype)
    return Figures(
        name=name,
        bytes_per_token=float(cache.bytes_per_token(dtype, past_windows=False, stored=stored)),
        bytes_per_token_past_windows=float(cache.bytes_per_token(dtype, past_windows=True, stored=stored)),
        bytes=one,
        bytes_batch=count(context, dtype, batch),
        share=one / separate,
        sequences_that_fit=None if room is None else max(0, room // one),
    )


def _kind(layer: CacheLayer, count: int) -> LayerKind:
    has_rows = layer.separate is not None and layer.owner is None
    return LayerKind(
        kind=layer.kind,
        layers=count,
        query_heads=layer.heads,
        key_dim=layer.key_dim,
        value_dim=layer.value_dim,
        rows=tuple(_row(kept, layer, place) for place, kept in enumerate(layer.needed)),
        share_of_own_widths=float(layer.numbers / (layer.heads * (layer.key_dim + layer.value_dim)))
        if has_rows
        else None,
        share_of_value_width=float(layer.numbers / (2 * layer.heads * layer.value_dim)) if has_rows else None,
    )


def _row(kept: Kept, layer: CacheLayer, place: int) -> Row:
    """Needed and stored rows of a layer come in the same order."""
    return Row(
        what=kept.what,
        kv_heads=kept.heads,
        numbers=kept.numbers,
        stored=None if layer.stored is None else layer.stored[place].numbers,
        tokens_per_row=kept.stride,
        window=kept.window,
        unfinished=kept.unfinished,
    )


def _notes(cache: PublishedCache, dtype: str) -> list[str]:
    if dtype in SCALE_BYTES and cache.stored_is_known:
        return [
            f"In {dtype} each part of a row has a scale; transformers' own cache does not hold it, and is left out."
        ]
    return []


def _warnings(cache: PublishedCache, context: int, weights: int | None, memory: int | None) -> list[str]:
    warnings = []
    if cache.positions and context > cache.positions:
        warnings.append(f"context {context:,} exceeds the {cache.positions:,} positions of this model")
    if memory is not None and weights is None:
        warnings.append("the parameters could not be counted: sequences that fit are those beside no weights")
    if memory is not None and weights is not None and weights > memory:
        warnings.append(f"the weights alone need {weights:,} bytes, and memory is {memory:,}")
    return warnings
