"""What verbs print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import typer
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

WIDTH_WITHOUT_TERMINAL = 120


def print_json(value: Any) -> None:
    """Print JSON and nothing else on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def show(*renderables: RenderableType) -> None:
    """Print to standard output, one below the other; numbers are never cut, and brackets are no markup.

    Where a terminal is too narrow for a table, its lines run over. A file or a pipe has no width of its own.
    """
    fixed = sys.stdout.isatty() or "COLUMNS" in os.environ
    out = Console(width=None if fixed else WIDTH_WITHOUT_TERMINAL, highlight=False, markup=False)
    width = out.width
    for renderable in renderables:
        out.width = max(width, _least_width(out, renderable))
        out.print(renderable, soft_wrap=isinstance(renderable, str))


def table(**options: Any) -> Table:
    """The tables' common look: no frame, a rule below the header, two spaces between columns."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False, **options)


def _least_width(out: Console, renderable: RenderableType) -> int:
    measured = out.measure(renderable, options=out.options.update(max_width=10_000))
    rigid = isinstance(renderable, Table) and all(column.no_wrap for column in renderable.columns)
    return measured.maximum if rigid else measured.minimum
