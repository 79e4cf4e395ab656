"""Rotary positions (Su et al., arXiv 2104.09864), half-split pairing: dim i turns with dim i + D/2."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rotation(NamedTuple):
    """Cosines and sines of the angles at some positions: each [B or 1, T, 1, D], for tensors [B, T, heads, D].

    Both dims of a pair have theirs, the sine with the sign that it has for that dim: what a dim gets from its partner.
    """

    cos: Tensor
    sin: Tensor


def rotation(positions_BT: Tensor, head_dim: int, base: float, dtype: torch.dtype) -> Rotation:
    """Angles p · base^(−2i/D) for i < D/2.

    They are computed in float64: in float32 an angle near position 100,000 is off by 0.004 radians, and outputs would
    depend on absolute positions.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions_BT.device) / head_dim
    angles = positions_BT[..., None, None].to(torch.float64) * base**-exponents
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return Rotation(torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1))


def rotate(x_BTHD: Tensor, by: Rotation) -> Tensor:
    """Turn every pair of dims by its position's angle; the result has x's dtype, whatever the angles have."""
    return _turned(x_BTHD, by, 1)


def rotate_back(x_BTHD: Tensor, by: Rotation) -> Tensor:
    """The inverse of `rotate`: turn by the negative angle."""
    return _turned(x_BTHD, by, -1)


def _turned(x_BTHD: Tensor, by: Rotation, sign: int) -> Tensor:
    partners_BTHD = x_BTHD.roll(x_BTHD.shape[-1] // 2, dims=-1)
    return torch.addcmul(x_BTHD * by.cos, partners_BTHD, by.sin, value=sign).to(x_BTHD.dtype)
