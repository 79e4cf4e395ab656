"""The study's main figure: quality against measured cache bytes, and the best seen at each size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import plotly.graph_objects as go

from twofold.report.formats import bits_text, bytes_text, interval_text, signed_text
from twofold.report.labels import place_labels
from twofold.report.look import BLUE, NEUTRAL, ORANGE, error_bars, plain, styled
from twofold.study.results import Results
from twofold.study.statistics import VariantSummary

STANDINGS = {  # kind of verdict: words, symbol, colour
    "frontier": ("on the frontier", "circle", BLUE),
    "inseparable": ("not separable", "diamond-open", ORANGE),
    "dominated": ("dominated", "square-open", NEUTRAL),
}
MINIMUM_TICK_RATIO = 1.3  # cache sizes nearer to each other than this share one tick
Range = tuple[float, float]


def frontier_figure(results: Results) -> go.Figure:
    """Bits per byte against cache bytes per token (log scale), one point for each variant.

    Bars are the 95 % interval of the difference to the baseline, drawn around the variant's mean.
    """
    entries = sorted(results.summary, key=lambda e: (e.cache_bytes_per_token, e.bits_per_byte.mean))
    x_range, y_range = _cache_range(entries), _quality_range(results)
    steps = _staircase(entries, x_range)
    positions = _label_positions(entries, steps, x_range, y_range)
    figure = go.Figure(_line(steps))
    for standing in STANDINGS:
        chosen = [entry for entry in entries if entry.standing == standing]
        if chosen:
            figure.add_trace(_points(chosen, standing, positions))
    _add_bigram(figure, results.bigram_bits_per_byte, y_range)
    ticks = _ticks(entries)
    figure.update_xaxes(type="log", range=x_range, tickvals=ticks, ticktext=[bytes_text(tick) for tick in ticks])
    figure.update_xaxes(title="measured cache per token (log scale)")
    figure.update_yaxes(range=y_range, title="bits per byte (lower is better)")
    return styled(figure)


def _points(entries: Sequence[VariantSummary], standing: str, positions: dict[str, str]) -> go.Scatter:
    words, symbol, colour = STANDINGS[standing]
    bounds = [_interval_around_zero(entry) for entry in entries]
    return go.Scatter(
        x=[entry.cache_bytes_per_token for entry in entries],
        y=[entry.bits_per_byte.mean for entry in entries],
        error_y=error_bars([above for above, _ in bounds], [below for _, below in bounds]) | {"color": colour},
        mode="markers+text",
        text=[plain(entry.label) for entry in entries],
        textposition=[positions[entry.label] for entry in entries],
        name=words,
        marker={"symbol": symbol, "size": 12, "color": colour, "line": {"width": 2, "color": colour}},
        hovertext=[_hover(entry) for entry in entries],
        hoverinfo="text",
        cliponaxis=False,
    )


def _hover(entry: VariantSummary) -> str:
    lines = [
        f"<b>{plain(entry.label)}</b>: {plain(entry.verdict)}",
        f"{bits_text(entry.bits_per_byte.mean)} bits per byte",
        f"{bytes_text(entry.cache_bytes_per_token)} of cache per token",
    ]
    comparison = entry.difference_to_baseline
    if comparison:
        lines.append(f"{signed_text(comparison.difference)} to {plain(comparison.b)}, {interval_text(comparison)}")
    return "<br>".join(lines)


def _interval_around_zero(entry: VariantSummary) -> tuple[float, float]:
    """How far the interval of the difference to the baseline reaches above and below the difference."""
    comparison = entry.difference_to_baseline
    if comparison is None or comparison.interval is None:
        return 0.0, 0.0
    low, high = comparison.interval
    return high - comparison.difference, comparison.difference - low


def _staircase(entries: Sequence[VariantSummary], x_range: Range) -> list[tuple[float, float]]:
    """Corners (cache bytes, mean) of the lowest mean seen with no more than so much cache, to the right edge.

    `entries` are ordered by cache, then quality.
    """
    corners: list[tuple[float, float]] = []
    for entry in entries:
        mean = entry.bits_per_byte.mean
        if not corners or mean < corners[-1][1]:
            corners += [(entry.cache_bytes_per_token, corners[-1][1])] if corners else []
            corners.append((entry.cache_bytes_per_token, mean))
    return [*corners, (10 ** x_range[1], corners[-1][1])]


def _line(steps: Sequence[tuple[float, float]]) -> go.Scatter:
    return go.Scatter(
        x=[cache for cache, _ in steps],
        y=[mean for _, mean in steps],
        mode="lines",
        line={"color": BLUE, "width": 1.5, "dash": "dot"},
        name="lowest mean so far",
        hoverinfo="skip",
        opacity=0.7,
    )


def _label_positions(
    entries: Sequence[VariantSummary], steps: Sequence[tuple[float, float]], x_range: Range, y_range: Range
) -> dict[str, str]:
    def place(cache: float, mean: float) -> tuple[float, float]:
        return _fraction(math.log10(cache), x_range), _fraction(mean, y_range)

    names = [entry.label for entry in entries]
    points = [place(entry.cache_bytes_per_token, entry.bits_per_byte.mean) for entry in entries]
    bars = [
        (place(e.cache_bytes_per_token, mean - below), place(e.cache_bytes_per_token, mean + above))
        for e in entries
        for mean, (above, below) in [(e.bits_per_byte.mean, _interval_around_zero(e))]
    ]
    corners = [place(*step) for step in steps]
    positions = place_labels(points, names, [*pairwise(corners), *bars])
    return dict(zip(names, positions, strict=True))


def _add_bigram(figure: go.Figure, floor: float, y_range: Range) -> None:
    """A line at the bigram model's level, or words at the edge beyond which it lies."""
    text = f"byte-bigram model {bits_text(floor)}"
    if y_range[0] <= floor <= y_range[1]:
        figure.add_hline(y=floor, line={"color": NEUTRAL, "width": 1, "dash": "dash"})
        figure.add_annotation(
            x=0.01, xref="paper", y=floor, yanchor="bottom", text=text, showarrow=False, font={"size": 11}
        )
    else:
        figure.add_annotation(
            x=0.01, xref="paper", y=1, yref="paper", yanchor="top", text=f"↑ {text}", showarrow=False,
            font={"size": 11},
        )  # fmt: skip


