"""Decode steps: few query positions against rows that are read as the cache keeps them, once for both roles."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from twofold.cache.kept import KeptRows
from twofold.kernels import direct, native
from twofold.kernels.decode import decode_attention
from twofold.kernels.decode_native import MOST_POSITIONS
from twofold.variants.layout import RowLayout


class DecodeMask(NamedTuple):
    """What a decode step sees: rows from `starts_B` (int64) on, all where it is None, causal among its own tokens."""

    starts_B: Tensor | None = None  # noqa: N815


def decode_mask(
    x_BTM: Tensor, attention_mask: Tensor | None, cache: Cache | None, layout: RowLayout
) -> DecodeMask | None:
    """The mask of a step that the native kernel can take; None for any other, which needs a mask tensor.

    `attention_mask` [B, S] over cached and new positions, as for the model.
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
    if attention_mask is None:
        return DecodeMask()
    if attention_mask.ndim != 2 or torch.compiler.is_compiling():
        return None
    seen_BS = attention_mask.bool()
    if bool(seen_BS.all()):
        return DecodeMask()
    padded_left = bool((seen_BS[:, 1:] >= seen_BS[:, :-1]).all())
    return DecodeMask((~seen_BS).sum(dim=1)) if padded_left else None


def decode(query_BHTD: Tensor, rows: KeptRows, layout: RowLayout, mask: DecodeMask) -> Tensor:
    """What each query head reads, [B, T, H, D]; T of the rows are the queries' own, and come last."""
    read_BHTD = decode_attention(
        query_BHTD,
        rows.heads_BGSW,
        rows.shared_BSW,
        key=layout.key,
        value=layout.value,
        shared_key=layout.shared_key,
        starts_B=mask.starts_B,
        scales_BGS=rows.scales_BGS,
        shared_scales_BS=rows.shared_scales_BS,
    )
    return read_BHTD.transpose(1, 2)
