"""`twofold study`: run a comparison, report it, list what comes with the package."""

from __future__ import annotations

import shlex
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twofold.cli.output import print_json, show, table
from twofold.cli.quantities import parse_bytes
from twofold.cli.study_show import SHOW_EXAMPLES, AsJson, read_one, show_results, sweep_part
from twofold.cli.study_tables import advice_lines, gap_table, in_terminal, remarks, summary

if TYPE_CHECKING:
    from twofold.cli.progress import RunProgress
    from twofold.study.plan import PlannedRun
    from twofold.study.spec import StudySpec
    from twofold.trials.spec import TaskStudySpec

app = typer.Typer(
    no_args_is_help=True,
    help="Compare variants: train each with every seed, then report quality against measured cache.",
)

RUN_EXAMPLES = """[bold]Examples[/bold]
  twofold study run demo
  twofold study run demo --dry-run
  twofold study run my-study.yaml --out runs/mine
  twofold study run demo --set tokens=100000 --set model.layers=2 --out runs/short"""

REPORT_EXAMPLES = """[bold]Examples[/bold]
  twofold study report runs/demo
  twofold study report runs/demo --json"""

ADVISE_EXAMPLES = """[bold]Examples[/bold]
  twofold study advise runs/demo --cache 1KiB
  twofold study advise runs/demo --within 1
  twofold study advise runs/demo --cache 2KiB --quality 2.5"""


@app.command("run", epilog=RUN_EXAMPLES)
def run(
    context: typer.Context,
    study: Annotated[str, typer.Argument(help="A YAML file, or the name of a built-in study.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for runs and report.", show_default="runs/NAME", file_okay=False)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Replace a value of the study: model.layers=2. May be repeated.", metavar="KEY=VALUE"
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, and run nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make the runs that are missing in the study's folder, then write its report. Finished runs stay as they are."""
    from twofold.trials.load import load_any_study
    from twofold.trials.spec import TaskStudySpec

    spec = load_any_study(study, settings or ())
    folder = out or Path("runs") / spec.name
    command = shlex.join(["twofold", *context.obj])
    if isinstance(spec, TaskStudySpec):
        from twofold.cli.trials import run_task_study, show_task_plan

        if dry_run:
            show_task_plan(spec, folder, as_json)
        else:
            run_task_study(spec, folder, command, as_json)
        return
    if dry_run:
        from twofold.cli.study_plan import show_plan

        show_plan(spec, folder, as_json)
        return
    from twofold.cli.progress import quiet_libraries, reading, running
    from twofold.study.plan import places_of
    from twofold.study.runner import run_study

    quiet_libraries()
    total = spec.run_count
    before = {place: number * total // len(spec.members) for number, (_, place) in enumerate(places_of(spec, folder))}

    def watch(one: PlannedRun) -> AbstractContextManager[RunProgress]:
        place = one.folder.parent.parent
        number = before[place] + one.number
        where = f"{place.name}: " if spec.axes else ""
        return running(f"{number} of {total}: {where}{one}", later=total - number)

    run_study(spec, folder, command, watch, reading)
    _report(folder, as_json)


@app.command("report", epilog=REPORT_EXAMPLES)
def report(
    folder: Annotated[Path, typer.Argument(help="The folder that `study run` made.")], as_json: AsJson = False
) -> None:
    """Write results.json, results.csv and report.html from the finished runs in a folder."""
    _report(folder, as_json)


app.command("show", epilog=SHOW_EXAMPLES)(show_results)


@app.command("advise", epilog=ADVISE_EXAMPLES)
def advise_on(
    results: Annotated[
        Path, typer.Argument(help="A results.json, or the folder that holds one: of a family, a member's.")
    ],
    cache: Annotated[
        str | None, typer.Option(help="Cache bytes per token, at most: 1024, 1KiB.", show_default=False)
    ] = None,
    quality: Annotated[float | None, typer.Option(help="Bits per byte, at most.", show_default=False)] = None,
    within: Annotated[
        float | None, typer.Option(help="Percent of the baseline's bits per byte that it may cost.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The variant to take for a budget, with the reasons, or that the data cannot say. Writes nothing.

    The budget is what --cache, --quality and --within say: at least one of them is needed.
    """
    from twofold.study.recommendation import Budget, advise

    budget = Budget(cache=None if cache is None else parse_bytes(cache), quality=quality, within=within)
    advice = advise(read_one(results), budget)
    if as_json:
        print_json(advice.model_dump(mode="json"))
    else:
        show(*advice_lines(advice))


@app.command("list")
def list_studies(as_json: AsJson = False) -> None:
    """The studies that come with the package, of text and of tasks."""
    from twofold.trials.load import all_builtin_studies, load_any_study

    studies = [load_any_study(name) for name in all_builtin_studies()]
    if as_json:
        print_json([_listed(spec) for spec in studies])
        return
    shown = table()
    for heading in ("study", "runs", "each run", "about"):
        shown.add_column(heading, overflow="fold", no_wrap=heading == "each run")
    for spec in studies:
        shown.add_row(spec.name, str(spec.run_count), _each_run(spec), " ".join(spec.description.split()))
    show(shown)


def _listed(spec: StudySpec | TaskStudySpec) -> dict[str, Any]:
    """A built-in study in JSON: of tasks it has `tasks`, each with its steps, where one of text has `tokens`."""
    from twofold.study.spec import StudySpec

    told = {"name": spec.name, "description": spec.description.strip(), "seeds": spec.seeds}
    if isinstance(spec, StudySpec):
        return {**told, "variants": [c.label for c in spec.members[0].spec.contenders], "tokens": spec.tokens}
    labels = dict.fromkeys(one.label for trial in spec.trials for one in trial.contenders)
    return {**told, "variants": list(labels), "tasks": {trial.name: trial.steps for trial in spec.trials}}


def _each_run(spec: StudySpec | TaskStudySpec) -> str:
    """How much each run trains: `819,200 tokens`, or of tasks `400 to 2,000 steps`."""
    from twofold.study.spec import StudySpec

    if isinstance(spec, StudySpec):
        return f"{spec.tokens:,} tokens"
    steps = sorted({trial.steps for trial in spec.trials})
    return f"{steps[0]:,} to {steps[-1]:,} steps" if len(steps) > 1 else f"{steps[0]:,} steps"


def _report(folder: Path, as_json: bool) -> None:
    from twofold.study.plan import read_study
    from twofold.trials.plan import holds_tasks

    if holds_tasks(folder):
        from twofold.cli.trials import report_trials

        report_trials(folder, as_json)
        return
    if read_study(folder).axes:
        _report_family(folder, as_json)
        return
    from twofold.report.page import write_report
    from twofold.study.collection import collect_results

    results = collect_results(folder)
    page = write_report(results, folder)
    if as_json:
        print_json(results.model_dump(mode="json"))
        return
    tried = ["", *sweep_part(results)] if results.sweep else []
    show(in_terminal(summary(results)), *tried, "", *remarks(results), str(page))


def _report_family(folder: Path, as_json: bool) -> None:
    from twofold.report.family import write_family_report
    from twofold.report.gaps import gap_remarks
    from twofold.report.page import write_report
    from twofold.study.collection import collect_family

    gaps, of_members = collect_family(folder)
    for place, results in of_members.items():
        write_report(results, place)
    page = write_family_report(gaps, folder)
    if as_json:
        print_json(gaps.model_dump(mode="json"))
        return
    show(in_terminal(gap_table(gaps)), "", *gap_remarks(gaps), str(page))
