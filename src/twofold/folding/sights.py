"""What one pass of a folded model sees: read from transformers' mask once, and not in each layer again."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from twofold.kernels.decode_native import MOST_POSITIONS

UNKNOWN = -(2**40)
"""The position of a row of which none is known."""


class Sight(NamedTuple):
    """What queries see of S rows.

    `plain`: each sees the rows from its sequence's start on, up to its own. `starts_B` are the starts, None where all
    are 0. `first_B` is the position of row 0 of each sequence; None where positions are not known or have gaps.
    """

    plain: bool
    starts_B: Tensor | None = None  # noqa: N815
    first_B: Tensor | None = None  # noqa: N815


class Sights:
    """The sight of the newest pass, so that its layers share it.

    Masks and positions are told apart by identity and by how often they were written to. What is remembered changes in
    one assignment, since several threads may run one model.
    """

    def __init__(self) -> None:
        self._newest: tuple[_Asked, Sight] | None = None

    def of(self, mask: Tensor | None, positions_BT: Tensor | None, queries: int, rows: int) -> Sight:
        """The sight of `queries` positions that come last of `rows`."""
        if torch.compiler.is_compiling():
            return _sight(mask, positions_BT, queries, rows)
        asked = _Asked(mask, positions_BT, (_writes(mask), _writes(positions_BT), queries, rows))
        newest = self._newest
        if newest is not None and asked.is_like(newest[0]):
            return newest[1]
        sight = _sight(mask, positions_BT, queries, rows)
        self._newest = asked, sight
        return sight


class _Asked(NamedTuple):
    mask: Tensor | None
    positions: Tensor | None
    numbers: tuple[int, ...]

    def is_like(self, other: _Asked) -> bool:
        """The very same tensors, unchanged since, and the same numbers."""
        same = self.mask is other.mask and self.positions is other.positions
        return same and self.numbers == other.numbers


def _writes(tensor: Tensor | None) -> int:
    """How often a tensor was written to; a tensor of inference mode does not count, and is never the same twice."""
    if tensor is None:
        return 0
    return next(_UNLIKE) if tensor.is_inference() else tensor._version


_UNLIKE = count(-1, -1)


def _sight(mask: Tensor | None, positions_BT: Tensor | None, queries: int, rows: int) -> Sight:
    traced = torch.compiler.is_compiling()
    if mask is None:  # transformers leaves it out where each query sees all rows up to its own
        return Sight(queries in (1, rows), None, _first(positions_BT, None, queries, rows))
    if traced or not isinstance(mask, Tensor) or mask.ndim != 4 or mask.shape[1] != 1 or mask.shape[-1] != rows:
        return Sight(plain=False, first_B=_first(positions_BT, None, queries, rows))
    newest_BTS = mask[:, 0, -MOST_POSITIONS:]
    if newest_BTS.dtype != torch.bool:
        newest_BTS = newest_BTS > torch.finfo(mask.dtype).min / 2
    starts_B = (~newest_BTS[:, -1]).sum(-1)
    row_S = torch.arange(rows, device=mask.device)
    own_T = row_S[rows - newest_BTS.shape[1] :]
    expected_BTS = (row_S >= starts_B[:, None, None]) & (row_S <= own_T[:, None])
    plain = queries <= MOST_POSITIONS and bool((newest_BTS == expected_BTS).all())
    first_B = _first(positions_BT, starts_B, queries, rows)
    return Sight(plain, starts_B if bool(starts_B.any()) else None, first_B)


def _first(positions_BT: Tensor | None, starts_B: Tensor | None, queries: int, rows: int) -> Tensor | None:
    """The position of row 0 in each sequence, counted back from the newest, `UNKNOWN` where that is padding too; None
    where the positions of the queries, but for padding before `starts_B`, are not one after the other.
    """
    if positions_BT is None:
        return None
    place_T = torch.arange(rows - queries, rows, device=positions_BT.device)
    first_B = positions_BT[:, -1] - (rows - 1)
    if torch.compiler.is_compiling():
        return first_B
    fits_BT = positions_BT == first_B[:, None] + place_T
    if starts_B is not None:
        fits_BT = fits_BT | (place_T < starts_B[:, None])
        first_B = torch.where(starts_B < rows, first_B, UNKNOWN)
    return first_B if bool(fits_BT.all()) else None
