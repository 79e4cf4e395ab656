"""What 1/√d does: how far scores spread without it, and what becomes of the softmax and its gradient."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from twofold.evaluation.attention_entropy import tally
from twofold.explain.activations import LayerActivations, Scored

Measures = dict[str, float | list[float]]
MEASURES = ("entropy", "relative_entropy", "saturated", "gradient")


def scale_measures(activations: LayerActivations) -> Measures:
    """The spread of q·k, and the softmax of q·k / √d and of q·k itself; nothing for a recurrence, which has none.

    q and k are as the layer compares them, turned to their positions. By name the mean over query heads, in `_heads`
    [H] each:

    - `variance` of q·k over all pairs that the mask leaves, of all texts, and `variance_per_dim`, the same divided by
      `dims` = d: 1 for q and k of independent components with mean 0 and variance 1 (Vaswani et al. 2017, arXiv
      1706.03762, footnote 4);
    - `variance_within`: the variance over the positions that one query sees, the mean over queries. The softmax knows
      of nothing else: a number added to all scores of a query changes no weight.

    Of both softmaxes, `_scaled` and `_unscaled`, means over texts and queries that see two positions or more:
    `entropy` (nats), `relative_entropy`, `saturated` as in `attention_patterns`, and `gradient`, the Frobenius norm of
    ∂w/∂scores = diag(w) − w wᵀ, which is 0 where the softmax has decided and at most ½. Soft caps, terms and sinks are
    left out: where the layer has none, and its scale is 1/√d, the scaled softmax is its own.
    """
    scored = activations.scored
    if scored is None:
        return {}
    rows = [_of_head(scored, head) for head in range(scored.q_BHTD.shape[1])]
    found: Measures = {"dims": float(scored.dims)}
    for name in rows[0]:
        values = [row[name] for row in rows]
        found |= {name: math.fsum(values) / len(values), f"{name}_heads": values}
    return found


def _of_head(scored: Scored, head: int) -> dict[str, float]:
    group = scored.q_BHTD.shape[1] // scored.k_BGTD.shape[1]
    products_BTT = scored.q_BHTD[:, head].double() @ scored.k_BGTD[:, head // group].double().mT
    seen_BTT = scored.seen_BTT.expand_as(products_BTT)
    counted_BT = seen_BTT.sum(-1) >= 2
    variance = float(products_BTT[seen_BTT].var(correction=0))
    found = {
        "variance": variance,
        "variance_per_dim": variance / scored.dims,
        "variance_within": float(_within(products_BTT, seen_BTT)[counted_BT].mean()),
    }
    for name, scale in (("scaled", scored.dims**-0.5), ("unscaled", 1.0)):
        weights_BTT = (products_BTT * scale).masked_fill(~seen_BTT, -math.inf).softmax(-1).nan_to_num()
        values = _softmax_measures(weights_BTT, seen_BTT, counted_BT)
        found |= {f"{measure}_{name}": value for measure, value in zip(MEASURES, values, strict=True)}
    return found


def _within(products_BTT: Tensor, seen_BTT: Tensor) -> Tensor:
    """[B, T]: the variance of a query's products over the positions that it sees."""
    count_BT1 = seen_BTT.sum(-1, keepdim=True).clamp(min=1)
    mean_BT1 = (products_BTT * seen_BTT).sum(-1, keepdim=True) / count_BT1
    return (((products_BTT - mean_BT1).square() * seen_BTT).sum(-1, keepdim=True) / count_BT1).squeeze(-1)


def _softmax_measures(weights_BTT: Tensor, seen_BTT: Tensor, counted_BT: Tensor) -> list[float]:
    """In the order of `MEASURES`."""
    pairs = zip(weights_BTT, seen_BTT.sum(-1), strict=True)
    totals = torch.stack([tally(weights_TT[None], choices_T) for weights_TT, choices_T in pairs]).sum(0)
    square_BT, cube_BT = weights_BTT.square().sum(-1), weights_BTT.pow(3).sum(-1)
    # ‖diag(w) − w wᵀ‖² = Σw² − 2 Σw³ + (Σw²)²
    gradient_BT = (square_BT - 2 * cube_BT + square_BT.square()).clamp(min=0).sqrt()
    return [*(totals[:3] / totals[3]).tolist(), float(gradient_BT[counted_BT].mean())]
