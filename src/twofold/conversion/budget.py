"""How many numbers per token each layer may keep under one total, and which layers to convert.

Losses are predictions, one for each layer and number of dims, in any unit that adds up over layers; a caller may weight
a layer's by what it costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def allocate(losses: Sequence[Sequence[float]], total: int, step: int, limit: int) -> tuple[int, ...]:
    """Dims of every layer, so that the losses' sum is the least with no more than `total` dims in all layers.

    `losses[l][i]` is what layer l loses with i·`step` dims, for all i·step < `limit`; what stands after those is not
    read. `limit` dims, 2·G·D of a layer with G key/value heads, leave a layer as it is: loss 0. No layer gets 0 dims.
    Losses may be convex in the dims or not, and may even rise.

    The result is exact, not greedy: best sums over the first layers for every number of spent dims (multiple-choice
    knapsack by dynamic programming; Kellerer, Pferschy & Pisinger 2004, "Knapsack Problems", chapter 11), in layers ·
    total · limit / step operations on units of gcd(step, limit) dims. Among equal sums the one with fewer dims in all
    layers is taken.

    Raises ValueError for losses that are missing or no numbers, and for a total that is below `step` dims per layer.
    """
    _require(losses, total, step, limit)
    unit = math.gcd(step, limit)
    choices = [*range(step, limit, step), limit]
    units = [choice // unit for choice in choices]
    spendable = min(total // unit, len(losses) * units[-1])
    best = np.zeros(spendable + 1)  # least sum with at most so many units, over the layers so far
    taken = []
    for layer in losses:
        prices = [float(layer[choice // step]) for choice in choices[:-1]] + [0.0]
        sums = np.full((len(units), spendable + 1), math.inf)
        for row, cost, price in zip(sums, units, prices, strict=True):
            row[cost:] = best[: max(spendable + 1 - cost, 0)] + price
        taken.append(sums.argmin(0))  # the first, and so the smallest, of equal ones
        best = sums.min(0)
    left = int(np.argmin(best))  # the fewest units of those with the least sum
    found = []
    for choice_of in reversed(taken):
        choice = int(choice_of[left])
        found.append(choices[choice])
        left -= units[choice]
    return tuple(reversed(found))


def select(losses: Sequence[float], count: int) -> tuple[int, ...]:
    """The `count` layers with the smallest predicted loss, in order of their numbers; of equal ones the earlier.

    Raises ValueError where there are fewer layers, and for losses that are no numbers.
    """
    if not 0 <= count <= len(losses):
        raise ValueError(f"{count} of {len(losses)} layers cannot be chosen: choose from 0 to {len(losses)}")
    if any(math.isnan(loss) for loss in losses):
        raise ValueError(f"losses of layers must be numbers to choose by, not {list(losses)}")
    return tuple(sorted(sorted(range(len(losses)), key=lambda layer: losses[layer])[:count]))


def _require(losses: Sequence[Sequence[float]], total: int, step: int, limit: int) -> None:
    if not losses or not 1 <= step <= limit:
        raise ValueError(
            f"{len(losses)} layers in steps of {step} up to {limit} dims: give layers, and 1 ≤ step ≤ limit"
        )
    smallest = step if step < limit else limit
    if total < len(losses) * smallest:
        raise ValueError(
            f"{total} dims are too few for {len(losses)} layers in steps of {step}: give at least "
            f"{len(losses) * smallest}, or a smaller step"
        )
    needed = -(-limit // step)
    for number, layer in enumerate(losses):
        if len(layer) < needed or not all(math.isfinite(loss) for loss in layer[:needed]):
            raise ValueError(
                f"layer {number} needs {needed} finite losses, at 0, {step}, … below {limit} dims, not {list(layer)}"
            )
