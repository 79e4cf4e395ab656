"""`twofold study show`: finished results of a study, a family or a study of tasks, as tables, JSON or an image."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twofold.cli.output import print_json, show
from twofold.cli.study_tables import (
    Lines,
    gap_table,
    in_markdown,
    in_terminal,
    progress_table,
    scores,
    summary,
    sweep_points,
    warnings,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from twofold.study.gaps import Gaps
    from twofold.study.results import Results
    from twofold.trials.results import TrialResults

SHOW_EXAMPLES = """[bold]Examples[/bold]
  twofold study show runs/demo
  twofold study show runs/demo --markdown
  twofold study show runs/demo --to-loss 1.9
  twofold study show runs/demo --image frontier.svg
  twofold study show runs/demo --image differences.svg --figure differences
  twofold study show runs/swept --sweep --markdown
  twofold study show runs/demo --scores --markdown
  twofold study show runs/recall --task recall
  twofold study show runs/recall --image parts.svg --figure parts"""

ResultsPath = Annotated[
    Path, typer.Argument(help="A results.json, a family's gaps.json, or the folder that holds one.")
]


class Figure(StrEnum):
    """What `study show --image` draws."""

    FRONTIER = "frontier"
    DIFFERENCES = "differences"
    SWEEP = "sweep"
    GAPS = "gaps"
    SCORES = "scores"
    PARTS = "parts"
    LOOKS = "looks"
    CURVES = "curves"
    MAPS = "maps"


OF_TEXT = (Figure.FRONTIER, Figure.DIFFERENCES, Figure.GAPS)
OF_TASKS = (Figure.SCORES, Figure.PARTS, Figure.LOOKS, Figure.CURVES, Figure.MAPS)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def show_results(
    results: ResultsPath,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    to_loss: Annotated[
        float | None,
        typer.Option(help="Show training tokens to this training loss (nats per token) instead.", show_default=False),
    ] = None,
    image: Annotated[
        Path | None,
        typer.Option(help="Write a figure as .svg, .png or .pdf instead.", show_default=False),
    ] = None,
    figure: Annotated[
        Figure | None,
        typer.Option(
            help="Which: quality against cache, differences to the baseline, the sweep's points, or a family's gaps. "
            "Of tasks: scores, their parts, scores while training, losses, or attention maps.",
            show_default="frontier, gaps of a family, or scores of tasks",
        ),
    ] = None,
    sweep: Annotated[bool, typer.Option("--sweep", help="Show the points of the study's sweep instead.")] = False,
    of_scores: Annotated[
        bool, typer.Option("--scores", help="Show the softmax's entropy and the gradient's size alone.")
    ] = False,
    task: Annotated[
        str | None, typer.Option("--task", help="Show one task alone, of a study of tasks.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show finished results; writes nothing but the image that is asked for."""
    from twofold.study.gaps import Gaps
    from twofold.trials.results import TrialResults

    found = _read(results)
    if isinstance(found, TrialResults):
        _require_none_of_text(results, figure, {"--to-loss": to_loss is not None, "--scores": of_scores})
        if image is not None:
            _write_task_image(found, task, figure or Figure.SCORES, results, image)
            return
        from twofold.cli.trial_show import show_task_results

        show_task_results(found, task, sweep=sweep, as_markdown=as_markdown, as_json=as_json)
        return
    _require_none_of_tasks(results, figure, task)
    if image is not None:
        from twofold.report.look import write_image

        write_image(_drawing(found, figure, results), image)
        return
    if of_scores:
        _show_table(_scores_as_data(found), _measured_scores(found), as_markdown, as_json)
    elif isinstance(found, Gaps):
        if sweep or to_loss is not None:
            raise ValueError(_of_one_member(found, results))
        _show_table(found, gap_table(found), as_markdown, as_json, warnings(found))
        _show_scores_below(found, as_markdown or as_json)
    elif to_loss is not None:
        from twofold.study.progress_to_loss import progress_to

        progress = progress_to(to_loss, found)
        if as_json:
            print_json([one.model_dump(mode="json") for one in progress])
        else:
            show(progress_table(progress))
    elif sweep:
        _require_sweep(found)
        tried = [one.model_dump(mode="json") for one in found.sweep]
        _show_table(tried, sweep_points(found), as_markdown, as_json)
    else:
        _show_table(found, summary(found), as_markdown, as_json, warnings(found))
        if found.sweep and not as_markdown and not as_json:
            show("", *sweep_part(found))
        _show_scores_below(found, as_markdown or as_json)


