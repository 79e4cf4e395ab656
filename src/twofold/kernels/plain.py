"""Decode attention over rows by torch operations: any dtype, any device, with gradients.

Where a key is one slice of its row and the scores need nothing but a mask, torch's fused attention reads the rows as
they are, with the query heads of a group laid out as query positions. Everything else is written out, as are steps
that forward differentiation or vmap look at, which have no rule for torch's fused attention.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from twofold.kernels import direct
from twofold.kernels.step import Step


def attend(step: Step) -> Tensor:
    """The output [B, H, T, value width] in the query's dtype. `step` must have been checked."""
    first = _first_row(step)
    dtype = _dtype(step)
    visible_BTS = _visible(step, first)
    heads_BGSW = _as_floats(step.heads[:, :, first:], _from(step.scales, 2, first), dtype)
    shared_BSW = None
    if step.shared is not None:
        shared_BSW = _as_floats(step.shared[:, first:], _from(step.shared_scales, 1, first), dtype)
    if visible_BTS is not None and (step.starts is not None or step.lengths is not None):
        # A weight of 0 does not silence a row of NaN or infinity, and rows that nobody sees may hold anything.
        unseen_BS1 = ~visible_BTS.any(dim=1)[..., None]
        heads_BGSW = heads_BGSW.masked_fill(unseen_BS1[:, None], 0)
        shared_BSW = None if shared_BSW is None else shared_BSW.masked_fill(unseen_BS1, 0)
    value_BGSD = heads_BGSW[..., slice(*step.value)]
    key_BGSD = _keys(step, heads_BGSW, shared_BSW, first)
    groups = heads_BGSW.shape[1]
    query_BGMD = step.query.to(dtype).unflatten(1, (groups, step.query.shape[1] // groups)).flatten(2, 3)
    read = _written_out if step.softcap or direct.watched() else _fused
    out_BGMD = read(step, query_BGMD, key_BGSD, value_BGSD, visible_BTS)
    return (
        out_BGMD.unflatten(2, (step.query.shape[1] // groups, step.query.shape[2])).flatten(1, 2).to(step.query.dtype)
    )


def _dtype(step: Step) -> torch.dtype:
    """What to compute in: as the tensors are where they agree and no step is written out, else at least float32."""
    query, rows = step.query.dtype, step.heads.dtype
    if torch.float64 in (query, rows):
        return torch.float64
    return query if query == rows and not step.softcap and step.frequencies is None else torch.float32


def _as_floats(part: Tensor, scales: Tensor | None, dtype: torch.dtype) -> Tensor:
    return part.to(dtype) if scales is None else part.to(dtype) * scales[..., None].to(dtype)


def _from(tensor: Tensor | None, dim: int, first: int) -> Tensor | None:
    return None if tensor is None else tensor.narrow(dim, first, tensor.shape[dim] - first)


def _first_row(step: Step) -> int:
    """Where a window begins that is the same for all sequences; else 0."""
    if step.window is None or step.lengths is not None:
        return 0
    return max(0, step.heads.shape[2] - (step.query.shape[2] - 1) - step.window)


def _visible(step: Step, first: int) -> Tensor | None:
    """Which rows from `first` on each query sees: [B or 1, T, S], or None where all see all."""
    positions, rows = step.query.shape[2], step.heads.shape[2]
    limited = step.starts is not None or step.lengths is not None
    if positions == 1 and not limited and (step.window is None or first == rows - step.window or rows <= step.window):
        return None
    device = step.query.device
    row_S = torch.arange(first, rows, device=device)
    length_B = torch.full((1,), rows, device=device) if step.lengths is None else step.lengths
    last_BT = length_B[:, None] - torch.arange(positions - 1, -1, -1, device=device)
    visible_BTS = row_S < last_BT[..., None]
    if step.starts is not None:
        visible_BTS = visible_BTS & (row_S >= step.starts[:, None, None])
    if step.window is not None:
        visible_BTS = visible_BTS & (row_S >= last_BT[..., None] - step.window)
    return visible_BTS


def _keys(step: Step, heads_BGSW: Tensor, shared_BSW: Tensor | None, first: int) -> Tensor:
    key_BGSD = heads_BGSW[..., slice(*step.key)]
    if shared_BSW is not None and step.shared_key is not None:
        shared_B1SD = shared_BSW[:, None, :, slice(*step.shared_key)]
        key_BGSD = torch.cat([key_BGSD, shared_B1SD.expand(*key_BGSD.shape[:3], -1)], dim=-1)
    return key_BGSD if step.frequencies is None else _turned(step, key_BGSD, first)


def _turned(step: Step, key_BGSD: Tensor, first: int) -> Tensor:
    """Keys with their first dims turned to the row's position, pairs (i, i + r/2); angles in float64."""
    assert step.frequencies is not None
    position_BS = torch.arange(first, first + key_BGSD.shape[2], device=key_BGSD.device)[None] + step.first_position
    if step.starts is not None:
        position_BS = position_BS - step.starts[:, None]
    angle_B1SR = position_BS[:, None, :, None].double() * step.frequencies.double()
    cos, sin = angle_B1SR.cos().to(key_BGSD.dtype), angle_B1SR.sin().to(key_BGSD.dtype)
    pairs = len(step.frequencies)
    one, two, rest = key_BGSD.split([pairs, pairs, key_BGSD.shape[-1] - 2 * pairs], dim=-1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin, rest], dim=-1)


def _fused(step: Step, query_BGMD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, visible_BTS: Tensor | None) -> Tensor:
    if visible_BTS is None:
        return F.scaled_dot_product_attention(query_BGMD, key_BGSD, value_BGSD, scale=step.scale)
    blind_BT1 = ~visible_BTS.any(dim=-1, keepdim=True)
    mask_B1MS = _per_query(visible_BTS | blind_BT1, query_BGMD)
    read = F.scaled_dot_product_attention(query_BGMD, key_BGSD, value_BGSD, attn_mask=mask_B1MS, scale=step.scale)
    return read.masked_fill(_per_query(blind_BT1, query_BGMD), 0)


def _written_out(
    step: Step, query_BGMD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, visible_BTS: Tensor | None
) -> Tensor:
    scores_BGMS = query_BGMD @ key_BGSD.mT * step.scale
    if step.softcap:
        scores_BGMS = step.softcap * torch.tanh(scores_BGMS / step.softcap)
    if visible_BTS is None:
        return scores_BGMS.softmax(dim=-1) @ value_BGSD
    blind_BT1 = ~visible_BTS.any(dim=-1, keepdim=True)
    seen_B1MS = _per_query(visible_BTS | blind_BT1, query_BGMD)
    weights_BGMS = scores_BGMS.masked_fill(~seen_B1MS, -torch.inf).softmax(dim=-1)
    return (weights_BGMS @ value_BGSD).masked_fill(_per_query(blind_BT1, query_BGMD), 0)


def _per_query(of_BTX: Tensor, query_BGMD: Tensor) -> Tensor:
    """[B or 1, T, X] for every query of a group: [B or 1, 1, M = (H / G) · T, X]."""
    positions = of_BTX.shape[1]
    return of_BTX.repeat(1, query_BGMD.shape[2] // positions, 1)[:, None]
