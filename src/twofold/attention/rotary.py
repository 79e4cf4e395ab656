"""Rotary positions (Su et al., arXiv 2104.09864), half-split pairing: of r turned dims, i turns with i + r/2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from twofold.kernels.rotary import turn


class Rotation(NamedTuple):
    """Cosines and sines of the angles at some positions: each [B or 1, T, 1, r], for tensors [B, T, heads, D], r ≤ D.

    Both dims of a pair have theirs, the sine with the sign that it has for that dim: what a dim gets from its partner.
    """

    cos: Tensor
    sin: Tensor


def frequencies(
    rotated_dims: int, base: float, device: torch.device | None = None, exponents: Sequence[float] = ()
) -> Tensor:
    """base^(−2i/r) for i < r/2, in float64: radians per position. `exponents`, if given, are used for 2i/r."""
    if exponents:
        return base ** -torch.tensor(exponents, dtype=torch.float64, device=device)
    even = torch.arange(0, rotated_dims, 2, dtype=torch.float64, device=device) / rotated_dims
    return base**-even


def rotation(
    positions_BT: Tensor, rotated_dims: int, base: float, dtype: torch.dtype, exponents: Sequence[float] = ()
) -> Rotation:
    """Angles p · base^(−2i/r) for i < r/2, or with these `exponents` for 2i/r.

    They are computed in float64: in float32 an angle near position 100,000 is off by 0.004 radians, and outputs would
    depend on absolute positions.
    """
    turns = frequencies(rotated_dims, base, positions_BT.device, exponents)
    angles = positions_BT[..., None, None].to(torch.float64) * torch.cat([-turns, turns])
    return Rotation(angles.cos().to(dtype), angles.sin().to(dtype))


def rotate(x_BTHD: Tensor, by: Rotation) -> Tensor:
    """Turn the first r dims, pair by pair, by their position's angle; the result has x's dtype."""
    return turn(x_BTHD, by.cos, by.sin)


def rotate_back(x_BTHD: Tensor, by: Rotation) -> Tensor:
    """The inverse of `rotate`: turn by the negative angle."""
    return turn(x_BTHD, by.cos, by.sin, -1)