def _read(path: Path) -> Results | Gaps | TrialResults:
    """What a study's or a family's folder, or one of their files, holds."""
    from twofold.study.gaps import GAPS_JSON, read_gaps
    from twofold.study.results import RESULTS_JSON, read_results
    from twofold.trials.plan import is_of_tasks
    from twofold.trials.results import read_trial_results

    names = (RESULTS_JSON, GAPS_JSON)
    file = next((path / name for name in names if (path / name).is_file()), path / RESULTS_JSON)
    file = file if path.is_dir() else path
    if not file.is_file():
        what = "`twofold study report` makes it" if path.is_dir() else "give a results.json or a study's folder"
        raise ValueError(f"{file} is not there: {what}")
    if file.name == GAPS_JSON:
        return read_gaps(file)
    return read_trial_results(file) if is_of_tasks(file) else read_results(file)


def _require_none_of_text(path: Path, figure: Figure | None, options: dict[str, bool]) -> None:
    asked = [name for name, is_given in options.items() if is_given]
    asked += [f"--figure {figure}"] if figure in OF_TEXT else []
    if asked:
        raise ValueError(f"{path} is a study of tasks, and {asked[0]} is of studies of text")


def _require_none_of_tasks(path: Path, figure: Figure | None, task: str | None) -> None:
    asked = ["--task"] if task is not None else []
    asked += [f"--figure {figure}"] if figure in OF_TASKS else []
    if asked:
        raise ValueError(f"{path} is a study of text, and {asked[0]} is of studies of tasks")


def _write_task_image(found: TrialResults, task: str | None, figure: Figure, path: Path, image: Path) -> None:
    from twofold.cli.trial_show import image_height, task_drawing
    from twofold.report.look import write_image

    drawing = task_drawing(found, task, figure.value, path if path.is_dir() else path.parent)
    write_image(drawing, image, height=image_height(drawing))


def read_one(path: Path) -> Results:
    """The results of one study of text; ValueError for a study of tasks and, naming the members, for a family."""
    from twofold.study.gaps import Gaps
    from twofold.trials.results import TrialResults

    found = _read(path)
    if isinstance(found, TrialResults):
        raise ValueError(f"{path} is a study of tasks, and this is asked of a study of text")
    if isinstance(found, Gaps):
        raise ValueError(_of_one_member(found, path))
    return found


def _of_one_member(gaps: Gaps, path: Path) -> str:
    folder = path if path.is_dir() else path.parent
    members = ", ".join(str(folder / member.folder) for member in gaps.members if member.variants)
    return f"{path} is a family of studies, and this is asked of one: give one of {members}"


def _require_sweep(results: Results) -> None:
    if not results.sweep:
        raise ValueError(f"the study {results.study} has no sweep: there are no points to show")


def _measured_scores(found: Results | Gaps) -> Lines:
    lines = scores(found)
    if not lines.rows:
        raise ValueError(
            f"the runs of {found.study} have no entropy and no gradient's size: they were made by a version that did "
            "not measure them; run the study again in another folder"
        )
    return lines


def _scores_as_data(found: Results | Gaps) -> list[dict[str, Any]]:
    """The numbers of the table of scores: of each variant, in each member."""
    from twofold.study.gaps import Gaps

    told = {"label", "softmax", "gradient"}
    if isinstance(found, Gaps):
        of_members = [(member.values, gap) for member in found.members for gap in member.variants]
        return [{**values, **gap.model_dump(mode="json", include=told)} for values, gap in of_members]
    return [entry.model_dump(mode="json", include=told) for entry in found.summary]


def _show_scores_below(found: Results | Gaps, alone: bool) -> None:
    """The second table in a terminal, where runs have it; Markdown and JSON have one thing at a time."""
    lines = scores(found)
    if lines.rows and not alone:
        show("", in_terminal(lines))


def _drawing(found: Results | Gaps, figure: Figure | None, path: Path) -> go.Figure:
    from twofold.report.figures import differences_figure
    from twofold.report.frontier import frontier_figure
    from twofold.report.gaps import gaps_figure
    from twofold.report.sweep import sweep_figure
    from twofold.study.gaps import Gaps

    if isinstance(found, Gaps):
        if figure not in (None, Figure.GAPS):
            raise ValueError(_of_one_member(found, path))
        return gaps_figure(found)
    if figure is Figure.GAPS:
        raise ValueError(f"the study {found.study} has no axes: gaps are drawn of a family of studies")
    if figure is Figure.SWEEP:
        _require_sweep(found)
        return sweep_figure(found)
    return differences_figure(found) if figure is Figure.DIFFERENCES else frontier_figure(found)


def _show_table(found: Any, lines: Lines, as_markdown: bool, as_json: bool, below: Sequence[str] = ()) -> None:
    if as_json:
        print_json(found.model_dump(mode="json") if hasattr(found, "model_dump") else found)
    elif as_markdown:
        typer.echo("\n".join([in_markdown(lines), *([""] if below else []), *(f"- {line}" for line in below)]))
    else:
        show(in_terminal(lines), *([""] if below else []), *below)


def sweep_part(results: Results) -> list[Any]:
    """The sweep's table, and what stands at its edge."""
    from twofold.report.sweep import edge_notes

    return [in_terminal(sweep_points(results)), *edge_notes(results)]
