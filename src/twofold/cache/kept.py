"""Rows as they are kept: views of a cache's storages, and how numbers become int8 and come back.

int8 is symmetric: a part of a row x is kept as round(x / s) with s = max|x| / 127, one float32 scale s per row and
head and one per row for the part that all heads share. Each number is then off by at most s / 2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from twofold.kernels import per_token

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int8)
"""What rows can be kept in."""
DTYPES_BY_NAME = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
_LARGEST = 127
_LEAST_SCALE = torch.finfo(torch.float32).tiny


class KeptRows(NamedTuple):
    """Rows of S tokens in the dtype they are kept in; scales only where that is int8. Views, nothing is copied."""

    heads_BGSW: Tensor  # noqa: N815
    shared_BSW: Tensor | None = None  # noqa: N815
    scales_BGS: Tensor | None = None  # noqa: N815
    shared_scales_BS: Tensor | None = None  # noqa: N815

    def to(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Heads [B, G, S, W] and shared part [B, S, W] in a floating `dtype`; the views themselves if they are."""
        heads_BGSW, shared_BSW, scales_BGS, shared_scales_BS = self
        if scales_BGS is None:
            return heads_BGSW.to(dtype), None if shared_BSW is None else shared_BSW.to(dtype)
        heads = _times(heads_BGSW, scales_BGS, dtype)
        if shared_BSW is None or shared_scales_BS is None:
            return heads, None
        return heads, _times(shared_BSW, shared_scales_BS, dtype)


def quantise(part: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers in −127 … 127 (still floating) of a part [..., W], and its float32 scales [...].

    Rows of zeros, and those whose scale would fall below float32's normal numbers, get scale 0. Where a number is not
    finite, its row reads as NaN or infinite. There is no gradient.
    """
    part = part.detach()
    scales = torch.linalg.vector_norm(part, torch.inf, dim=-1, keepdim=True).float().div(_LARGEST)
    scales = torch.threshold(scales, _LEAST_SCALE, 0.0)
    return (part / scales.clamp(min=_LEAST_SCALE)).round_(), scales.squeeze(-1)


def write_quantised(part_BGTW: Tensor, to_BGTW: Tensor, scales_to_BGT: Tensor) -> None:
    """Write `quantise(part)` into int8 `to` and its scales; few rows on a CPU by one call that gives the same bits."""
    part_BGTW = part_BGTW.detach()
    if to_BGTW.is_cpu and per_token.serves(part_BGTW):
        per_token.quantise(part_BGTW, to_BGTW, scales_to_BGT)
        return
    numbers_BGTW, scales_BGT = quantise(part_BGTW)
    scales_to_BGT.copy_(scales_BGT)
    to_BGTW.copy_(numbers_BGTW)


def dtype_of(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The dtype to keep rows in, which may be given by name. Raises ValueError for one that cannot keep them."""
    found = DTYPES_BY_NAME.get(dtype) if isinstance(dtype, str) else dtype
    if dtype is not None and found not in DTYPES:
        raise ValueError(f"rows can be kept in {', '.join(DTYPES_BY_NAME)}, and not in {dtype}")
    return found


def _times(part: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """int8 × scale: the product is rounded once, to `dtype` or to float32 on the way to a narrower one."""
    wide = torch.promote_types(dtype, torch.float32)
    return (part * scales.to(wide).unsqueeze(-1)).to(dtype)
