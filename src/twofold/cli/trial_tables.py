"""The tables of a study of tasks, for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from twofold.cli.output import table
from twofold.cli.study_tables import Lines, in_markdown

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from twofold.report import trials
    from twofold.trials.results import TaskResults, TrialResults

FOLDED = "to baseline"  # may take two lines: the difference, and its interval
INTERVAL_WIDTH = len("[−0.0264,+0.0149]")


def tables_in_terminal(tasks: Sequence[TaskResults]) -> list[RenderableType]:
    """Of each task its title, tables, and what must be read with them. No number of theirs is cut or divided."""
    shown: list[RenderableType] = []
    for task in tasks:
        shown += [_title(task), _in_terminal(_main(task)), *_below(task)]
        for heading, lines in _more(task):
            shown += ["", heading, _in_terminal(lines)]
        shown.append("")
    return shown


def tables_in_markdown(tasks: Sequence[TaskResults]) -> str:
    """The same in Markdown."""
    pieces = []
    for task in tasks:
        pieces += [f"### {_title(task)}", in_markdown(_main(task))]
        pieces += ["\n".join(f"- {line}" for line in _below(task))] if _below(task) else []
        pieces += [piece for heading, lines in _more(task) for piece in (f"{heading}:", in_markdown(lines))]
    return "\n\n".join(pieces)


def sweep_in_terminal(tasks: Sequence[TaskResults]) -> list[RenderableType]:
    """The validation score at each point of each task's sweep."""
    shown: list[RenderableType] = []
    for task in tasks:
        shown += [task.name, _in_terminal(_sweep(task)), ""]
    return shown


def sweep_in_markdown(tasks: Sequence[TaskResults]) -> str:
    """The same in Markdown."""
    return "\n\n".join(f"### {task.name}\n\n{in_markdown(_sweep(task))}" for task in tasks)


def notes(results: TrialResults) -> list[str]:
    """What belongs to all tables."""
    from twofold.report.trials import remarks

    return remarks(results)


def _main(task: TaskResults) -> Lines:
    from twofold.report.trials import main_table

    return _lines(main_table(task))


def _more(task: TaskResults) -> list[tuple[str, Lines]]:
    """Heading and table of the parts and of the attention maps, where there are some."""
    from twofold.report.trials import attention_table, parts_table

    found = [("by part", parts_table(task)), ("attention", attention_table(task))]
    return [(heading, _lines(one)) for heading, one in found if one.rows]


def _sweep(task: TaskResults) -> Lines:
    from twofold.report.trials import sweep_table

    return _lines(sweep_table(task))


def _title(task: TaskResults) -> str:
    from twofold.report.trials import title

    return title(task)


def _below(task: TaskResults) -> list[str]:
    from twofold.report.trials import below

    return below(task)


def _lines(found: trials.Table) -> Lines:
    rows = [[f"{cell.text} {cell.detail}".rstrip() for cell in row] for row in found.rows]
    return Lines(found.headings, rows)


def _in_terminal(lines: Lines) -> Table:
    """A table whose headings stand one word below the other where the column is narrower."""
    from twofold.report.trials import LEFT

    shown = table()
    folded = lines.headings.index(FOLDED) if FOLDED in lines.headings else None
    # Without its inner space an interval stays in one piece.
    rows = [[cell.replace(", ", ",") if n == folded else cell for n, cell in enumerate(row)] for row in lines.rows]
    for number, heading in enumerate(lines.headings):
        words = heading.replace("/", "/ ").split()
        widest = max((len(row[number]) for row in rows), default=0)
        least = min(widest, INTERVAL_WIDTH) if heading == FOLDED else widest
        shown.add_column(
            heading if len(heading) <= widest else "\n".join(words),
            justify="left" if heading in LEFT else "right",
            no_wrap=heading != FOLDED,
            min_width=max(least, *map(len, words)),
        )
    for row in rows:
        shown.add_row(*row)
    return shown
