"""Turning vectors by their positions' angles: by the native library for few of them, and by torch operations."""

from __future__ import annotations

import torch
from torch import Tensor

from twofold.kernels import per_token


def turn(x_BTHD: Tensor, cos: Tensor, sin: Tensor, sign: int = 1) -> Tensor:
    """x · cos + sign · partner · sin over the first r dims, where dim i's partner is i ± r/2; the others stay.

    `cos` and `sin` are [B or 1, T, 1, r], r even and at most D; sines have the sign that they have for the dim they go
    to, and `sign` −1 turns back. The result has x's dtype, whatever the angles have.
    """
    if per_token.serves(x_BTHD, cos, sin) and x_BTHD.dim() == cos.dim() == 4 and cos.shape == sin.shape:
        batch, positions, _, dims = x_BTHD.shape
        sequences, angles, heads, turned = cos.shape
        fits = heads == 1 and angles == positions and (sequences == 1 or sequences == batch)
        if fits and 0 < turned <= dims and turned % 2 == 0:
            return per_token.turn(x_BTHD, cos, sin, sign)
    return _plain(x_BTHD, cos, sin, sign)


def _plain(x_BTHD: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    turned = cos.shape[-1]
    if turned < x_BTHD.shape[-1]:
        return torch.cat([_plain(x_BTHD[..., :turned], cos, sin, sign), x_BTHD[..., turned:]], dim=-1)
    partners_BTHD = x_BTHD.roll(turned // 2, dims=-1)
    return torch.addcmul(x_BTHD * cos, partners_BTHD, sin, value=sign).to(x_BTHD.dtype)
