"""The sweep in a report: at which points each variant was tried, how it scored there, and which one it ran at."""

from __future__ import annotations

from typing import Any, NamedTuple

import plotly.graph_objects as go

from twofold.report.formats import bits_text, list_text
from twofold.report.look import LINES, plain, styled, sweep_marker
from twofold.study.picking import Tried, at_the_edge
from twofold.study.results import Results
from twofold.study.sweep import point_text, value_text


class TriedCell(NamedTuple):
    """One variant at one point. `kind` is `chosen`, `tried`, `diverged` or `missing`."""

    text: str
    kind: str


class SweepTable(NamedTuple):
    """Bits per byte on the picking documents: a column for each point, a row for each variant."""

    points: list[str]
    rows: list[tuple[str, list[TriedCell]]]


def sweep_table(results: Results) -> SweepTable:
    """Every point of the sweep, in the study's order; without rows where nothing was swept."""
    points = list(dict.fromkeys(point_text(one.point) for one in results.sweep))
    tried = {(one.label, point_text(one.point)): one for one in results.sweep}
    labels = dict.fromkeys(one.label for one in results.sweep)
    return SweepTable(points, [(label, [_cell(tried.get((label, point))) for point in points]) for label in labels])


def ran_with(results: Results) -> dict[str, str]:
    """Label → `learning_rate 0.003`, what each variant was trained with; empty without a sweep."""
    return {run.label: point_text(run.point) for run in results.runs} if results.sweep else {}


def sweep_notes(results: Results) -> list[str]:
    """What each variant ran with, what was told from what, and which variants a wider sweep might serve."""
    if not results.sweep:
        return []
    groups: dict[str, list[str]] = {}
    for label, point in ran_with(results).items():
        groups.setdefault(point, []).append(label)
    ran = "; ".join(f"{list_text(labels)} with {point}" for point, labels in groups.items())
    scored, whole = results.runs[0].validation.bytes, results.corpus.held_out_bytes
    return [
        f"Each variant ran at its own best point of the sweep: {ran}.",
        f"Half of the held-out documents picked these points, and everything reported here is of the other half alone "
        f"({scored:,} of {whole:,} bytes); the byte-bigram model's level is of both.",
        *edge_notes(results),
    ]


def edge_notes(results: Results) -> list[str]:
    """A sentence for each value at which a wider sweep might do better."""
    found: dict[str, list[str]] = {}
    for label, value in at_the_edge(results.sweep):
        found.setdefault(value, []).append(label)
    return [
        f"At the edge of the sweep: {list_text(labels)} with {value}; a wider one may do better."
        for value, labels in found.items()
    ]


def sweep_figure(results: Results) -> go.Figure:
    """Bits per byte on the picking documents against the first swept number, one line for each variant.

    Where several things are swept, each combination of the others has a line of its own. Chosen points are larger.
    """
    figure = go.Figure()
    key = _abscissa(results.sweep)
    if key is None:
        return figure
    look = {entry.label: LINES[i % len(LINES)] for i, entry in enumerate(results.summary)}
    lines: dict[tuple[str, str], list[Tried]] = {}
    for one in results.sweep:
        rest = point_text({name: value for name, value in one.point.items() if name != key})
        lines.setdefault((one.label, rest), []).append(one)
    for (label, rest), tries in lines.items():
        scored = sorted((one for one in tries if not one.diverged), key=lambda one: one.point[key])
        if scored:
            figure.add_trace(_line(label, rest, key, scored, look.get(label, LINES[-1])))
    positive = all(one.point[key] > 0 for one in results.sweep)
    name = key.partition(".")[2]
    ticks = sorted({one.point[key] for one in results.sweep})
    figure.update_xaxes(title=f"{name} (log scale)" if positive else name, type="log" if positive else "linear")
    figure.update_xaxes(tickvals=ticks, ticktext=[value_text(tick) for tick in ticks])
    figure.update_yaxes(title="bits per byte, picking documents")
    return styled(figure)


def _cell(one: Tried | None) -> TriedCell:
    if one is None:
        return TriedCell("–", "missing")
    if one.bits_per_byte is None:
        return TriedCell("diverged", "diverged")
    return TriedCell(bits_text(one.bits_per_byte), "chosen" if one.chosen else "tried")


def _abscissa(sweep: tuple[Tried, ...]) -> str | None:
    """The first key whose values are numbers."""
    keys = sweep[0].point if sweep else {}
    return next((key for key in keys if all(_is_number(one.point[key]) for one in sweep)), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _line(label: str, rest: str, key: str, tries: list[Tried], look: dict[str, str]) -> go.Scatter:
    name = plain(f"{label}, {rest}" if rest else label)
    return go.Scatter(
        x=[one.point[key] for one in tries],
        y=[one.bits_per_byte for one in tries],
        mode="lines+markers",
        line=look | {"width": 1.8},
        marker=sweep_marker(look["color"], [one.chosen for one in tries]),
        name=name,
        hovertemplate=f"{name}, {plain(key.partition('.')[2])} %{{x}}: %{{y:.4f}}<extra></extra>",
    )
