"""Sums and differences of variants' quality, with the uncertainty that is left when what they share has cancelled.

Quality is bits per byte of the same held-out documents; lower is better. A contrast pairs its variants, because what
makes a document hard, or a seed's data order lucky, is common to all of them:

- with two or more seeds in common, Student's t interval of the mean over seeds: would other initial weights and
  another order of the data say the same?
- with one, a bootstrap over the held-out documents: would other documents say the same of *these* models?
  It knows nothing of seeds, so it is the weaker claim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from twofold.study.record import Part, RunRecord

CONFIDENCE = 0.95
RESAMPLES = 4_000
RESAMPLING_SEED = 2_604_032  # fixed: the same records always give the same interval
BLOCK = 250  # resamples drawn at once; bounds the memory that thousands of documents need
# Six equal signs out of six happen by chance in 1 of 32 cases, five of five in 1 of 16: with fewer documents
# than six no claim at 95 % is possible, whatever a bootstrap says.
MINIMUM_DOCUMENTS = 6

OVER_SEEDS = "paired t over seeds"
OVER_DOCUMENTS = "paired bootstrap over documents"
NOTHING_IN_COMMON = "no seed in common"

Interval = tuple[float, float]
Term = tuple[int, Sequence[RunRecord]]


@dataclass(frozen=True)
class Measure:
    """What is contrasted: its name in a record's validation, nats in one unit of it, and what it is counted per."""

    name: str
    nats: float
    per: str


BITS_PER_BYTE = Measure("bits_per_byte", math.log(2), "bytes")
LOSS = Measure("loss", 1.0, "tokens")


class Contrast(Part):
    """In bits per byte, or what else is measured.

    `interval` holds 95 % of the uncertainty, and is None where the records allow none.
    `samples` counts what `method` draws on: seeds for "paired t over seeds", documents for "paired bootstrap over
    documents".
    """

    difference: float
    interval: Interval | None
    method: str
    samples: int

    @property
    def separable(self) -> bool:
        """Whether the interval excludes zero."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


def contrast(*terms: Term, measure: Measure = BITS_PER_BYTE) -> Contrast:
    """The sum of sign × bits per byte (or another measure) over `terms`, each a sign and the runs of one variant."""
    by_seed = [(sign, {run.seed: run for run in runs}) for sign, runs in terms]
    shared = sorted(set.intersection(*(set(runs) for _, runs in by_seed)))
    if not shared:
        difference = sum(sign * _mean(runs, measure) for sign, runs in terms)
        return Contrast(difference=difference, interval=None, method=NOTHING_IN_COMMON, samples=0)
    if len(shared) == 1:
        return _over_documents([(sign, runs[shared[0]]) for sign, runs in by_seed], measure)
    values = [sum(sign * _value(runs[seed], measure) for sign, runs in by_seed) for seed in shared]
    mean = float(np.mean(values))
    return Contrast(difference=mean, interval=t_interval(values), method=OVER_SEEDS, samples=len(values))


def t_interval(deltas: Sequence[float]) -> Interval:
    """Student's interval of the mean: mean ± t · s / √n, with n − 1 degrees of freedom; n ≥ 2."""
    mean, deviation = np.mean(deltas), np.std(deltas, ddof=1)
    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, df=len(deltas) - 1)
    half = quantile * deviation / math.sqrt(len(deltas))
    return float(mean - half), float(mean + half)


def bootstrap_interval(amounts: NDArray[np.float64], sizes: NDArray[np.float64]) -> Interval:
    """Percentile interval of Σ amounts / Σ sizes when whole documents are drawn with replacement.

    `amounts` holds each document's difference between the models, in bits or nats, `sizes` its bytes or tokens; both
    [documents].
    """
    generator = np.random.default_rng(RESAMPLING_SEED)
    ratios = []
    for _ in range(RESAMPLES // BLOCK):
        drawn = generator.integers(len(amounts), size=(BLOCK, len(amounts)))
        ratios.append(amounts[drawn].sum(axis=1) / sizes[drawn].sum(axis=1))
    outside = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(ratios), [outside, 1 - outside])
    return float(low), float(high)


def _over_documents(terms: Sequence[tuple[int, RunRecord]], measure: Measure) -> Contrast:
    nats = sum(sign * np.array([document.nats for document in run.documents]) for sign, run in terms)
    amounts = np.asarray(nats, dtype=np.float64) / measure.nats
    sizes = np.array([getattr(document, measure.per) for document in terms[0][1].documents], dtype=np.float64)
    interval = bootstrap_interval(amounts, sizes) if len(amounts) >= MINIMUM_DOCUMENTS else None
    difference = float(amounts.sum() / sizes.sum())
    return Contrast(difference=difference, interval=interval, method=OVER_DOCUMENTS, samples=len(amounts))


def _value(run: RunRecord, measure: Measure) -> float:
    return float(getattr(run.validation, measure.name))


def _mean(runs: Sequence[RunRecord], measure: Measure) -> float:
    return float(np.mean([_value(run, measure) for run in runs]))
