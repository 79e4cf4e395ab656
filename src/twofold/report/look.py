"""How figures look: colours, dashes, and the layout that all share.

Figures are made in the light theme and the page recolours them for the dark one. Colours of marks keep a
contrast of at least 3:1 on both backgrounds, and no meaning hangs on colour alone: shape or dash says the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from twofold.study.record import write_atomically

IMAGE_KINDS = ("svg", "png", "pdf")
LIGHT_PAPER, DARK_PAPER = "#fdfdfb", "#14171c"
INK, GRID = "#1c2128", "#e6e6e1"  # of the light theme; the page sets its own for both
BLUE, ORANGE, NEUTRAL = "#3b7dd8", "#cf6a10", "#7f8894"
LINE_COLOURS = (BLUE, ORANGE, "#2b9a63", "#c64a9a", "#8a63d2", "#0e93a5", "#d2484e", "#8a7650")
LINES = [{"dash": dash, "color": colour} for dash, colour in product(("solid", "dash", "dot"), LINE_COLOURS)]
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def plain(text: str) -> str:
    """Text as plotly is to print it: it reads a little HTML, and only these three of its escapes."""
    return escape(text, quote=False)


def styled(figure: go.Figure) -> go.Figure:
    """Give a figure the common look; returns the same figure."""
    figure.update_layout(
        template=go.layout.Template(),  # plotly's own default weighs more than the data
        autosize=True,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": FONT, "size": 13, "color": INK},
        margin={"l": 8, "r": 12, "t": 8, "b": 8},
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
        hoverlabel={"align": "left"},
        dragmode=False,  # a finger on a figure scrolls the page
    )
    axis = {"gridcolor": GRID, "zeroline": False, "automargin": True, "fixedrange": True}
    axis |= {"title_standoff": 12, "title_font_size": 13}
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    return figure


def sweep_marker(colour: str, chosen: Sequence[bool]) -> dict[str, Any]:
    """Plotly's description of a sweep's points: a large star where one was chosen."""
    return {
        "color": colour,
        "opacity": 1,
        "size": [13 if one else 6 for one in chosen],
        "symbol": ["star" if one else "circle" for one in chosen],
    }


def error_bars(above: Sequence[float], below: Sequence[float]) -> dict[str, Any]:
    """Plotly's description of error bars of unequal halves, as lengths from the point."""
    return {
        "type": "data",
        "symmetric": False,
        "array": list(above),
        "arrayminus": list(below),
        "thickness": 1.4,
        "width": 4,
    }


_NEEDS = (
    "cannot draw {}: images need the package kaleido (`pip install -e '.[images]'` in a checkout) and an installed "
    "Chrome or Chromium"
)


def write_image(figure: go.Figure, path: Path, width: int = 900, height: int = 560) -> None:
    """Write a figure as an image of the kind that the file's ending names (svg, png, pdf); sizes in CSS pixels.

    ValueError where the kind is unknown, or where kaleido or the Chrome that it draws with is missing.
    """
    _check_kind(path)
    still = go.Figure(figure).update_layout(paper_bgcolor=LIGHT_PAPER, margin={"l": 16, "r": 24, "t": 16, "b": 16})
    try:
        image = still.to_image(format=path.suffix.removeprefix("."), width=width, height=height, scale=2)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{_NEEDS.format(path.name)}. Plotly says: {' '.join(str(error).split())[:160]}") from error
    write_atomically(path, image)


def check_drawable(path: Path) -> None:
    """Raise ValueError where `path` names no kind of image, or where the package that draws is missing."""
    _check_kind(path)
    if find_spec("kaleido") is None:
        raise ValueError(_NEEDS.format(path.name))


def _check_kind(path: Path) -> None:
    if path.suffix.removeprefix(".") not in IMAGE_KINDS:
        raise ValueError(f"{path.name}: an image ends in {', '.join(f'.{known}' for known in IMAGE_KINDS)}")
