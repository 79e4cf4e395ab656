"""The report's other figures: differences with their intervals, training curves, and gaps between them."""

from __future__ import annotations

from collections.abc import Callable

import plotly.graph_objects as go

from twofold.report.formats import interval_text, signed_text
from twofold.report.look import BLUE, LINES, NEUTRAL, ORANGE, error_bars, plain, styled
from twofold.study.results import Results, Run
from twofold.study.statistics import Comparison, VariantSummary

Line = list[tuple[int, float]]  # (training tokens, value) in the order of training


def by_cache(results: Results) -> list[VariantSummary]:
    """The variants from the largest cache to the smallest, the better first where caches are equal."""
    return sorted(results.summary, key=lambda e: (-e.cache_bytes_per_token, e.bits_per_byte.mean))


def differences_figure(results: Results) -> go.Figure:
    """Bits per byte minus the baseline's with its 95 % interval; filled where the interval excludes zero."""
    compared = [e.difference_to_baseline for e in by_cache(results) if e.difference_to_baseline][::-1]
    figure = go.Figure()
    figure.add_vline(x=0, line={"color": NEUTRAL, "width": 1})
    for separable in (True, False):
        chosen = [comparison for comparison in compared if comparison.separable == separable]
        if chosen:
            figure.add_trace(_intervals(chosen, separable))
    order = [plain(comparison.a) for comparison in compared]
    figure.update_yaxes(categoryorder="array", categoryarray=order, range=[-0.6, len(order) - 0.4])
    figure.update_xaxes(title=f"bits per byte minus {plain(results.baseline)}’s")
    return styled(figure)


def curves_figure(results: Results) -> go.Figure:
    """Training loss in nats per token against training tokens, one line for each run."""
    figure = _lines(results, lambda run: [(point.tokens, point.loss) for point in run.curve])
    figure.update_xaxes(title="training tokens (log scale)", type="log", dtick=1)
    figure.update_yaxes(title="training loss, nats per token")
    return styled(figure)


def gaps_figure(results: Results) -> go.Figure:
    """Training loss minus the baseline's at the same seed and tokens: the same batches, so their noise cancels."""
    of_baseline = {
        run.seed: {point.tokens: point.loss for point in run.curve}
        for run in results.runs
        if run.label == results.baseline
    }

    def gaps(run: Run) -> Line:
        common = of_baseline.get(run.seed, {}) if run.label != results.baseline else {}
        return [(p.tokens, p.loss - common[p.tokens]) for p in run.curve if p.tokens in common]

    figure = _lines(results, gaps)
    figure.add_hline(y=0, line={"color": NEUTRAL, "width": 1})
    figure.update_xaxes(title="training tokens")
    figure.update_yaxes(title=f"training loss minus {plain(results.baseline)}’s, nats")
    return styled(figure)


def _intervals(compared: list[Comparison], separable: bool) -> go.Scatter:
    bounds = [comparison.interval or (comparison.difference,) * 2 for comparison in compared]
    above = [high - c.difference for c, (_, high) in zip(compared, bounds, strict=True)]
    below = [c.difference - low for c, (low, _) in zip(compared, bounds, strict=True)]
    colour = BLUE if separable else ORANGE
    return go.Scatter(
        x=[comparison.difference for comparison in compared],
        y=[plain(comparison.a) for comparison in compared],
        error_x=error_bars(above, below) | {"color": colour},
        mode="markers",
        name="interval excludes zero" if separable else "not separable",
        marker={"symbol": "circle" if separable else "diamond-open", "size": 11, "color": colour},
        hovertext=[f"{plain(c.a)}: {signed_text(c.difference)}<br>{interval_text(c)}" for c in compared],
        hoverinfo="text",
    )


def _lines(results: Results, values: Callable[[Run], Line]) -> go.Figure:
    """One line for each run that has values; seeds of one variant look alike and share a legend entry."""
    figure = go.Figure()
    look = {entry.label: LINES[i % len(LINES)] for i, entry in enumerate(results.summary)}
    shown: set[str] = set()
    for run in results.runs:
        line = values(run)
        if line:
            figure.add_trace(_line(run, line, look[run.label], run.label not in shown))
            shown.add(run.label)
    return figure


def _line(run: Run, line: Line, look: dict[str, str], named: bool) -> go.Scatter:
    name = plain(run.label)
    return go.Scatter(
        x=[tokens for tokens, _ in line],
        y=[value for _, value in line],
        mode="lines",
        line=look | {"width": 1.8},
        name=name,
        legendgroup=name,
        showlegend=named,
        hovertemplate=f"{name}, seed {run.seed}: %{{y:.4f}}<extra></extra>",
    )
