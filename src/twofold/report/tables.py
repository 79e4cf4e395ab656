"""The report's tables as rows of finished texts; the templates only lay them out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from twofold.report.figures import by_cache
from twofold.report.formats import (
    bits_text,
    bytes_text,
    count_text,
    duration_text,
    interval_text,
    percent_text,
    signed_text,
)
from twofold.report.sweep import ran_with
from twofold.study.contenders import changes_text
from twofold.study.match import COSTS
from twofold.study.results import Results, Run
from twofold.study.statistics import Comparison, Spread, VariantSummary
from twofold.variants.notation import parse


class SummaryRow(NamedTuple):
    """One variant in the main table; `share` is its part of the largest cache, between 0 and 1."""

    label: str
    bits_per_byte: str
    bits_deviation: str
    difference: str
    interval: str
    cache: str
    ratio: str
    share: float
    verdict: str
    standing: str
    perplexity: str
    perplexity_deviation: str
    parameters: str
    changed: str
    ran_with: str
    paper_name: str


class MeasuredRow(NamedTuple):
    """One variant's cache and speed; cache bytes of its first seed, speeds as means over its seeds."""

    label: str
    tokens: str
    formula: str
    used: str
    agrees: bool
    reserved: str
    training: str
    decoding: str
    wall: str


class Cell(NamedTuple):
    """One pair in the table of pairs: row minus column. `kind` is `worse`, `better`, `open` or `self`."""

    text: str
    interval: str
    kind: str


class Facts(NamedTuple):
    """What holds for all runs, and what differs, as (name, values)."""

    common: list[tuple[str, str]]
    differing: list[tuple[str, str]]


def paper_name(variant: str) -> str:
    """The paper's name of a plain notation; a dash for other labels, and for what is not known here."""
    try:
        return parse(variant).paper_name or "–"
    except ValueError:
        return "–"


def summary_rows(results: Results) -> list[SummaryRow]:
    """The main table, from the largest cache to the smallest."""
    changed = {run.label: changes_text(run.changed) for run in results.runs}
    points = ran_with(results)
    return [_summary_row(entry, changed[entry.label], points.get(entry.label, "")) for entry in by_cache(results)]


def _summary_row(entry: VariantSummary, changed: str, point: str) -> SummaryRow:
    comparison = entry.difference_to_baseline
    return SummaryRow(
        label=entry.label,
        bits_per_byte=bits_text(entry.bits_per_byte.mean),
        bits_deviation=deviation_text(entry.bits_per_byte, 4),
        difference=signed_text(comparison.difference) if comparison else "baseline",
        interval=interval_text(comparison).removeprefix("95 % interval ") if comparison else "",
        cache=bytes_text(entry.cache_bytes_per_token),
        ratio=percent_text(entry.cache_ratio),
        share=entry.cache_ratio,
        verdict=entry.verdict,
        standing=entry.standing,
        perplexity=f"{entry.perplexity.mean:.3f}",
        perplexity_deviation=deviation_text(entry.perplexity, 3),
        parameters=count_text(entry.parameters["total"]),
        changed=changed,
        ran_with=point,
        paper_name=paper_name(entry.label),
    )


def measured_rows(results: Results) -> list[MeasuredRow]:
    """Cache bytes by formula and by measurement, and speeds, from the largest cache to the smallest."""
    return [_measured_row([run for run in results.runs if run.label == entry.label]) for entry in by_cache(results)]


def _measured_row(runs: Sequence[Run]) -> MeasuredRow:
    cache = runs[0].cache
    return MeasuredRow(
        label=runs[0].label,
        tokens=f"{cache.tokens:,}",
        formula=f"{cache.bytes_formula:,}",
        used=f"{cache.bytes_used:,}",
        agrees=all(run.cache.bytes_used == run.cache.bytes_formula for run in runs),
        reserved=f"{cache.bytes_reserved:,}",
        training=f"{np.mean([run.speed.train_tokens_per_second for run in runs]):,.0f}",
        decoding=f"{np.mean([run.speed.decode_tokens_per_second for run in runs]):,.0f}",
        wall=duration_text(float(np.mean([run.speed.wall_seconds for run in runs]))),
    )


def pair_rows(results: Results) -> list[tuple[str, list[Cell]]]:
    """Every variant against every other, rows and columns in the main table's order."""
    order = [entry.label for entry in by_cache(results)]
    both_ways = {(c.a, c.b): c for each in results.comparisons for c in (each, each.reversed())}
    return [(a, [_cell(both_ways.get((a, b))) for b in order]) for a in order]


def _cell(comparison: Comparison | None) -> Cell:
    if comparison is None:
        return Cell("·", "", "self")
    kind = ("worse" if comparison.difference > 0 else "better") if comparison.separable else "open"
    return Cell(signed_text(comparison.difference), interval_text(comparison), kind)


def methods(results: Results) -> list[str]:
    """How the intervals of this study were made, each way once, with what it drew on."""
    ways = dict.fromkeys((comparison.method, comparison.samples) for comparison in results.comparisons)
    unit = {"paired t over seeds": "seeds", "paired bootstrap over documents": "documents"}
    return [f"{method} ({samples} {unit[method]})" if method in unit else method for method, samples in ways]


def matching(results: Results) -> list[str]:
    """What the study's variants were brought to, and how far they are from it: `2,048 cached bytes per token`."""
    pairs: dict[str, list[tuple[int, int]]] = {}
    for run in results.runs:
        for name, pair in run.configuration.get("matched", {}).items():
            pairs.setdefault(name, []).append(pair)
    farthest = {name: max(abs(is_ / to - 1) for to, is_ in each) for name, each in pairs.items()}
    return [f"{pairs[name][0][0]:,} {COSTS[name]} (±{100 * off:.2g} %)" for name, off in farthest.items()]


def facts(nested: Sequence[dict[str, Any]]) -> Facts:
    """Split what several runs state into what they agree on and what they do not, nested names joined by dots."""
    flat = [_flat(each) for each in nested]
    names = list(dict.fromkeys(name for each in flat for name in each))
    common: list[tuple[str, str]] = []
    differing: list[tuple[str, str]] = []
    for name in names:
        values = list(dict.fromkeys(each.get(name, "–") for each in flat))
        (common if len(values) == 1 else differing).append((name, ", ".join(values)))
    return Facts(common, differing)


def _flat(nested: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in nested.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": str(value)}
    return flat


def deviation_text(spread: Spread, decimals: int) -> str:
    """`± 0.0031`, the standard deviation over seeds; nothing for one seed."""
    deviation = spread.standard_deviation
    return "" if deviation is None else f"± {deviation:.{decimals}f}"


def run_rows(results: Results) -> list[tuple[str, int, str, str, str]]:
    """Every run on its own: variant, seed, bits per byte, loss in nats per token, perplexity."""
    return [
        (
            run.label,
            run.seed,
            bits_text(run.validation.bits_per_byte),
            f"{run.validation.loss:.4f}",
            f"{run.validation.perplexity:.3f}",
        )
        for run in results.runs
    ]
