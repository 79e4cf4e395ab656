"""What `lab.html` holds: small decoders with all their weights, and what their rows are made of. No torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from twofold.explain.record import Part
from twofold.variants.choices import Sharing
from twofold.variants.layout import ITEM_BYTES, SCALE_BYTES
from twofold.variants.variant import Variant

MOST_TOKENS = 64
"""Tokens that a page shows, at most: more squares than that are too small to point at."""
SHARINGS = (Sharing.QKV, Sharing.KEY_VALUE, Sharing.QUERY_KEY, Sharing.ALL)
Role = Literal["query", "key", "value"]
Count = Annotated[int, Field(ge=0)]


class TensorPlace(Part):
    """One tensor of a model, by its name in the state dict; tensors lie one after the other, in row-major order."""

    name: str
    shape: tuple[PositiveInt, ...]


class LabSizes(Part):
    """Sizes as in `Architecture`; `positions` is 0 where they are rotary ones and not learned."""

    layers: PositiveInt
    width: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    mlp: PositiveInt
    vocab: PositiveInt
    positions: Count


class LabRow(Part):
    """A head's part of the row: `width` numbers, of which the key and the value are spans [start, stop)."""

    width: PositiveInt
    key: tuple[Count, PositiveInt]
    value: tuple[Count, PositiveInt]


class MeasuredCache(Part):
    """Bytes of the library's own cache after it read the lab's sentence, `tokens` of it, in `dtype`."""

    tokens: PositiveInt
    dtype: str
    bytes_used: PositiveInt
    bytes_reserved: PositiveInt


class LabModel(Part):
    """One decoder. `sources` says of each role whose matrix makes it; scores are `scale` · q·k.

    `rotated_dims` of a head are turned by rotary with base `rotary_base` (0 for none); embeddings are multiplied by
    `embedding_factor`. `weights` are float32, little-endian, in base64, in the order of `tensors`; a model without
    `lm_head.weight` uses its embeddings there.
    """

    label: str
    variant: str
    source: str
    sources: dict[Role, Role]
    sizes: LabSizes
    row: LabRow
    scale: PositiveFloat
    rotated_dims: Count
    rotary_base: PositiveFloat
    norm_epsilon: PositiveFloat
    embedding_factor: PositiveFloat
    bits_per_byte: PositiveFloat | None
    cache: MeasuredCache
    tensors: tuple[TensorPlace, ...]
    weights: str


class SharingRow(Part):
    """What one way of sharing keeps per head and token: the parts of its row, each of one head's dims."""

    notation: str
    parts: tuple[str, ...]


class DtypeBytes(Part):
    """Bytes of one number, and of the scale that each part of a row has."""

    item: PositiveInt
    scale: Count


class Lab(Part):
    """The page: its models, the `sentence` that it begins with, the token that ends a text, and what its cache's
    arithmetic needs.
    """

    models: tuple[LabModel, ...]
    sentence: str
    most_tokens: PositiveInt
    end: Count
    sharings: tuple[SharingRow, ...]
    dtypes: dict[str, DtypeBytes]
    command: str
    environment: dict[str, Any]


def sharing_rows() -> tuple[SharingRow, ...]:
    """The rows of the four ways of sharing projections, from their layouts."""
    named = {1: ("k = v",), 2: ("k", "v")}
    return tuple(SharingRow(notation=s.value, parts=named[Variant(s).row_layout(1).head_width]) for s in SHARINGS)


def dtype_bytes() -> dict[str, DtypeBytes]:
    """The dtypes that rows are kept in, from the widest."""
    return {name: DtypeBytes(item=item, scale=SCALE_BYTES.get(name, 0)) for name, item in ITEM_BYTES.items()}
