"""Whether what was foretold of sharing keys and values in a layer goes with what it cost, over a model's layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.stats import rankdata

from twofold.explain.record import Correlation, Sharing

METHODS = ("joint", "value_from_key")
R2 = "r2_v_from_k"
"""Of section `similarity`; what it leaves over foretells what values from keys cost."""
DRAWS, LEVEL = 2000, 0.95
FEWEST = 4
"""Layers behind a correlation."""
Series = Callable[[str, str], Sequence[float | None]]
"""A measure over the layers, by section and name."""


def summary(baseline: float, fitted: int, scored: int, series: Series, seed: int) -> Sharing:
    """The record: the model's own loss on `scored` tokens, maps being from `fitted` others, and all correlations."""
    found = []
    for method in METHODS:
        losses = series("sharing", f"{method}_loss")
        for name, values in _predictors(method, series).items():
            pairs = _complete(values, losses)
            found.append(Correlation(method=method, predictor=name, layers=len(pairs), **rank_correlation(pairs, seed)))
    return Sharing(baseline_loss=baseline, fitted_tokens=fitted, scored_tokens=scored, correlations=tuple(found))


def _predictors(method: str, series: Series) -> dict[str, Sequence[float | None]]:
    """By name; the larger, the more a layer is expected to lose."""
    predictors = {name: series("sharing", name) for name in (f"{method}_predicted", f"{method}_predicted_weights")}
    if method == "value_from_key":
        explained = series("similarity", R2)
        predictors[f"1 - {R2}"] = [None if share is None else 1 - share for share in explained]
    return predictors


def _complete(values: Sequence[float | None], losses: Sequence[float | None]) -> list[tuple[float, float]]:
    """The pairs of which both are known; none where no layer has one of the two."""
    both = zip(values, losses, strict=True) if values and losses else ()
    return [(value, loss) for value, loss in both if value is not None and loss is not None]


def rank_correlation(pairs: Sequence[tuple[float, float]], seed: int) -> dict[str, float | None]:
    """Spearman's ρ of the pairs and the limits `low` and `high` of a 95 % interval.

    The interval is the percentile bootstrap's over the pairs, `DRAWS` times drawn by `seed`; draws in which one side
    does not vary have no ρ and are left out. None for fewer than `FEWEST` pairs, and where one side does not vary.
    """
    none: dict[str, float | None] = {"spearman": None, "low": None, "high": None}
    if len(pairs) < FEWEST:
        return none
    both = np.array(pairs)
    whole = _spearman(both[None])[0]
    if math.isnan(whole):
        return none
    chosen = np.random.default_rng(seed).integers(len(both), size=(DRAWS, len(both)))
    drawn = _spearman(both[chosen])
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(drawn[~np.isnan(drawn)], [tail, 100 - tail])
    return {"spearman": float(whole), "low": float(low), "high": float(high)}


def _spearman(pairs_DN2: np.ndarray) -> np.ndarray:
    """ρ of each of the D sets of N pairs: the correlation of their ranks; NaN where one side does not vary."""
    ranks_DN2 = rankdata(pairs_DN2, axis=1)
    ranks_DN2 -= ranks_DN2.mean(axis=1, keepdims=True)
    norms_D = np.sqrt(np.square(ranks_DN2).sum(axis=1).prod(axis=-1))
    with np.errstate(invalid="ignore"):
        return np.asarray(ranks_DN2.prod(axis=-1).sum(axis=1) / np.where(norms_D > 0, norms_D, np.nan))
