"""The score paths: queries against the keys and values that lie in rows.

Two paths, beside the decode steps that a kernel takes (`decoding.py`). One query position lays the query heads of a
group out as query positions of their key/value head and runs torch's fused attention without copying a row. Everything
else goes through transformers' attention interface, so that whatever it offers (SDPA, flash and flex attention, eager)
works here. Soft caps and sinks, which SDPA does not have, are written out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from twofold.attention.rotary import Rotation, rotate
from twofold.cache.kept import KeptRows
from twofold.kernels.decode import describe
from twofold.variants.layout import RowLayout


class Scoring(NamedTuple):
    """Scores are q·k · d^−p with p = `exponent` and d the dims of a key; `softcap` c > 0 makes them c·tanh(s / c)."""

    exponent: float = 0.5
    softcap: float = 0.0

    def scale(self, key_dim: int) -> float:
        """The factor on q·k."""
        return key_dim**-self.exponent


def keys_and_values(layout: RowLayout, rows: KeptRows, row_rotation: Rotation | None = None) -> tuple[Tensor, Tensor]:
    """Keys and values [B, G, S, ·] of rows in a floating dtype: views, which overlap where the layout shares.

    Copies are keys only: where part of them lies in what all heads share, and where `row_rotation`, at the positions
    of the rows, turns them.
    """
    key_BGSD, value_BGSD = rows.heads_BGSW[..., slice(*layout.key)], rows.heads_BGSW[..., slice(*layout.value)]
    if layout.shared_key is not None:
        assert rows.shared_BSW is not None, "the layout has a part that all heads share"
        shared_B1SD = rows.shared_BSW[:, None, :, slice(*layout.shared_key)]
        key_BGSD = torch.cat([key_BGSD, shared_B1SD.expand(*key_BGSD.shape[:3], -1)], dim=-1)
    if row_rotation is not None:
        key_BGSD = rotate(key_BGSD.transpose(1, 2), row_rotation).transpose(1, 2)
    return key_BGSD, value_BGSD


def attend(
    module: nn.Module,
    query_BHTD: Tensor,
    key_BGSD: Tensor,
    value_BGSD: Tensor,
    mask: Tensor | None,
    implementation: str,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks_H: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """softmax(scale · Q Kᵀ) V per head, arXiv 2606.04032 equation 1: [B, T, H, value dims], and the weights if eager.

    `mask` is what transformers' mask functions make: None is causal where T > 1 and everything where T = 1, else
    [B, 1, T, S]. `module` holds `num_key_value_groups` = H / G and `is_causal`. `scale` None is D^−½. `sinks_H` are
    scores that take their share of the softmax and read nothing.
    """
    scale = query_BHTD.shape[-1] ** -0.5 if scale is None else scale
    others: dict[str, Any] = {"softcap": softcap} if softcap else {}
    others |= {} if sinks_H is None else {"s_aux": sinks_H}
    if implementation == "sdpa" and others:
        implementation = "eager"
    if implementation == "sdpa" and query_BHTD.shape[2] == 1:
        return _decode(query_BHTD, key_BGSD, value_BGSD, mask, scale), None
    interface = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager)
    value_dims = value_BGSD.shape[-1]
    if implementation == "sdpa" and value_dims < key_BGSD.shape[-1]:  # else torch writes all scores out
        value_BGSD = F.pad(value_BGSD, (0, key_BGSD.shape[-1] - value_dims))
    read_BTHD, weights = interface(
        module, query_BHTD, key_BGSD, value_BGSD, mask, scaling=scale, dropout=0.0, **others, **kwargs
    )
    return read_BTHD[..., :value_dims], weights


def _decode(query_BH1D: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, mask_B11S: Tensor | None, scale: float) -> Tensor:
    groups = key_BGSD.shape[1]
    query_BGHD = query_BH1D.unflatten(1, (groups, -1)).squeeze(3)
    read_BGHD = F.scaled_dot_product_attention(query_BGHD, key_BGSD, value_BGSD, attn_mask=mask_B11S, scale=scale)
    return read_BGHD.flatten(1, 2).unsqueeze(1)


def eager(
    module: nn.Module,
    query_BHTD: Tensor,
    key_BGSD: Tensor,
    value_BGSD: Tensor,
    mask: Tensor | None,
    scaling: float,
    softcap: float = 0.0,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """The same by plain matrix products, with the weights [B, H, T, S].

    `mask` is added to the scores, or, where it is boolean, says what is seen. `s_aux` [H] are the sinks' scores.
    """
    if mask is None and module.is_causal and query_BHTD.shape[2] > 1:
        mask = _causal(query_BHTD)
    grouped_BGHTD = query_BHTD.unflatten(1, (key_BGSD.shape[1], -1))
    scores_BHTS = (grouped_BGHTD @ key_BGSD[:, :, None].mT).flatten(1, 2) * scaling
    if softcap:
        scores_BHTS = softcap * torch.tanh(scores_BHTS / softcap)
    if mask is not None:
        # The lowest number and not −∞: padding that sees nobody would read NaN, and hand it to the next layer's rows.
        least, seen = torch.finfo(scores_BHTS.dtype).min, mask.dtype == torch.bool
        scores_BHTS = scores_BHTS.masked_fill(~mask, least) if seen else scores_BHTS + mask
    weights_BHTS = _softmax(scores_BHTS, s_aux)
    read_BGHTD = weights_BHTS.unflatten(1, (key_BGSD.shape[1], -1)) @ value_BGSD[:, :, None]
    return read_BGHTD.flatten(1, 2).transpose(1, 2), weights_BHTS


def _softmax(scores_BHTS: Tensor, sinks_H: Tensor | None) -> Tensor:
    """Over the last dim; with sinks one more score per head takes part, and its weight is dropped."""
    if sinks_H is None:
        return scores_BHTS.softmax(dim=-1)
    sinks_BHT1 = sinks_H.to(scores_BHTS.dtype)[:, None, None].expand(*scores_BHTS.shape[:3], 1)
    return torch.cat([scores_BHTS, sinks_BHT1], dim=-1).softmax(dim=-1)[..., :-1]


def _causal(query_BHTD: Tensor) -> Tensor:
    length = query_BHTD.shape[2]
    return query_BHTD.new_full((length, length), -torch.inf).triu(1)


def describe_path(device: str) -> str:
    """Which paths a model on `device` takes by default, and why, in a sentence or two."""
    if device == "cpu":
        return f"prefill by torch SDPA over views of the rows; {describe()}"
    return (
        f"torch SDPA on {device} over views of the rows; a decode step reads each row with the query heads of its "
        f"group as query positions, without copies. torch {torch.__version__} chooses the kernel"
    )
