"""Tables in words, for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.table import Table

from twofold.cli.output import table


class Grid(NamedTuple):
    """A table in words: headings of two lines, of which an empty first one goes on with that before; `labels` columns
    on the left are text.
    """

    headings: list[str]
    rows: list[list[str]]
    labels: int = 1


def of_columns(columns: Sequence[tuple[str, list[str]]]) -> Grid:
    """A grid from columns of equal length, each with its heading; the first is text."""
    rows = [list(cells) for cells in zip(*(values for _, values in columns), strict=True)]
    return Grid([heading for heading, _ in columns], rows)


def drawn(grid: Grid) -> Table:
    """For the terminal."""
    shown = table()
    for number, heading in enumerate(grid.headings):
        shown.add_column(heading, justify="left" if number < grid.labels else "right", no_wrap=True)
    for row in grid.rows:
        if row[0] == "mean" and not (shown.rows and shown.rows[-1].end_section):
            shown.add_section()
        shown.add_row(*row)
    return shown


def markdown(grid: Grid) -> str:
    """As Markdown, with headings of one line."""
    names, group = [], ""
    for heading in grid.headings:
        first, _, second = heading.partition("\n")
        group = first or group
        names.append(" ".join(filter(None, (group, second))))
    rule = [":--" if number < grid.labels else "--:" for number in range(len(names))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (names, rule, *grid.rows))
