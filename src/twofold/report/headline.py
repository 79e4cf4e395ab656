"""The sentences at the top of a report. Every one is drawn from the results; none is there before them."""

from __future__ import annotations

from twofold.report.formats import (
    below_bigram_text,
    bits_text,
    interaction_text,
    interval_text,
    list_text,
    signed_text,
    times_text,
)
from twofold.report.sweep import sweep_notes
from twofold.study.results import Results
from twofold.study.statistics import Comparison, VariantSummary


def lead(results: Results) -> str:
    """The main finding, or that models learnt too little for one."""
    return untrained(results) or _finding(results)


def untrained(results: Results) -> str:
    """Who was trained too little to be compared; empty where all learnt more than a byte-bigram model knows."""
    if not results.untrained:
        return ""
    level = bits_text(results.bigram_bits_per_byte)
    return f"Trained too little to be compared: {below_bigram_text(results.untrained)} ({level} bits per byte)."


def bounded_text(results: Results) -> str:
    """Whose bytes per token depend on how many tokens there are, and on how many they were taken; empty for none."""
    if not results.bounded:
        return ""
    each = [f"{run.label} {run.cache.bytes_used:,} bytes at {run.cache.tokens:,} tokens" for run in results.bounded]
    return f"A window or a state does not grow with every token, and bytes per token fall with more: {list_text(each)}."


def _finding(results: Results) -> str:
    """What the smallest cache costs that is as good as the baseline, or else the cheapest."""
    baseline = next(entry for entry in results.summary if entry.label == results.baseline)
    smaller = [e for e in results.summary if e.cache_bytes_per_token < baseline.cache_bytes_per_token]
    if not smaller:
        others = "No other variant was run" if len(results.summary) == 1 else "No variant here caches less"
        return f"{baseline.label} reaches {bits_text(baseline.bits_per_byte.mean)} bits per byte. {others}."
    as_good = [entry for entry in smaller if not _worse(_to_baseline(entry))]
    if as_good:
        return _as_good(min(as_good, key=lambda e: (e.cache_bytes_per_token, e.bits_per_byte.mean)), baseline)
    cheapest = min(smaller, key=lambda entry: _to_baseline(entry).difference)
    difference = _to_baseline(cheapest)
    if difference.interval is None:
        return (
            f"{_saving(cheapest, baseline)} for {signed_text(difference.difference)} bits per byte, "
            f"a difference without a known uncertainty ({interval_text(difference)})."
        )
    return (
        f"Every cache smaller than {baseline.label}’s costs quality here. {_saving(cheapest, baseline)} "
        f"and costs the least: {signed_text(difference.difference)} bits per byte ({interval_text(difference)})."
    )


def notes(results: Results) -> list[str]:
    """Further findings: who dominates whom, who cannot be told apart, what two savings cost together, what a sweep
    chose, whether models learnt, whether bytes agree.
    """
    return [
        *([f"What the numbers would say: {_finding(results)}"] if results.untrained else []),
        *_dominated(results),
        *_inseparable(results),
        *(interaction_text(one) for one in results.interactions),
        *sweep_notes(results),
        *_one_seed(results),
        *_bigram(results),
        _cache(results),
        *_diverged(results),
        *_unfinished(results),
    ]


def _unfinished(results: Results) -> list[str]:
    if not results.unfinished:
        return []
    return [f"{results.unfinished} of {results.total} runs are not finished yet."]


def _one_seed(results: Results) -> list[str]:
    if len(results.summary) > 1 and all(len(entry.seeds) == 1 for entry in results.summary):
        return ["One seed: the intervals are over held-out documents, and say nothing of other seeds."]
    return []


def _diverged(results: Results) -> list[str]:
    return [f"{f.label} with seed {f.seed} diverged and is left out: {f.reason}." for f in results.diverged]


def _to_baseline(entry: VariantSummary) -> Comparison:
    assert entry.difference_to_baseline is not None  # only the baseline has none
    return entry.difference_to_baseline


def _worse(comparison: Comparison) -> bool:
    return comparison.interval is None or (comparison.separable and comparison.difference > 0)


def _saving(entry: VariantSummary, baseline: VariantSummary) -> str:
    factor = times_text(baseline.cache_bytes_per_token / entry.cache_bytes_per_token)
    return f"{entry.label} caches {factor} less than {baseline.label}"


def _as_good(entry: VariantSummary, baseline: VariantSummary) -> str:
    comparison = _to_baseline(entry)
    told_apart = "and predicts better" if comparison.separable else "and the two cannot be told apart in quality here"
    return (
        f"{_saving(entry, baseline)} {told_apart}: {signed_text(comparison.difference)} bits per byte "
        f"({interval_text(comparison)})."
    )


def _dominated(results: Results) -> list[str]:
    by: dict[str, list[str]] = {}
    for entry in results.summary:
        if entry.dominated_by:
            by.setdefault(entry.dominated_by, []).append(entry.label)
    if not by:
        return ["No variant is dominated: none is clearly worse than another that caches no more."]
    return [
        f"{winner} dominates {list_text(losers)}: clearly better with no more cache." for winner, losers in by.items()
    ]


def _inseparable(results: Results) -> list[str]:
    pairs = [f"{e.label} from {e.not_separable_from}" for e in results.summary if e.not_separable_from]
    return [f"Not separable at this budget: {list_text(pairs)}."] if pairs else []


def _bigram(results: Results) -> list[str]:
    if results.untrained:  # which the page begins with
        return []
    count = len(results.summary)
    who = {1: "The one variant beats", 2: "Both variants beat"}.get(count, f"All {count} variants beat")
    return [f"{who} a byte-bigram model ({bits_text(results.bigram_bits_per_byte)} bits per byte)."]


def _cache(results: Results) -> str:
    wrong = [f"{r.label} (seed {r.seed})" for r in results.runs if r.cache.bytes_used != r.cache.bytes_formula]
    if wrong:
        return f"Measured cache bytes differ from the formula for {list_text(wrong)}."
    runs = f"all {len(results.runs)} runs" if len(results.runs) > 1 else "the run"
    return f"Measured cache bytes equal the formula in {runs}. {bounded_text(results)}".strip()
