"""What a published model caches: layer by layer, as its mathematics needs it and as transformers stores it. No torch.

A layer keeps rows, and `variants.layout.cache_bytes` says how many bytes they are; what grows more slowly than the
tokens, or not at all, is said in rows too: one row for each so many tokens, or the newest row alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import lcm

from twofold.variants.layout import RowLayout, Span, cache_bytes, item_bytes, scale_bytes
from twofold.variants.variant import Variant

KEYS_AND_VALUES = "keys and values"


@dataclass(frozen=True)
class Kept:
    """Rows of one layout, of `heads` key/value heads, that a layer keeps of T tokens.

    One row for each full `stride` tokens; with `unfinished`, one for each token of a stride that is not full yet; the
    newest `window` of them where there is one. A state of constant size is a row of which the newest one is kept.
    `dtype` where it is not the cache's own; `what` says in words what the rows hold.
    """

    layout: RowLayout
    heads: int
    window: int | None = None
    stride: int = 1
    unfinished: bool = False
    dtype: str | None = None
    what: str = KEYS_AND_VALUES

    @classmethod
    def state(cls, numbers: int, what: str, *, stride: int = 1, dtype: str | None = None) -> Kept:
        """A state of constant size, there from the first full `stride` tokens on."""
        return cls(RowLayout.shared(numbers), 1, window=1, stride=stride, dtype=dtype, what=what)

    @property
    def numbers(self) -> int:
        """Numbers in one row."""
        return self.layout.numbers(self.heads)

    @property
    def is_state(self) -> bool:
        """Of constant size: there is only the newest row."""
        return self.window == 1

    def rows(self, tokens: int) -> int:
        """Rows that are kept of one sequence of `tokens`."""
        made = tokens % self.stride if self.unfinished else tokens // self.stride
        return made if self.window is None else min(made, self.window)

    def bytes(self, tokens: int, dtype: str, batch: int = 1) -> int:
        """Bytes for `batch` sequences of `tokens`."""
        dtype = self.dtype or dtype
        return cache_bytes(
            self.layout,
            self.heads,
            tokens=self.rows(tokens),
            itemsize=item_bytes(dtype),
            batch=batch,
            scale_bytes=scale_bytes(dtype),
        )

    @property
    def grows(self) -> bool:
        """More tokens make more rows, however many there are."""
        return self.window is None and not self.unfinished


@dataclass(frozen=True)
class CacheLayer:
    """One layer: what it `needed` to keep, and what transformers `stored` (None: not known for this model).

    `heads` query heads read keys of `key_dim` and values of `value_dim` numbers; 0 heads where the layer has none.
    A layer that reads the rows of another keeps nothing itself; `owner` is that layer's index.
    """

    kind: str
    heads: int
    key_dim: int
    value_dim: int
    needed: tuple[Kept, ...]
    stored: tuple[Kept, ...] | None
    owner: int | None = None

    @property
    def separate(self) -> Kept | None:
        """The same layer with keys and values of its own for every query head: the yardstick; None without heads."""
        return None if self.heads == 0 else Kept(two_parts(self.key_dim, self.value_dim), self.heads)

    @property
    def is_ordinary(self) -> bool:
        """Keys and values of equal width, each kept: a layer in which sharing them would save something."""
        return (
            self.key_dim == self.value_dim
            and len(self.needed) == 1
            and self.needed[0].layout == RowLayout.separate(self.key_dim)
        )

    @property
    def numbers(self) -> Fraction:
        """Numbers that one more token needs before any window is full: the mean over the strides; no states."""
        return sum((Fraction(kept.numbers, kept.stride) for kept in self.needed if _per_token(kept)), Fraction())


@dataclass(frozen=True)
class PublishedCache:
    """All layers of one model. `positions`: its longest context, None where its configuration names none."""

    model_type: str
    layers: tuple[CacheLayer, ...]
    positions: int | None
    notes: tuple[str, ...] = ()

    @cached_property
    def distinct(self) -> dict[CacheLayer, int]:
        """Each layer that differs from those before it → how many are like it."""
        return dict(Counter(self.layers))

    @property
    def has_ordinary_layers(self) -> bool:
        """Whether sharing keys and values would save anything in any layer."""
        return any(layer.is_ordinary for layer in self.distinct)

    @property
    def stored_is_known(self) -> bool:
        """Whether it is known for every layer what transformers stores."""
        return all(layer.stored is not None for layer in self.distinct)

    def needed_bytes(self, tokens: int, dtype: str, batch: int = 1) -> int:
        """Bytes that `batch` sequences of `tokens` need, windows honoured."""
        return self._bytes(lambda layer: layer.needed, tokens, dtype, batch)

    def stored_bytes(self, tokens: int, dtype: str, batch: int = 1) -> int:
        """Bytes that transformers' DynamicCache holds after its last one-token step. Known layers only: see above."""
        assert self.stored_is_known
        return self._bytes(lambda layer: layer.stored or (), tokens, dtype, batch)

    def separate_bytes(self, tokens: int, dtype: str, batch: int = 1) -> int:
        """Bytes with separate keys and values for every query head, in every attention layer, of all tokens."""
        return self._bytes(lambda layer: (layer.separate,) if layer.separate else (), tokens, dtype, batch)

    def bytes_per_token(self, dtype: str, *, past_windows: bool, stored: bool = False) -> Fraction:
        """Bytes that one more token adds: before any window is full, or when all are; states left out.

        The mean over the strides where a layer keeps one row for several tokens.
        """
        counted = [
            (replace(kept, window=None), count)
            for layer, count in self.distinct.items()
            for kept in ((layer.stored or ()) if stored else layer.needed)
            if (kept.grows if past_windows else _per_token(kept))
        ]
        tokens = lcm(*(kept.stride for kept, _ in counted))
        return Fraction(sum(count * kept.bytes(tokens, dtype) for kept, count in counted), tokens)

    def what_if(self, change: Callable[[CacheLayer], CacheLayer]) -> PublishedCache:
        """The same model with `change` made to each layer whose keys and values are separate; the others stay."""
        changed = {layer: change(layer) if layer.is_ordinary else layer for layer in self.distinct}
        return replace(self, layers=tuple(changed[layer] for layer in self.layers))

    def _bytes(self, rows: Callable[[CacheLayer], tuple[Kept, ...]], tokens: int, dtype: str, batch: int) -> int:
        return sum(
            count * kept.bytes(tokens, dtype, batch) for layer, count in self.distinct.items() for kept in rows(layer)
        )


