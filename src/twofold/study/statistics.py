"""Which differences between variants are larger than their uncertainty.

Quality is bits per byte of the same held-out documents; lower is better. Two variants are always compared in pairs:
`contrast.py` says over what, and how certain that is. Intervals hold for each pair on its own; nothing corrects for
the number of pairs looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Self, TypeVar

import numpy as np

from twofold.study.contrast import LOSS, Contrast, Interval, contrast
from twofold.study.interaction import Interaction, interactions
from twofold.study.record import GradientRecord, Labelled, Part, RunRecord, SoftmaxRecord

BASELINE = "QKV"

Measured = TypeVar("Measured")


class Spread(Part):
    """Mean over seeds, and their standard deviation (n − 1), which one seed does not have."""

    mean: float
    standard_deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """The spread of one value for each seed."""
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(mean=float(np.mean(values)), standard_deviation=deviation)


class Comparison(Contrast):
    """Bits per byte of `a` minus `b`: positive means that `a` is worse."""

    a: str
    b: str

    def reversed(self) -> Comparison:
        """The same comparison seen from the other side."""
        interval = None if self.interval is None else (-self.interval[1], -self.interval[0])
        swapped = {"a": self.b, "b": self.a, "difference": -self.difference, "interval": interval}
        return self.model_copy(update=swapped)


class PerplexityGap(Part):
    """Perplexity over the baseline's, less one, in percent: 100·(exp(mean difference of loss) − 1).

    The interval is that of the paired difference of loss (nats per token), carried over.
    """

    percent: float
    interval: Interval | None


class SoftmaxSummary(Part):
    """How sharply a variant attends, over its seeds: entropy in nats, its share of the largest possible, and the share
    of saturated query positions (see `evaluation.attention_entropy`). `layers` are the mean shares of each layer.
    """

    entropy: Spread
    relative_entropy: Spread
    saturated: Spread
    layers: tuple[float | None, ...]


class GradientSummary(Part):
    """A variant's gradient before clipping, over its seeds: the spread of each seed's medians, and the largest norm."""

    median: Spread
    first_tenth: Spread
    last_tenth: Spread
    largest: float


class VariantSummary(Labelled):
    """One variant over its seeds. Cache bytes are measured; `cache_ratio` is to the study's largest cache.

    `bits_interval` is the 95 % interval of its mean bits per byte, over seeds or, with one, over documents.
    `softmax` and `gradient` are of the seeds whose records have them.
    """

    seeds: tuple[int, ...]
    bits_per_byte: Spread
    bits_interval: tuple[float, float] | None = None
    loss: Spread
    perplexity: Spread
    cache_bytes_per_token: float
    cache_ratio: float
    parameters: dict[str, int]
    dominated_by: str | None
    not_separable_from: str | None
    verdict: str
    difference_to_baseline: Comparison | None
    perplexity_gap: PerplexityGap | None = None
    softmax: SoftmaxSummary | None = None
    gradient: GradientSummary | None = None

    @property
    def standing(self) -> str:
        """The verdict's kind, for whoever shows it: `frontier`, `inseparable` or `dominated`."""
        if self.dominated_by:
            return "dominated"
        return "inseparable" if self.not_separable_from else "frontier"


class Statistics(Part):
    """What a study's records say: per variant, per pair, per four, and which variants are not dominated."""

    baseline: str
    summary: tuple[VariantSummary, ...]
    comparisons: tuple[Comparison, ...]
    frontier: tuple[str, ...]
    interactions: tuple[Interaction, ...]


def analyse(records: Sequence[RunRecord], baseline: str | None = None) -> Statistics:
    """Summarise and compare all variants, in the order in which they first appear.

    Without a `baseline`, and as long as it has no run, differences are to QKV, or else to the first.

    ValueError: no records, a run twice, held-out documents that differ between runs, or a variant whose seeds
    disagree about its size or its cache.
    """
    runs = _by_variant(records)
    comparisons = [compare(runs[a], runs[b]) for a, b in combinations(runs, 2)]
    both_ways = {(c.a, c.b): c for each in comparisons for c in (each, each.reversed())}
    wanted = (baseline, BASELINE, *runs)
    baseline = next(label for label in wanted if label in runs)
    summary = tuple(_summarise(variant, runs, both_ways, baseline) for variant in runs)
    undominated = [entry for entry in summary if entry.dominated_by is None]
    undominated.sort(key=lambda entry: (entry.cache_bytes_per_token, entry.bits_per_byte.mean))
    return Statistics(
        baseline=baseline,
        summary=summary,
        comparisons=tuple(comparisons),
        frontier=tuple(entry.label for entry in undominated),
        interactions=interactions(runs),
    )


def compare(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> Comparison:
    """Bits per byte of variant `a` minus variant `b`, with a 95 % interval over seeds or over documents."""
    return Comparison(a=a[0].label, b=b[0].label, **contrast((1, a), (-1, b)).model_dump())


def perplexity_gap(runs: Sequence[RunRecord], baseline: Sequence[RunRecord]) -> PerplexityGap:
    """What a variant's perplexity is more than the baseline's, in percent, paired as bits per byte are."""
    found = contrast((1, runs), (-1, baseline), measure=LOSS)
    low_and_high = found.interval and (_percent(found.interval[0]), _percent(found.interval[1]))
    return PerplexityGap(percent=_percent(found.difference), interval=low_and_high)


def _percent(difference: float) -> float:
    return 100 * math.expm1(difference)


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
        bits_interval=contrast((1, own)).interval,
        loss=_spread(own, lambda run: run.validation.loss),
        perplexity=_spread(own, lambda run: run.validation.perplexity),
        cache_bytes_per_token=_cache(own),
        cache_ratio=_cache(own) / max(_cache(of_other) for of_other in runs.values()),
        parameters=own[0].parameters,
        dominated_by=dominator,
        not_separable_from=rival,
        verdict=_verdict(dominator, rival),
        difference_to_baseline=None if variant == baseline else comparisons[variant, baseline],
        perplexity_gap=None if variant == baseline else perplexity_gap(own, runs[baseline]),
        softmax=_softmax([run.softmax for run in own if run.softmax]),
        gradient=_gradient([run.gradient for run in own if run.gradient]),
    )


def _softmax(found: Sequence[SoftmaxRecord]) -> SoftmaxSummary | None:
    if not found:
        return None
    layers = zip(*(one.layers for one in found), strict=True)
    return SoftmaxSummary(
        entropy=_spread(found, lambda one: one.entropy),
        relative_entropy=_spread(found, lambda one: one.relative_entropy),
        saturated=_spread(found, lambda one: one.saturated),
        layers=tuple(_mean([layer.relative_entropy for layer in seeds if layer]) for seeds in layers),
    )


def _gradient(found: Sequence[GradientRecord]) -> GradientSummary | None:
    if not found:
        return None
    return GradientSummary(
        median=_spread(found, lambda one: one.median),
        first_tenth=_spread(found, lambda one: one.first_tenth),
        last_tenth=_spread(found, lambda one: one.last_tenth),
        largest=max(one.largest for one in found),
    )


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


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


def _spread(found: Sequence[Measured], value: Callable[[Measured], float]) -> Spread:
    return Spread.of([value(one) for one in found])


def _cache(runs: Sequence[RunRecord]) -> float:
    return runs[0].cache.bytes_per_token
