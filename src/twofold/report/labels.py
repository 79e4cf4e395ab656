"""Where the names of points go in a scatter plot, so that they stay readable on the narrowest screen.

Positions are chosen once, for a plot as small as a phone shows; on a larger one points move apart while
names keep their size, so what did not overlap there does not overlap here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

PLOT_WIDTH, PLOT_HEIGHT = 290, 320  # of the area inside the axes, in CSS pixels
CHARACTER, LINE = 7.0, 15.0  # mean width of a character and height of a line at 12 px
GAP = 9.0  # from a point's centre to its name
STROKE = 2.0  # half the width that a line keeps free
MARKER = 7.0  # half the side of the square that a point keeps free
OUTSIDE = 4.0  # how much worse a part beyond the plot's edge is than a part over something else

Point = tuple[float, float]
Line = tuple[Point, Point]

# Plotly's name of a position: where the label's box lies, horizontally and vertically, in half sizes.
POSITIONS = {
    "top right": (1, 1),
    "bottom right": (1, -1),
    "middle right": (1, 0),
    "top left": (-1, 1),
    "bottom left": (-1, -1),
    "middle left": (-1, 0),
    "top center": (0, 1),
    "bottom center": (0, -1),
}


class Box(NamedTuple):
    """A rectangle in pixels, y upwards."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: Box) -> float:
        """The common area."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(width, 0) * max(height, 0)

    @property
    def area(self) -> float:
        """Width times height."""
        return (self.right - self.left) * (self.top - self.bottom)


def place_labels(points: Sequence[Point], names: Sequence[str], lines: Sequence[Line] = ()) -> list[str]:
    """A plotly `textposition` for each name, away from points, other names and upright or level `lines`.

    Points are given as fractions of the plot's width and height, lines by their two ends.
    """
    plot = Box(0, 0, PLOT_WIDTH, PLOT_HEIGHT)
    taken = [_around(point, point, MARKER) for point in points] + [_around(*line, STROKE) for line in lines]
    chosen = []
    for point, name in zip(points, names, strict=True):
        boxes = {position: label_box(point, name, position) for position in POSITIONS}
        best = min(boxes, key=lambda position: _cost(boxes[position], taken, plot))
        taken.append(boxes[best])
        chosen.append(best)
    return chosen


def label_box(point: Point, name: str, position: str) -> Box:
    """The rectangle that a name fills at a position beside its point."""
    right, up = POSITIONS[position]
    width = CHARACTER * len(name)
    x = point[0] * PLOT_WIDTH + right * (GAP + width / 2)
    y = point[1] * PLOT_HEIGHT + up * (GAP + LINE / 2)
    return Box(x - width / 2, y - LINE / 2, x + width / 2, y + LINE / 2)


def _around(start: Point, end: Point, margin: float) -> Box:
    x = sorted((start[0] * PLOT_WIDTH, end[0] * PLOT_WIDTH))
    y = sorted((start[1] * PLOT_HEIGHT, end[1] * PLOT_HEIGHT))
    return Box(x[0] - margin, y[0] - margin, x[1] + margin, y[1] + margin)


def _cost(box: Box, taken: Sequence[Box], plot: Box) -> float:
    return sum(box.overlap(other) for other in taken) + OUTSIDE * (box.area - box.overlap(plot))
