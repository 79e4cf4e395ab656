"""Decode steps: few query positions against rows that are read as the cache keeps them, once for both roles."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from twofold.cache.kept import KeptRows
from twofold.kernels import direct, native
from twofold.kernels.decode import decode_checked
from twofold.kernels.decode_native import MOST_POSITIONS
from twofold.kernels.step import Step
from twofold.variants.layout import RowLayout


class DecodeMask(NamedTuple):
    """What a decode step sees of `rows` tokens: those from `starts_B` (int64) on, all where it is None, and its own
    causally.

    `window`: of these, only the newest so many. `frequencies` [r/2] turn keys that lie in rows unturned; the first
    token that is seen then stands at `first_position`.
    """

    rows: int
    starts_B: Tensor | None = None  # noqa: N815
    window: int | None = None
    frequencies: Tensor | None = None
    first_position: int = 0


def decode_mask(
    x_BTM: Tensor,
    attention_mask: Tensor | None,
    cache: Cache | None,
    layout: RowLayout,
    *,
    positions_BT: Tensor | None = None,
    frequencies: Tensor | None = None,
    windows: bool = False,
) -> DecodeMask | None:
    """The mask of a step that the native kernel can take; None for any other, which needs a mask tensor.

    `attention_mask` [B, S] over cached and new positions, as for the model. With `frequencies` the kernel turns keys,
    and the new tokens' `positions_BT` tell those of the rows. `windows`: some layers have dropped rows.
    """
    if (
        cache is None
        or not (native.AVAILABLE and x_BTM.is_cpu and x_BTM.dtype != torch.float64)
        or any(span.width % 8 for span in (layout.key, layout.value, layout.shared_key) if span)
        or cache.offloading
        or cache.get_seq_length() == 0  # asked first: a compiled prefill then takes prompts of any length
        or x_BTM.shape[1] > MOST_POSITIONS
        or (torch.is_grad_enabled() and x_BTM.requires_grad)
        or direct.watched()
    ):
        return None
    rows = cache.get_seq_length() + x_BTM.shape[1]
    starts_B = None
    if attention_mask is not None:
        if attention_mask.ndim != 2 or torch.compiler.is_compiling():
            return None
        seen_BS = attention_mask.bool()
        if not bool(seen_BS.all()):
            if not bool((seen_BS[:, 1:] >= seen_BS[:, :-1]).all()):  # not padded on the left
                return None
            starts_B = (~seen_BS).sum(dim=1)
    if frequencies is None:
        return DecodeMask(rows, starts_B)
    if (windows and starts_B is not None) or positions_BT is None or torch.compiler.is_compiling():
        return None  # each sequence's first row would stand elsewhere
    first_B = positions_BT[:, -1] - (rows - 1) + (0 if starts_B is None else starts_B)
    first = int(first_B[0])
    return DecodeMask(rows, starts_B, None, frequencies, first) if bool((first_B == first).all()) else None


def decode(
    query_BHTD: Tensor, rows: KeptRows, layout: RowLayout, mask: DecodeMask, scale: float, softcap: float
) -> Tensor:
    """What each query head reads, [B, T, H, D]; T of the rows are the queries' own, and come last."""
    starts_B, first = mask.starts_B, mask.first_position
    if mask.window is not None:
        dropped = mask.rows - rows.heads_BGSW.shape[2]
        starts_B = None if starts_B is None else (starts_B - dropped).clamp(min=0)
        first += dropped
    step = Step(
        query=query_BHTD,
        heads=rows.heads_BGSW,
        shared=rows.shared_BSW,
        key=layout.key,
        value=layout.value,
        shared_key=layout.shared_key,
        scale=scale,
        softcap=softcap,
        starts=starts_B,
        lengths=None,
        window=mask.window,
        scales=rows.scales_BGS,
        shared_scales=rows.shared_scales_BS,
        frequencies=mask.frequencies,
        first_position=first,
    )
    return decode_checked(step).transpose(1, 2)
