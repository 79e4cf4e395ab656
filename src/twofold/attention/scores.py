"""The score paths: queries against the keys and values that lie in rows.

Two paths, beside the decode steps that a kernel takes (`decoding.py`). One query position lays the query heads of a
group out as query positions of their key/value head and runs torch's fused attention without copying a row. Everything
else goes through transformers' attention interface, so that whatever it offers (SDPA, flash and flex attention, eager)
works here.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from twofold.kernels.decode import describe
from twofold.variants.layout import RowLayout


def keys_and_values(layout: RowLayout, rows_BGSW: Tensor) -> tuple[Tensor, Tensor]:
    """Views of the rows: keys and values [B, G, S, D]. They overlap where the layout shares."""
    assert layout.shared_key is None, "a key of two slices needs a path that adds their scores"
    return rows_BGSW[..., slice(*layout.key)], rows_BGSW[..., slice(*layout.value)]


def attend(
    module: nn.Module,
    query_BHTD: Tensor,
    key_BGSD: Tensor,
    value_BGSD: Tensor,
    mask: Tensor | None,
    implementation: str,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """softmax(Q Kᵀ / √D) V per head, arXiv 2606.04032 equation 1: [B, T, H, D], and the weights if eager.

    `mask` is what transformers' mask functions make: None is causal where T > 1 and everything where T = 1, else
    [B, 1, T, S]. `module` holds `num_key_value_groups` = H / G and `is_causal`.
    """
    if query_BHTD.shape[2] == 1 and implementation == "sdpa":
        return _decode(query_BHTD, key_BGSD, value_BGSD, mask), None
    interface = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager)
    scaling = query_BHTD.shape[-1] ** -0.5
    return interface(module, query_BHTD, key_BGSD, value_BGSD, mask, scaling=scaling, dropout=0.0, **kwargs)


def _decode(query_BH1D: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, mask_B11S: Tensor | None) -> Tensor:
    groups = key_BGSD.shape[1]
    query_BGHD = query_BH1D.unflatten(1, (groups, -1)).squeeze(3)
    read_BGHD = F.scaled_dot_product_attention(query_BGHD, key_BGSD, value_BGSD, attn_mask=mask_B11S)
    return read_BGHD.flatten(1, 2).unsqueeze(1)


def eager(
    module: nn.Module,
    query_BHTD: Tensor,
    key_BGSD: Tensor,
    value_BGSD: Tensor,
    mask: Tensor | None,
    scaling: float,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """The same by plain matrix products, with the weights [B, H, T, S]; `mask` is added to the scores."""
    if mask is None and module.is_causal and query_BHTD.shape[2] > 1:
        mask = _causal(query_BHTD)
    grouped_BGHTD = query_BHTD.unflatten(1, (key_BGSD.shape[1], -1))
    scores_BHTS = (grouped_BGHTD @ key_BGSD[:, :, None].mT).flatten(1, 2) * scaling
    if mask is not None:
        scores_BHTS = scores_BHTS + mask
    weights_BHTS = scores_BHTS.softmax(dim=-1)
    read_BGHTD = weights_BHTS.unflatten(1, (key_BGSD.shape[1], -1)) @ value_BGSD[:, :, None]
    return read_BGHTD.flatten(1, 2).transpose(1, 2), weights_BHTS


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
