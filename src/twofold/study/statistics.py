"""Which differences between variants are larger than their uncertainty.

Quality is bits per byte of the same held-out documents; lower is better. Two variants are always compared in
pairs, because what makes a document hard, or a seed's data order lucky, is common to both and cancels:

- with two or more seeds in common, Student's t interval of the mean difference over seeds: would other initial
  weights and another order of the data say the same?
- with one, a bootstrap over the held-out documents: would other documents say the same of *these* two models?
  It knows nothing of seeds, so it is the weaker claim.

Intervals hold for each pair on its own; nothing corrects for the number of pairs looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from twofold.study.record import Labelled, Part, RunRecord

CONFIDENCE = 0.95
RESAMPLES = 4_000
RESAMPLING_SEED = 2_604_032  # fixed: the same records always give the same interval
BLOCK = 250  # resamples drawn at once; bounds the memory that thousands of documents need
# Six equal signs out of six happen by chance in 1 of 32 cases, five of five in 1 of 16: with fewer documents
# than six no claim at 95 % is possible, whatever a bootstrap says.
MINIMUM_DOCUMENTS = 6
BASELINE = "QKV"


class Spread(Part):
    """Mean over seeds, and their standard deviation (n − 1), which one seed does not have."""

    mean: float
    standard_deviation: float | None


class Comparison(Part):
    """Bits per byte of `a` minus `b`: positive means that `a` is worse.

    `interval` holds 95 % of the uncertainty; None where the records allow no interval. `samples` counts what
    `method` draws on: seeds for "paired t over seeds", documents for "paired bootstrap over documents".
    """

    a: str
    b: str
    difference: float
    interval: tuple[float, float] | None
    method: str
    samples: int

    @property
    def separable(self) -> bool:
        """Whether the interval excludes zero."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]

    def reversed(self) -> Comparison:
        """The same comparison seen from the other side."""
        interval = None if self.interval is None else (-self.interval[1], -self.interval[0])
        swapped = {"a": self.b, "b": self.a, "difference": -self.difference, "interval": interval}
        return self.model_copy(update=swapped)


class VariantSummary(Labelled):
    """One variant over its seeds. Cache bytes are measured; `cache_ratio` is to the study's largest cache."""

    seeds: tuple[int, ...]
    bits_per_byte: Spread
    loss: Spread
    perplexity: Spread
    cache_bytes_per_token: float
    cache_ratio: float
    parameters: dict[str, int]
    dominated_by: str | None
    not_separable_from: str | None
    verdict: str
    difference_to_baseline: Comparison | None

    @property
    def standing(self) -> str:
        """The verdict's kind, for whoever shows it: `frontier`, `inseparable` or `dominated`."""
        if self.dominated_by:
            return "dominated"
        return "inseparable" if self.not_separable_from else "frontier"


class Statistics(Part):
    """What a study's records say: per variant, per pair, and which variants are not dominated."""

    baseline: str
    summary: tuple[VariantSummary, ...]
    comparisons: tuple[Comparison, ...]
    frontier: tuple[str, ...]


def analyse(records: Sequence[RunRecord]) -> Statistics:
    """Summarise and compare all variants, in the order in which they first appear.

    ValueError: no records, a run twice, held-out documents that differ between runs, or a variant whose seeds
    disagree about its size or its cache.
    """
    runs = _by_variant(records)
    comparisons = [compare(runs[a], runs[b]) for a, b in combinations(runs, 2)]
    both_ways = {(c.a, c.b): c for each in comparisons for c in (each, each.reversed())}
    baseline = BASELINE if BASELINE in runs else next(iter(runs))
    summary = tuple(_summarise(variant, runs, both_ways, baseline) for variant in runs)
    undominated = [entry for entry in summary if entry.dominated_by is None]
    undominated.sort(key=lambda entry: (entry.cache_bytes_per_token, entry.bits_per_byte.mean))
    return Statistics(
        baseline=baseline,
        summary=summary,
        comparisons=tuple(comparisons),
        frontier=tuple(entry.label for entry in undominated),
    )


def compare(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> Comparison:
    """Bits per byte of variant `a` minus variant `b`, with a 95 % interval over seeds or over documents."""
    of_a, of_b = ({run.seed: run for run in runs} for runs in (a, b))
    shared = sorted(of_a.keys() & of_b.keys())
    if not shared:
        difference = _mean_bits(a) - _mean_bits(b)
        interval, method, samples = None, "no seed in common", 0
    elif len(shared) == 1:
        difference, interval, samples = _over_documents(of_a[shared[0]], of_b[shared[0]])
        method = "paired bootstrap over documents"
    else:
        deltas = [of_a[s].validation.bits_per_byte - of_b[s].validation.bits_per_byte for s in shared]
        difference, interval, samples = float(np.mean(deltas)), t_interval(deltas), len(deltas)
        method = "paired t over seeds"
    return Comparison(
        a=a[0].label, b=b[0].label, difference=difference, interval=interval, method=method, samples=samples
    )


def t_interval(deltas: Sequence[float]) -> tuple[float, float]:
    """Student's interval of the mean: mean ± t · s / √n, with n − 1 degrees of freedom; n ≥ 2."""
    mean, deviation = np.mean(deltas), np.std(deltas, ddof=1)
    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, df=len(deltas) - 1)
    half = quantile * deviation / math.sqrt(len(deltas))
    return float(mean - half), float(mean + half)


