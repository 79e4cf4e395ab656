"""`twofold study`: run a comparison, report it, list what comes with the package."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twofold.cli.output import print_json, show, table
from twofold.cli.quantities import parse_bytes
from twofold.cli.study_tables import (
    SIZES,
    advice_lines,
    markdown,
    plan_table,
    progress_table,
    remarks,
    summary,
)

if TYPE_CHECKING:
    from twofold.study.results import Results
    from twofold.study.spec import StudySpec

app = typer.Typer(
    no_args_is_help=True,
    help="Compare variants: train each with every seed, then report quality against measured cache.",
)

RUN_EXAMPLES = """[bold]Examples[/bold]
  twofold study run demo
  twofold study run demo --dry-run
  twofold study run my-study.yaml --out runs/mine"""

REPORT_EXAMPLES = """[bold]Examples[/bold]
  twofold study report runs/demo
  twofold study report runs/demo --json"""

SHOW_EXAMPLES = """[bold]Examples[/bold]
  twofold study show runs/demo
  twofold study show runs/demo --markdown
  twofold study show runs/demo --to-loss 1.9
  twofold study show runs/demo --image frontier.svg
  twofold study show runs/demo --image differences.svg --figure differences"""

ADVISE_EXAMPLES = """[bold]Examples[/bold]
  twofold study advise runs/demo --cache 1KiB
  twofold study advise runs/demo --within 1
  twofold study advise runs/demo --cache 2KiB --quality 2.5"""

ResultsPath = Annotated[Path, typer.Argument(help="A results.json, or the folder that holds one.")]


class Figure(StrEnum):
    """What `study show --image` draws."""

    FRONTIER = "frontier"
    DIFFERENCES = "differences"


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command("run", epilog=RUN_EXAMPLES)
def run(
    context: typer.Context,
    study: Annotated[str, typer.Argument(help="A YAML file, or the name of a built-in study.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for runs and report.", show_default="runs/NAME", file_okay=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, and run nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make the runs that are missing in the study's folder, then write its report. Finished runs stay as they are."""
    from twofold.study.load import load_study

    spec = load_study(study)
    folder = out or Path("runs") / spec.name
    if dry_run:
        _show_plan(spec, folder, as_json)
        return
    from twofold.cli.progress import quiet_libraries, running
    from twofold.study.runner import run_study

    quiet_libraries()
    total = len(spec.variants) * len(spec.seeds)
    command = shlex.join(["twofold", *context.obj])
    run_study(spec, folder, command, lambda one: running(f"{one.number} of {total}: {one}", later=total - one.number))
    _report(folder, as_json)


@app.command("report", epilog=REPORT_EXAMPLES)
def report(
    folder: Annotated[Path, typer.Argument(help="The folder that `study run` made.")], as_json: AsJson = False
) -> None:
    """Write results.json, results.csv and report.html from the finished runs in a folder."""
    _report(folder, as_json)


@app.command("show", epilog=SHOW_EXAMPLES)
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
        Figure, typer.Option(help="Which: quality against cache, or differences to the baseline.")
    ] = Figure.FRONTIER,
    as_json: AsJson = False,
) -> None:
    """Show finished results; writes nothing but the image that is asked for."""
    found = _read(results)
    if image is not None:
        from twofold.report.figures import differences_figure
        from twofold.report.frontier import frontier_figure
        from twofold.report.look import write_image

        draw = differences_figure if figure is Figure.DIFFERENCES else frontier_figure
        write_image(draw(found), image)
    elif to_loss is not None:
        from twofold.study.progress_to_loss import progress_to

        progress = progress_to(to_loss, found)
        if as_json:
            print_json([one.model_dump(mode="json") for one in progress])
        else:
            show(progress_table(progress))
    elif as_json:
        print_json(found.model_dump(mode="json"))
    elif as_markdown:
        typer.echo(markdown(found))
    else:
        show(summary(found))


