"""`twofold study show` of a study of tasks: its tables, its JSON, or one of its figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from twofold.cli.output import print_json, show
from twofold.cli.trial_tables import (
    notes,
    sweep_in_markdown,
    sweep_in_terminal,
    tables_in_markdown,
    tables_in_terminal,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from twofold.trials.results import TaskResults, TrialResults


def chosen_tasks(results: TrialResults, name: str | None) -> tuple[TaskResults, ...]:
    """All tasks, or the one of that name. ValueError where there is none."""
    found = tuple(task for task in results.tasks if name in (None, task.name))
    if not found:
        names = ", ".join(task.name for task in results.tasks)
        raise ValueError(f"the study {results.study} has no results of a task {name!r}: its tasks are {names}")
    return found


def show_task_results(
    results: TrialResults, task: str | None, *, sweep: bool = False, as_markdown: bool = False, as_json: bool = False
) -> None:
    """Print tables or JSON of all tasks, or of one; with `sweep` those of its points."""
    tasks = chosen_tasks(results, task)
    if sweep:
        swept = [one for one in tasks if one.sweep]
        if not swept:
            raise ValueError(f"the study {results.study} has no sweep: there are no points to show")
        if as_json:
            print_json([{"task": one.name, **tried.model_dump(mode="json")} for one in swept for tried in one.sweep])
        elif as_markdown:
            typer.echo(sweep_in_markdown(swept))
        else:
            show(*sweep_in_terminal(swept))
    elif as_json:
        print_json(results.model_copy(update={"tasks": tasks}).model_dump(mode="json"))
    elif as_markdown:
        typer.echo("\n\n".join([tables_in_markdown(tasks), "\n".join(f"- {line}" for line in notes(results))]))
    else:
        show(*tables_in_terminal(tasks), *notes(results))


def task_drawing(results: TrialResults, task: str | None, figure: str, folder: Path) -> go.Figure:
    """A figure of one task; of `parts`, a panel for each task that has some. Maps are read from the runs in `folder`.

    ValueError where a task must be named, or there is nothing to draw.
    """
    from twofold.report.trial_figures import parts_figure

    tasks = chosen_tasks(results, task)
    if figure == "parts":
        return _drawn(parts_figure(tasks), tasks, "no parts of the test set: `scores` draws the whole")
    if len(tasks) > 1:
        names = ", ".join(one.name for one in tasks)
        raise ValueError(f"{figure} are drawn of one task: name it with --task, one of {names}")
    return _of_one(tasks[0], figure, folder)


def image_height(figure: go.Figure) -> int:
    """Pixels that an image of a figure takes: more where panels stand below each other."""
    return max(560, 250 * len({axis.domain for axis in figure.select_yaxes()}))


def _of_one(task: TaskResults, figure: str, folder: Path) -> go.Figure:
    from twofold.report import trial_figures
    from twofold.report.trial_maps import maps_figure, maps_of
    from twofold.trials.maps import read_maps

    if figure == "maps":
        missing = f"no attention maps in {folder}: they stand in the runs' records, of encoders that read few tokens"
        return _drawn(maps_figure(maps_of(read_maps(folder), task)), [task], missing)
    if figure == "sweep":
        return _drawn(trial_figures.sweep_figure(task), [task], "no sweep over numbers: there are no points to draw")
    if figure == "looks":
        return _drawn(trial_figures.looks_figure(task), [task], "no scores from while it trained")
    if figure == "curves":
        return _drawn(trial_figures.curves_figure(task), [task], "no training losses")
    return _drawn(trial_figures.scores_figure(task), [task], "no test score yet")


def _drawn(figure: go.Figure, tasks: Sequence[TaskResults], missing: str) -> go.Figure:
    if not figure.data:
        raise ValueError(f"{', '.join(one.name for one in tasks)}: {missing}")
    return figure
