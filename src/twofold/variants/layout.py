"""The row: what a decoder keeps per token, and where a head finds its key and its value in it.

A row has one part per key/value head (`head_width` numbers) and, for some variants, one part that all heads share
(`shared_width` numbers). Two roles share memory when their spans overlap. Everything that is said about cache bytes
follows from here by arithmetic; nothing else in the package computes cache bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
STATE_ITEM_BYTES = 4
"""Bytes of one number of a recurrence's state: float32, unless the model's own dtype is wider."""
SCALE_BYTES = {"int8": 4}
"""Dtypes that need a scale for each part of a row, and the bytes of one: a float32."""


class Span(NamedTuple):
    """Numbers `start` up to, not including, `stop` of one part of a row."""

    start: int
    stop: int

    @property
    def width(self) -> int:
        """How many numbers the span covers."""
        return self.stop - self.start


@dataclass(frozen=True)
class RowLayout:
    """Where key and value of one key/value head lie in a row. Unit of every number: one cached number.

    A head's key is `key`, a span of the head's own part, followed by `shared_key`, a span of the shared part, where
    there is one. Its value is `value`, a span of its own part. `value_order` says which dim of an unshared layer's
    value each stored number is: stored number j holds dim `value_order[j]`; None means the order is unchanged.
    """

    head_width: int
    shared_width: int
    key: Span
    value: Span
    shared_key: Span | None = None
    value_order: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        spans = [("key", self.key, self.head_width), ("value", self.value, self.head_width)]
        if self.shared_key is not None:
            spans.append(("shared key", self.shared_key, self.shared_width))
        for name, span, width in spans:
            if not 0 <= span.start < span.stop <= width:
                raise ValueError(f"the {name} [{span.start}:{span.stop}) does not lie in a part of {width} numbers")
        if self.value_order is not None and sorted(self.value_order) != list(range(self.value.width)):
            raise ValueError(f"value_order must permute the value's {self.value.width} dims: {self.value_order}")

    @classmethod
    def separate(cls, head_dim: int) -> RowLayout:
        """`[k | v]`: key and value have numbers of their own (QKV, Q=K); 2d per head."""
        return cls(2 * head_dim, 0, Span(0, head_dim), Span(head_dim, 2 * head_dim))

    @classmethod
    def shared(cls, head_dim: int) -> RowLayout:
        """`[c]`: one vector is key and value (K=V, Q=K=V); d per head."""
        return cls(head_dim, 0, Span(0, head_dim), Span(0, head_dim))

    @classmethod
    def partial(cls, head_dim: int, rotary_dim: int) -> RowLayout:
        """`[kʳ | c | vʳ]`: r rotated key dims are kept beside the raw ones; d + r per head.

        The key's dims come as (rotated, rest) and the value's as (rest, rotated), so that the rest is stored once
        (Gemma 4's global layers, arXiv 2607.02770).
        """
        _between("rotary dims", rotary_dim, 1, head_dim - 1)
        order = (*range(rotary_dim, head_dim), *range(rotary_dim))
        width = head_dim + rotary_dim
        return cls(width, 0, Span(0, head_dim), Span(rotary_dim, width), value_order=order)

    @classmethod
    def decoupled(cls, head_dim: int, rotary_dim: int) -> RowLayout:
        """`[c] [kʳ]`: content is key and value, one rotary key is shared by all heads; d per head + r."""
        _between("rotary dims", rotary_dim, 1, None)
        own = Span(0, head_dim)
        return cls(head_dim, rotary_dim, own, own, shared_key=Span(0, rotary_dim))

    @classmethod
    def latent(cls, latent_dim: int, rotary_dim: int) -> RowLayout:
        """Multi-head latent attention, absorbed: the decoupled row with one head; c + r (arXiv 2405.04434)."""
        return cls.decoupled(latent_dim, rotary_dim)

    @classmethod
    def input(cls, width: int) -> RowLayout:
        """`[x]`: the layer's input, with W_K absorbed into the query and W_V into the output; one head."""
        return cls.shared(width)

    @property
    def key_dim(self) -> int:
        """Numbers in a head's key: what a query must have."""
        return self.key.width + (self.shared_key.width if self.shared_key else 0)

    def numbers(self, kv_heads: int) -> int:
        """Numbers in one row: G·head_width + shared_width."""
        return kv_heads * self.head_width + self.shared_width

    def parts(self, kv_heads: int) -> int:
        """Parts of one row, each with a scale where there are scales: G, and 1 for what all heads share."""
        return kv_heads + (self.shared_width > 0)


def cache_bytes(
    layout: RowLayout,
    kv_heads: int,
    *,
    tokens: int,
    itemsize: int,
    layers: int = 1,
    batch: int = 1,
    scale_bytes: int = 0,
    window: int | None = None,
) -> int:
    """Bytes that a cache uses: layers × sequences × kept tokens × bytes of a row.

    Bytes of a row: (G·head_width + shared_width) × itemsize, and `scale_bytes` for each of its parts. Kept are all
    `tokens`, and at most the newest `window` where these layers have one.
    """
    kept = tokens if window is None else min(tokens, window)
    row = layout.numbers(kv_heads) * itemsize + layout.parts(kv_heads) * scale_bytes
    return layers * batch * kept * row


def state_bytes(
    kv_heads: int, head_dim: int, *, layers: int = 1, batch: int = 1, itemsize: int = STATE_ITEM_BYTES
) -> int:
    """Bytes of the states of a linear recurrence: layers × sequences × G·D·(D + 1) numbers, for any tokens.

    Per key/value head a D × D matrix and D numbers for the denominator (arXiv 2006.16236, equations 16 to 20).
    """
    return layers * batch * kv_heads * head_dim * (head_dim + 1) * max(itemsize, STATE_ITEM_BYTES)


def item_bytes(dtype: str) -> int:
    """Bytes of one number of `dtype`, by name. Raises ValueError for a name that is not in `ITEM_BYTES`."""
    if dtype not in ITEM_BYTES:
        raise ValueError(f"unknown dtype {dtype!r}: choose one of {', '.join(ITEM_BYTES)}")
    return ITEM_BYTES[dtype]


def scale_bytes(dtype: str) -> int:
    """Bytes of the scale that each part of a row has in `dtype`, by name; 0 where it has none."""
    return SCALE_BYTES.get(dtype, 0)


def draw(layout: RowLayout) -> str:
    """The row as a picture: k key only, v value only, c both; four letters stand for one head dim.

    A region that only rotated dims occupy is marked ʳ; the part that all heads share stands apart.
    """
    cuts = sorted({0, layout.head_width, *layout.key, *layout.value})
    regions = [_letters(layout, Span(a, b)) for a, b in pairwise(cuts)]
    own = f"[ {' | '.join(regions)} ]"
    return f"{own} [ kʳ ]" if layout.shared_key else own


def _letters(layout: RowLayout, region: Span) -> str:
    in_key = layout.key.start <= region.start and region.stop <= layout.key.stop
    in_value = layout.value.start <= region.start and region.stop <= layout.value.stop
    if in_key and in_value:
        letter = "c"
    else:
        letter = "k" if in_key else "v"
        if layout.key.stop > layout.value.start:
            return letter + "ʳ"
    return " ".join(letter * max(1, round(4 * region.width / layout.key.width)))


def _between(what: str, number: int, low: int, high: int | None) -> None:
    if number < low or (high is not None and number > high):
        limit = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ValueError(f"{what} must be {limit}, not {number}")
