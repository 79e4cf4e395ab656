"""Figures of a bench: time per token against context, how many times faster, or memory by variant."""

from __future__ import annotations

import plotly.graph_objects as go

from twofold.bench.record import BenchRecord, Row
from twofold.bench.slopes import lines
from twofold.report.formats import bytes_text, times_text
from twofold.report.look import BLUE, LINES, NEUTRAL, ORANGE, error_bars, plain, styled

LEAST_HEIGHT = 560
LINE = 22


def bench_figure(record: BenchRecord) -> go.Figure:
    """The figure that suits the record. ValueError where it holds no rows."""
    if not record.rows:
        raise ValueError("this record has no rows, so that there is nothing to draw")
    if record.bench == "generate":
        return time_per_token(record)
    return memory(record) if record.bench == "memory" else ratios(record)


def height(record: BenchRecord) -> int:
    """CSS pixels that the figure needs: what has a line for each name grows with them."""
    named = 0 if record.bench == "generate" else len({row.name for row in record.rows})
    return max(LEAST_HEIGHT, 160 + LINE * named)


def time_per_token(record: BenchRecord) -> go.Figure:
    """Milliseconds per token against tokens of context: our variants solid, the alternatives dashed."""
    figure = go.Figure()
    ours = {row.variant for row in record.rows}
    for number, (subject, points) in enumerate(lines(record).items()):
        look = LINES[number % len(LINES)] | {"dash": "solid" if subject in ours else "dash", "width": 1.8}
        figure.add_trace(
            go.Scatter(
                x=[row.context for row, _ in points],
                y=[milliseconds for _, milliseconds in points],
                mode="lines+markers",
                line=look,
                marker={"size": 6, "symbol": "circle" if subject in ours else "diamond-open"},
                name=plain(subject),
                hovertemplate=f"{plain(subject)}: %{{y:.2f}} ms<extra></extra>",
            )
        )
    figure.update_xaxes(title="tokens of context")
    figure.update_yaxes(title="milliseconds per token", rangemode="tozero")
    return styled(figure)


def ratios(record: BenchRecord) -> go.Figure:
    """Alternative over ours with half its spread to each side, one symbol for each alternative; 1 is as fast."""
    compared = [row for row in record.rows if row.ratio is not None][::-1]
    figure = go.Figure()
    figure.add_vline(x=1, line={"color": NEUTRAL, "width": 1})
    symbols = ("circle", "diamond-open", "square", "triangle-up-open")
    for number, alternative in enumerate(dict.fromkeys(row.alternative for row in compared)):
        chosen = [row for row in compared if row.alternative == alternative]
        half = [(row.spread or 0) / 2 for row in chosen]
        colour = LINES[number % len(LINES)]["color"]
        figure.add_trace(
            go.Scatter(
                x=[row.ratio for row in chosen],
                y=[plain(row.subject) for row in chosen],
                error_x=error_bars(half, half) | {"color": colour},
                mode="markers",
                marker={"size": 10, "symbol": symbols[number % len(symbols)], "color": colour},
                name=plain(alternative or ""),
                hovertext=[f"{plain(row.subject)}: {times_text(row.ratio or 0)}" for row in chosen],
                hoverinfo="text",
            )
        )
    order = list(dict.fromkeys(plain(row.subject) for row in compared))
    figure.update_yaxes(categoryorder="array", categoryarray=order, range=[-0.6, len(order) - 0.4])
    figure.update_xaxes(title="times faster than the alternative (its time over ours)", rangemode="tozero")
    return styled(figure)


def memory(record: BenchRecord) -> go.Figure:
    """Resident bytes by variant with the formula's beside them; with a limit, the longest context of each."""
    rows = record.rows[::-1]
    names = [plain(row.variant or row.subject) for row in rows]
    figure = go.Figure()
    if any(row.parameters for row in rows):
        figure.add_trace(_bars(names, [row.context or 0 for row in rows], BLUE, "longest context"))
        figure.update_xaxes(title="tokens of context that fit")
        return styled(figure).update_layout(showlegend=False)
    figure.add_trace(_bars(names, [_gib(row.resident_bytes) for row in rows], BLUE, "resident", _texts(rows)))
    figure.add_trace(
        go.Scatter(
            x=[_gib(row.bytes) for row in rows],
            y=names,
            mode="markers",
            marker={"symbol": "line-ns-open", "size": 18, "color": ORANGE, "line": {"width": 3}},
            name="by the formula",
            hoverinfo="skip",
        )
    )
    figure.update_xaxes(title="GiB of cache")
    return styled(figure)


def _bars(names: list[str], values: list[float], colour: str, name: str, texts: list[str] | None = None) -> go.Bar:
    texts = [f"{value:,}" for value in values] if texts is None else texts
    return go.Bar(
        x=values, y=names, orientation="h", marker={"color": colour}, name=name, text=texts, textposition="auto"
    )


def _texts(rows: tuple[Row, ...]) -> list[str]:
    return [bytes_text(row.resident_bytes or 0) for row in rows]


def _gib(count: int | None) -> float:
    return (count or 0) / 2**30
