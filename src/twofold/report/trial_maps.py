"""Attention maps of a task as small heat maps, one for each layer and head."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from twofold.report.look import BLUE, plain, styled
from twofold.trials.maps import Maps
from twofold.trials.record import AttentionMap
from twofold.trials.results import TaskResults

COLUMNS = 4
SHADES = 16
_BLUE = ", ".join(str(int(BLUE[i : i + 2], 16)) for i in (1, 3, 5))
SCALE = [[(n / SHADES) ** 2, f"rgba({_BLUE}, {n / SHADES:.4f})"] for n in range(SHADES + 1)]
"""From nothing to blue with the square root of the weight, so that an even spread over many positions is still seen;
transparent, so that it suits a light and a dark page.
"""


def maps_figure(maps: dict[str, tuple[AttentionMap, ...]]) -> go.Figure:
    """The maps of some variants, by label; rows are query positions from the top, columns the positions looked at.

    All share one scale from 0 to 1.
    """
    shown = [(label, one) for label, of_label in maps.items() for one in of_label]
    if not shown:
        return go.Figure()
    columns = columns_of(next(iter(maps.values())))
    places = _places(maps, columns)
    rows = max(row for row, _ in places)
    titles = dict(zip(places, (_title(label, one, len(maps) > 1) for label, one in shown), strict=True))
    grid = [titles.get((row, column), "") for row in range(1, rows + 1) for column in range(1, columns + 1)]
    gap = 0.18 / rows
    figure = make_subplots(rows, columns, subplot_titles=grid, horizontal_spacing=0.02, vertical_spacing=gap)
    for (row, column), (label, one) in zip(places, shown, strict=True):
        figure.add_trace(_heat(label, one), row, column)
    styled(figure)
    figure.update_annotations(font_size=10)
    figure.update_xaxes(showticklabels=False, ticks="", showgrid=False, constrain="domain")
    figure.update_yaxes(showticklabels=False, ticks="", showgrid=False, constrain="domain", autorange="reversed")
    for axis in range(1, rows * columns + 1):
        number = axis if axis > 1 else ""
        place = figure.layout[f"yaxis{number}"]
        place.update(scaleanchor=f"x{number}", domain=[share * (1 - gap) for share in place.domain])
    for note in figure.layout.annotations:
        note.y *= 1 - gap  # room for the first row's titles within the figure, whatever its margins
    figure.update_layout(margin={"l": 4, "r": 4, "t": 4, "b": 4})
    return figure


def columns_of(maps: Sequence[AttentionMap]) -> int:
    """Maps beside each other: all where they are few, else a layer's heads, and never more than fit a phone."""
    heads = len({one.head for one in maps})
    return len(maps) if len(maps) <= COLUMNS else min(heads, COLUMNS)


def maps_of(maps: Maps, task: TaskResults) -> dict[str, tuple[AttentionMap, ...]]:
    """The maps of a task's variants that have some, in the order of its table."""
    found = maps.get(task.name, {})
    return {one.label: found[one.label] for one in task.summary if found.get(one.label)}


def _places(maps: dict[str, tuple[AttentionMap, ...]], columns: int) -> list[tuple[int, int]]:
    """Row and column of each map, from 1; each variant begins a row."""
    places, row = [], 1
    for of_label in maps.values():
        places += [(row + index // columns, index % columns + 1) for index in range(len(of_label))]
        row += -(-len(of_label) // columns)
    return places


def _title(label: str, one: AttentionMap, several: bool) -> str:
    place = f"layer {one.layer + 1} head {one.head + 1}"
    return f"{plain(label)}<br>{place}" if several else place


def _heat(label: str, one: AttentionMap) -> go.Heatmap:
    place = f"{plain(label)}, layer {one.layer + 1} head {one.head + 1}"
    return go.Heatmap(
        z=[[round(weight, 3) for weight in row] for row in one.weights],
        zmin=0,
        zmax=1,
        colorscale=SCALE,
        showscale=False,
        hovertemplate=f"{place}<br>position %{{y}} gives %{{x}}: %{{z:.3f}}<extra></extra>",
    )
