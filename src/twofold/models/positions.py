"""Where tokens stand: counted from a mask, and looked up in a table of learned positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def counted(x_BTM: Tensor, attention_mask: Tensor | None, cached: int = 0) -> Tensor:
    """The positions of T tokens behind `cached` ones, [B or 1, T]: they count the tokens that are not padding.

    `attention_mask` [B, S] covers cached and new ones; raises ValueError for one that does not. One of other
    dimensions says nothing about padding.
    """
    new = x_BTM.shape[1]
    if attention_mask is None or attention_mask.ndim != 2:
        return torch.arange(cached, cached + new, device=x_BTM.device)[None]
    if attention_mask.shape[1] != cached + new:
        there = f"{cached} cached and {new} new ones: it must cover both" if cached else f"{new}: it must cover all"
        raise ValueError(f"attention_mask covers {attention_mask.shape[1]} positions, and there are {there}")
    return (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)[:, -new:]


def looked_up(table: nn.Embedding, positions_BT: Tensor, cached: int = 0, offset: int = 0) -> Tensor:
    """Learned positions [B, T, M], that of the first position in the table's row `offset`.

    Raises ValueError for a position that the table does not have.
    """
    limit = table.num_embeddings - offset
    # Reading the maximum waits for an accelerator, so there it is read only where lengths make it possible.
    possible = cached + positions_BT.shape[1] > limit or positions_BT.device.type == "cpu"
    if possible and int(positions_BT.max()) >= limit:
        raise ValueError(
            f"position {int(positions_BT.max())} is past the {limit} learned positions of this model: shorten the "
            "text, or train a model with rotary positions"
        )
    return table(positions_BT + offset if offset else positions_BT)
