"""Figures of `twofold explain`: measures over the layers, heat maps by layer and head, and spectra."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from twofold.explain.record import Explanation
from twofold.report.explain_families import Words
from twofold.report.explain_words import BASELINE, UNDRAWN, is_baseline, line_name, words_of
from twofold.report.look import BLUE, LINE_COLOURS, NEUTRAL, ORANGE, plain, styled

SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x", "star", "hexagon")


def depth_figure(models: Sequence[Explanation], labels: Sequence[str], section: str, words: Words) -> go.Figure:
    """The measures of one family over the layers; a second model's lines are dashed. What to hold them against is
    dotted, and the largest possible dash-dotted.

    Empty where no model has a number of the family.
    """
    figure = go.Figure()
    names = [name for name in _names(models, section) if words_of(section, name) == words]
    looks = {name: look for look, name in enumerate(dict.fromkeys(BASELINE.sub("", name) for name in names))}
    for number, (one, label) in enumerate(zip(models, labels, strict=True)):
        for name in names:
            values = one.series(section, name)
            if values:
                said = line_name(section, name) + (f", {label}" if len(models) > 1 else "")
                layers = [layer.layer for layer in one.layers]
                look = looks[BASELINE.sub("", name)]
                figure.add_trace(_line(layers, values, said, look, is_baseline(name), _dash(name, number)))
    most = max((layer.layer for one in models for layer in one.layers), default=0)
    figure.update_xaxes(title="layer", tick0=0, dtick=most // 10 + 1)
    figure.update_yaxes(rangemode="tozero")
    return styled(figure)


def heads_figure(one: Explanation, name: str) -> go.Figure:
    """A heat map of one measure, layers from the top and heads from the left; blue grows, and below 0 it is orange.

    Empty where no layer has it.
    """
    rows = [(layer.layer, layer.heads[name]) for layer in one.layers if layer.heads.get(name)]
    values = [value for _, row in rows for value in row if value is not None]
    figure = go.Figure()
    if not values:
        return figure
    largest = max(max(values), -min(values)) or 1.0
    signed = min(values) < 0
    figure.add_trace(
        go.Heatmap(
            z=[list(row) for _, row in rows],
            y=[str(layer) for layer, _ in rows],
            zmin=-largest if signed else 0,
            zmax=largest,
            colorscale=[[0, ORANGE], [0.5, _clear(BLUE)], [1, BLUE]] if signed else [[0, _clear(BLUE)], [1, BLUE]],
            colorbar={"thickness": 10, "outlinewidth": 0, "tickfont": {"size": 11}},
            xgap=1,
            ygap=1,
            hovertemplate="layer %{y} head %{x}: %{z:.4g}<extra></extra>",
        )
    )
    figure.update_xaxes(title="head", showgrid=False, dtick=max(1, len(rows[0][1]) // 8))
    figure.update_yaxes(title="layer", showgrid=False, type="category", autorange="reversed")
    return styled(figure)


def spectra_figure(one: Explanation, section: str, name: str) -> go.Figure:
    """A list of numbers of each layer as one line, from grey in the first layer to blue in the last."""
    figure = go.Figure()
    for place, layer in enumerate(one.layers):
        measures = getattr(layer, section)
        values = measures.get(name)
        if not isinstance(values, tuple) or not values:
            continue
        dims = measures.get(f"{name.rsplit('_', 1)[0]}_dims")
        share = place / max(len(one.layers) - 1, 1)
        figure.add_trace(
            go.Scatter(
                x=list(dims) if isinstance(dims, tuple) else list(range(1, len(values) + 1)),
                y=list(values),
                mode="lines",
                line={"color": _between(NEUTRAL, BLUE, share), "width": 1.3},
                name=f"layer {layer.layer}",
                showlegend=place in (0, len(one.layers) - 1),
                hovertemplate=f"layer {layer.layer}, %{{x}}: %{{y:.4g}}<extra></extra>",
            )
        )
    figure.update_xaxes(title="dimensions, from the strongest")
    figure.update_yaxes(rangemode="tozero")
    return styled(figure)


def list_names(one: Explanation, section: str) -> list[str]:
    """The names in a section that hold a list in some layer; `…_dims` are what others are drawn against."""
    return [
        name
        for name in one.names(section)
        if not name.endswith("_dims")
        and any(isinstance(getattr(layer, section).get(name), tuple) for layer in one.layers)
    ]


def families(models: Sequence[Explanation], section: str) -> list[Words]:
    """The families that have a single number in some layer of some model, in the order of the records."""
    names = [name for name in _names(models, section) if any(one.series(section, name) for one in models)]
    return list(dict.fromkeys(words_of(section, name) for name in names if name not in UNDRAWN))


def _names(models: Sequence[Explanation], section: str) -> list[str]:
    return list(dict.fromkeys(name for one in models for name in one.names(section)))


def _line(layers: list[int], values: list[float | None], said: str, look: int, baseline: bool, dash: str) -> go.Scatter:
    return go.Scatter(
        x=layers,
        y=values,
        mode="lines" if baseline else "lines+markers",
        line={"color": LINE_COLOURS[look % len(LINE_COLOURS)], "width": 1.8, "dash": dash},
        marker={"symbol": SYMBOLS[look % len(SYMBOLS)], "size": 6},
        name=plain(said),
        hovertemplate=f"layer %{{x}}, {plain(said)}: %{{y:.4g}}<extra></extra>",
    )


def _dash(name: str, model: int) -> str:
    if mark := BASELINE.search(name):
        return "dashdot" if mark[1] == "most" else "dot"
    return "solid" if model == 0 else "dash"


def _clear(colour: str) -> str:
    red, green, blue = _rgb(colour)
    return f"rgba({red}, {green}, {blue}, 0.04)"


def _between(first: str, last: str, share: float) -> str:
    mixed = (round(a + (b - a) * share) for a, b in zip(_rgb(first), _rgb(last), strict=True))
    return "rgb({}, {}, {})".format(*mixed)


def _rgb(colour: str) -> tuple[int, int, int]:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return red, green, blue
