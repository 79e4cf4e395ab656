"""Attention of a folded layer: the decode kernel over its rows where that can do it, else the model's own attention
function over strided views of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from twofold.attention.decoding import DecodeMask, decode
from twofold.cache.kept import KeptRows
from twofold.folding.forms import facts_of, stock_class
from twofold.folding.sights import Sight
from twofold.kernels import native
from twofold.kernels.decode_native import MOST_POSITIONS
from twofold.variants.layout import RowLayout

KERNEL_FOR = "sdpa"
"""The attention implementation in whose place the kernel works: eager attention is asked for by who wants weights."""


def decodes(module: Any, query_BHTD: Tensor, rows: KeptRows, layout: RowLayout, sight: Sight) -> bool:
    """Whether this step goes to the native decode kernel."""
    queries, held = query_BHTD.shape[2], rows.heads_BGSW.shape[2]
    return (
        native.AVAILABLE
        and query_BHTD.is_cpu
        and rows.heads_BGSW.is_cpu
        and module.config._attn_implementation == KERNEL_FOR
        and sight.plain
        and queries <= MOST_POSITIONS
        and queries < held
        and query_BHTD.dtype != torch.float64
        and not any(span.width % 8 for span in (layout.key, layout.value, layout.shared_key) if span)
        and not (torch.is_grad_enabled() and (query_BHTD.requires_grad or rows.heads_BGSW.requires_grad))
    )


def decoded(
    query_BHTD: Tensor,
    rows: KeptRows,
    layout: RowLayout,
    sight: Sight,
    scale: float,
    *,
    window: int | None = None,
    frequencies: Tensor | None = None,
    first_position: int = 0,
) -> Tensor:
    """[B, T, H, value dims] by the kernel, which reads each row once."""
    mask = DecodeMask(rows.heads_BGSW.shape[2], sight.starts_B, window, frequencies, first_position)
    return decode(query_BHTD, rows, layout, mask, scale, 0.0)


def attended(
    module: Any,
    query_BHTD: Tensor,
    key_BGSD: Tensor,
    value_BGSD: Tensor,
    mask: Tensor | None,
    *,
    dropout: float | None = None,
    **named: Any,
) -> tuple[Tensor, Tensor | None]:
    """[B, T, H, value dims] and the weights, where the model's attention function gives them.

    `dropout` in training: None for the module's own `attention_dropout`.
    """
    interface: Callable[..., tuple[Tensor, Tensor | None]] = ALL_ATTENTION_FUNCTIONS.get_interface(
        module.config._attn_implementation, stock(module, "eager_attention_forward")
    )
    if dropout is None:
        dropout = module.attention_dropout
    dropout = dropout if module.training else 0.0
    return interface(module, query_BHTD, key_BGSD, value_BGSD, mask, dropout=dropout, **named)


def stock(module: nn.Module, name: str) -> Any:
    """The function `name` of the file in which transformers defines this folded module's own class."""
    return getattr(sys.modules[stock_class(type(module)).__module__], name)


def kept_after(module: Any, cache: Any, heads_BGTW: Tensor, shared_BTW: Tensor | None = None) -> KeptRows:
    """Append rows to the layer's cache; all rows that this step sees."""
    fold = facts_of(module).fold
    return KeptRows(*cache.update(heads_BGTW, shared_BTW, fold.layer))


def mask_over(rows: KeptRows, mask: Any) -> Any:
    """The mask over the rows there are. `generate` makes the first one for all of a static cache, before it is ours."""
    held = rows.heads_BGSW.shape[2]
    wide = isinstance(mask, Tensor) and mask.ndim == 4 and mask.shape[-1] > held
    return mask[..., :held] if wide else mask