def _quality_range(results: Results) -> Range:
    """Around all means and intervals; the bigram level only where it does not squeeze them together."""
    means = [entry.bits_per_byte.mean for entry in results.summary]
    reach = [_interval_around_zero(entry) for entry in results.summary]
    low = min(mean - below for mean, (_, below) in zip(means, reach, strict=True))
    high = max(mean + above for mean, (above, _) in zip(means, reach, strict=True))
    span = max(high - low, 0.01)
    floor = results.bigram_bits_per_byte
    if floor < high + span:
        low, high = min(low, floor), max(high, floor)
    return low - 0.12 * span, high + 0.12 * span


def _cache_range(entries: Sequence[VariantSummary]) -> Range:
    """In powers of ten, with a margin for names beside the outermost points."""
    low, high = (math.log10(entries[end].cache_bytes_per_token) for end in (0, -1))
    margin = max(0.14 * (high - low), 0.1)
    return low - margin, high + margin


def _ticks(entries: Sequence[VariantSummary]) -> list[float]:
    """The cache sizes that occur, without those that would print over their neighbour."""
    ticks: list[float] = []
    for entry in entries:
        if not ticks or entry.cache_bytes_per_token >= MINIMUM_TICK_RATIO * ticks[-1]:
            ticks.append(entry.cache_bytes_per_token)
    return ticks


def _fraction(value: float, bounds: Range) -> float:
    return (value - bounds[0]) / (bounds[1] - bounds[0])