def bootstrap_interval(bits: NDArray[np.float64], sizes: NDArray[np.float64]) -> tuple[float, float]:
    """Percentile interval of Σ bits / Σ sizes when whole documents are drawn with replacement.

    `bits` holds each document's difference in bits between the two models, `sizes` its bytes; both [documents].
    """
    generator = np.random.default_rng(RESAMPLING_SEED)
    ratios = []
    for _ in range(RESAMPLES // BLOCK):
        drawn = generator.integers(len(bits), size=(BLOCK, len(bits)))
        ratios.append(bits[drawn].sum(axis=1) / sizes[drawn].sum(axis=1))
    outside = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(ratios), [outside, 1 - outside])
    return float(low), float(high)


def _over_documents(a: RunRecord, b: RunRecord) -> tuple[float, tuple[float, float] | None, int]:
    nats_a, nats_b = (np.array([document.nats for document in run.documents]) for run in (a, b))
    bits = (nats_a - nats_b) / math.log(2)
    sizes = np.array([document.bytes for document in a.documents], dtype=np.float64)
    enough = len(bits) >= MINIMUM_DOCUMENTS
    interval = bootstrap_interval(bits, sizes) if enough else None
    return float(bits.sum() / sizes.sum()), interval, len(bits)


def _by_variant(records: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    if not records:
        raise ValueError("no finished runs: run the study first")
    runs: dict[str, list[RunRecord]] = {}
    held_out = [(document.name, document.bytes) for document in records[0].documents]
    for record in records:
        of_variant = runs.setdefault(record.label, [])
        if any(other.seed == record.seed for other in of_variant):
            raise ValueError(f"{record.label} with seed {record.seed} is there twice: remove one of the two")
        if [(document.name, document.bytes) for document in record.documents] != held_out:
            raise ValueError(
                f"{record.label} with seed {record.seed} was scored on other documents than "
                f"{records[0].label} with seed {records[0].seed}: their scores cannot be compared"
            )
        of_variant.append(record)
    for of_variant in runs.values():
        _require_one_size(of_variant)
        of_variant.sort(key=lambda run: run.seed)
    return runs


def _require_one_size(of_variant: Sequence[RunRecord]) -> None:
    first = of_variant[0]
    for run in of_variant[1:]:
        if run.parameters != first.parameters:
            ours, theirs = run.parameters["total"], first.parameters["total"]
            raise ValueError(
                f"{run.label} has {ours} parameters with seed {run.seed} and {theirs} with seed {first.seed}: "
                "these are two models, not two seeds of one"
            )
        if run.cache.bytes_per_token != first.cache.bytes_per_token:
            raise ValueError(
                f"{run.label} caches {run.cache.bytes_per_token} bytes per token with seed {run.seed} "
                f"and {first.cache.bytes_per_token} with seed {first.seed}: measure both at the same length"
            )


def _summarise(
    variant: str,
    runs: dict[str, list[RunRecord]],
    comparisons: dict[tuple[str, str], Comparison],
    baseline: str,
) -> VariantSummary:
    own = runs[variant]
    dominator, rival = _rivals(variant, runs, comparisons)
    return VariantSummary(
        label=variant,
        variant=own[0].variant,
        seeds=tuple(run.seed for run in own),
        bits_per_byte=_spread(own, lambda run: run.validation.bits_per_byte),
        loss=_spread(own, lambda run: run.validation.loss),
        perplexity=_spread(own, lambda run: run.validation.perplexity),
        cache_bytes_per_token=_cache(own),
        cache_ratio=_cache(own) / max(_cache(of_other) for of_other in runs.values()),
        parameters=own[0].parameters,
        dominated_by=dominator,
        not_separable_from=rival,
        verdict=_verdict(dominator, rival),
        difference_to_baseline=None if variant == baseline else comparisons[variant, baseline],
    )


def _rivals(
    variant: str, runs: dict[str, list[RunRecord]], comparisons: dict[tuple[str, str], Comparison]
) -> tuple[str | None, str | None]:
    """Who dominates the variant, and else who looks as good with no more cache; the better one first."""
    no_larger = [
        comparisons[variant, other]
        for other in runs
        if other != variant and _cache(runs[other]) <= _cache(runs[variant])
    ]
    ahead = sorted((c for c in no_larger if c.difference >= 0), key=lambda c: -c.difference)
    dominator = next((c.b for c in ahead if c.separable), None)
    rival = next((c.b for c in ahead if not c.separable), None)
    return dominator, None if dominator else rival


def _verdict(dominator: str | None, rival: str | None) -> str:
    if dominator:
        return f"dominated by {dominator}"
    if rival:
        return f"not separable from {rival} at this budget"
    return "on the frontier"


def _spread(runs: Sequence[RunRecord], value: Callable[[RunRecord], float]) -> Spread:
    values = [value(run) for run in runs]
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(mean=float(np.mean(values)), standard_deviation=deviation)


def _mean_bits(runs: Sequence[RunRecord]) -> float:
    return float(np.mean([run.validation.bits_per_byte for run in runs]))


def _cache(runs: Sequence[RunRecord]) -> float:
    return runs[0].cache.bytes_per_token