def shared(layer: CacheLayer) -> CacheLayer:
    """K=V with the layer's own key/value heads: one vector where there were two."""
    return _with_row(layer, RowLayout.shared(layer.key_dim), layer.needed[0].heads)


def as_variant(variant: Variant) -> Callable[[CacheLayer], CacheLayer]:
    """The change to `variant`, whose key/value heads come from the layer's query heads.

    Raises ValueError for what is no change within a layer's rows, and (on use) where the heads do not divide.
    """
    for field in ("position_term", "recurrence", "row_layers"):
        if getattr(variant, field) != getattr(Variant(), field):
            raise ValueError(
                f"{variant}: only a change of the rows within each layer can be tried on a published model, such as "
                "K=V GQA-4 or MQA"
            )
    return lambda layer: _with_row(layer, variant.row_layout(layer.key_dim), variant.kv_heads_for(layer.heads))


def two_parts(key_dim: int, value_dim: int) -> RowLayout:
    """`[k | v]` with a key and a value of different widths."""
    return RowLayout(key_dim + value_dim, 0, Span(0, key_dim), Span(key_dim, key_dim + value_dim))


def _with_row(layer: CacheLayer, layout: RowLayout, heads: int) -> CacheLayer:
    row = replace(layer.needed[0], layout=layout, heads=heads)
    return replace(layer, needed=(row,), stored=None)


def _per_token(kept: Kept) -> bool:
    """Rows that come with the tokens, windowed or not: no state and no unfinished stride."""
    return not kept.is_state and not kept.unfinished