@app.command("advise", epilog=ADVISE_EXAMPLES)
def advise_on(
    results: ResultsPath,
    cache: Annotated[
        str | None, typer.Option(help="Cache bytes per token, at most: 1024, 1KiB.", show_default=False)
    ] = None,
    quality: Annotated[float | None, typer.Option(help="Bits per byte, at most.", show_default=False)] = None,
    within: Annotated[
        float | None, typer.Option(help="Percent of the baseline's bits per byte that it may cost.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The variant to take for a budget, with the reasons, or that the data cannot say. Writes nothing."""
    from twofold.study.recommendation import Budget, advise

    budget = Budget(cache=None if cache is None else parse_bytes(cache), quality=quality, within=within)
    advice = advise(_read(results), budget)
    if as_json:
        print_json(advice.model_dump(mode="json"))
    else:
        show(*advice_lines(advice))


@app.command("list")
def list_studies(as_json: AsJson = False) -> None:
    """The studies that come with the package."""
    from twofold.study.load import builtin_studies, load_study

    studies = [load_study(name) for name in builtin_studies()]
    if as_json:
        print_json(
            [
                {
                    "name": s.name,
                    "description": s.description.strip(),
                    "variants": [c.label for c in s.contenders],
                    "seeds": s.seeds,
                    "tokens": s.tokens,
                }
                for s in studies
            ]
        )
        return
    shown = table()
    for heading in ("study", "runs", "tokens each", "about"):
        shown.add_column(heading, overflow="fold")
    for spec in studies:
        runs = len(spec.variants) * len(spec.seeds)
        shown.add_row(spec.name, str(runs), f"{spec.tokens:,}", " ".join(spec.description.split()))
    show(shown)


def _show_plan(spec: StudySpec, folder: Path, as_json: bool) -> None:
    from twofold.data.corpus import load_corpus
    from twofold.study.contenders import changes_text
    from twofold.study.match import COSTS, cost
    from twofold.study.plan import check_folder, planned_runs

    check_folder(spec, folder)
    corpus = load_corpus(spec.data.source)
    steps = spec.training.steps(spec.tokens, spec.data.context)
    rows: list[dict[str, Any]] = []
    for one in planned_runs(spec, folder):
        arch = one.contender.architecture
        costs = {name: cost(name, arch, spec.data.context) for name in COSTS}
        rows.append(
            {
                "label": one.label,
                "variant": one.variant,
                "seed": one.seed,
                "heads": arch.heads,
                "kv_heads": arch.kv_heads,
                "head_dim": arch.head_dim,
                "mlp": arch.mlp,
                "parameters": costs["parameters"],
                "cache_bytes_per_token": costs["cache"],
                "macs_per_window": costs["compute"],
                "changed": dict(one.contender.changed),
                "steps": steps,
                "folder": str(one.folder),
                "state": one.state,
            }
        )
    if as_json:
        print_json(rows)
        return
    sizes = [{**row, "changed": changes_text(row["changed"])} for row in rows[: len(spec.contenders)]]
    of_sizes = ("label", *SIZES, "parameters", "cache_bytes_per_token", "macs_per_window", "changed")
    show(
        f"{spec.name}: {len(rows)} runs of {spec.tokens:,} tokens, {steps:,} steps each, on {spec.data.source} "
        f"({len(corpus.documents):,} documents, {corpus.bytes:,} bytes)",
        "",
        plan_table(sizes, of_sizes),
        "",
        plan_table(rows, ("label", "seed", "state", "folder")),
    )


def _read(results: Path) -> Results:
    from twofold.study.results import RESULTS_JSON, read_results

    file = results / RESULTS_JSON if results.is_dir() else results
    if not file.is_file():
        what = "`twofold study report` makes it" if results.is_dir() else "give a results.json or a study's folder"
        raise ValueError(f"{file} is not there: {what}")
    return read_results(file)


def _report(folder: Path, as_json: bool) -> None:
    from twofold.report.page import write_report
    from twofold.study.runner import collect_results

    results = collect_results(folder)
    page = write_report(results, folder)
    if as_json:
        print_json(results.model_dump(mode="json"))
        return
    show(summary(results), "", *remarks(results), str(page))
