"""How the vectors of query, key and value become a query and a row, where rotary may turn some of their dims.

One class for each treatment, with two functions: `rows` on the way in, and `read` for what the scores read out of the
rows. Without a rotation (learned positions) nothing is turned.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from twofold.attention.rotary import Rotation, rotate_back
from twofold.variants.choices import Treatment
from twofold.variants.variant import Variant


class Made(NamedTuple):
    """What a layer makes of its input: queries [B, T, H, key dims], rows [B, T, G, W], and their shared part [B, T, W].

    Rows are None in a layer that reads another layer's.
    """

    query_BTHD: Tensor  # noqa: N815
    rows_BTGW: Tensor | None  # noqa: N815
    shared_BTW: Tensor | None = None  # noqa: N815


class RowMaker(Protocol):
    """One treatment. `keeps_turned`: its rows hold the key as it is turned to its position."""

    keeps_turned: bool

    def rows(self, key_BTGD: Tensor, turned_BTGD: Tensor, value_BTGD: Tensor, by: Rotation | None) -> Tensor:
        """Rows [B, T, G, W], as the variant's layout lays them out, of a key that is also given turned by `by`."""

    def read(self, read_BTHD: Tensor, by: Rotation | None) -> Tensor:
        """What each head read, with its dims in the order and direction that the output projection expects."""


class Separate:
    """The value has a vector of its own, which rotary leaves alone: `[k | v]`."""

    keeps_turned = True

    def rows(self, key_BTGD: Tensor, turned_BTGD: Tensor, value_BTGD: Tensor, by: Rotation | None) -> Tensor:
        """The turned key, then the value."""
        return torch.cat([turned_BTGD, value_BTGD], dim=-1)

    def read(self, read_BTHD: Tensor, by: Rotation | None) -> Tensor:
        """As it is."""
        return read_BTHD


class Derotated:
    """The turned key is the value; what was read is turned back at the query's position (arXiv 2606.19348).

    The value of token s then reaches token t turned by t − s: only relative positions matter.
    """

    keeps_turned = True

    def rows(self, key_BTGD: Tensor, turned_BTGD: Tensor, value_BTGD: Tensor, by: Rotation | None) -> Tensor:
        """The turned key."""
        return turned_BTGD

    def read(self, read_BTHD: Tensor, by: Rotation | None) -> Tensor:
        """Turned back."""
        return read_BTHD if by is None else rotate_back(read_BTHD, by)


class Raw:
    """The key before rotary is the value: what reads rows turns keys, or a rotary key stands beside them."""

    keeps_turned = False

    def rows(self, key_BTGD: Tensor, turned_BTGD: Tensor, value_BTGD: Tensor, by: Rotation | None) -> Tensor:
        """The key as it is."""
        return key_BTGD

    def read(self, read_BTHD: Tensor, by: Rotation | None) -> Tensor:
        """As it is."""
        return read_BTHD


class Kept:
    """`[kʳ | c | vʳ]`: the turned dims beside the raw ones, the rest once (Gemma 4, arXiv 2607.02770).

    The value lies there with its dims in the order (rest, turned).
    """

    keeps_turned = True

    def rows(self, key_BTGD: Tensor, turned_BTGD: Tensor, value_BTGD: Tensor, by: Rotation | None) -> Tensor:
        """The key with its first r dims turned, then these dims raw."""
        assert by is not None, "an architecture without rotary keeps nothing beside its rows"
        return torch.cat([turned_BTGD, key_BTGD[..., : by.cos.shape[-1]]], dim=-1)

    def read(self, read_BTHD: Tensor, by: Rotation | None) -> Tensor:
        """With the turned dims in front again."""
        assert by is not None
        return read_BTHD.roll(by.cos.shape[-1], dims=-1)


def row_maker(variant: Variant) -> RowMaker:
    """The treatment of a variant."""
    if not variant.sharing.value_is_key:
        return Separate()
    made: dict[Treatment, RowMaker] = {
        Treatment.DEROTATED: Derotated(),
        Treatment.ON_READ: Raw(),
        Treatment.KEPT: Kept(),
        Treatment.DECOUPLED: Raw(),
    }
    return made[variant.treatment]


def turned_on_read(variant: Variant) -> bool:
    """Whether keys lie in the rows unturned, or have yet to be made, and are turned to their positions when read."""
    return variant.on_read and (variant.latent or variant.sharing.value_is_key)
