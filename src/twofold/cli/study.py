"""`twofold study`: run a comparison, report it, list what comes with the package."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twofold.cli.output import print_json, show, table

if TYPE_CHECKING:
    from rich.table import Table

    from twofold.study.results import Results
    from twofold.study.spec import StudySpec

app = typer.Typer(help="Compare variants: train each with every seed, then report quality against measured cache.")

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
  twofold study show runs/demo --image frontier.svg"""

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
    run_study(spec, folder, command, lambda one: running(f"{one.number} of {total}: {one}"))
    _report(folder, as_json)


@app.command("report", epilog=REPORT_EXAMPLES)
def report(
    folder: Annotated[Path, typer.Argument(help="The folder that `study run` made.")], as_json: AsJson = False
) -> None:
    """Write results.json, results.csv and report.html from the finished runs in a folder."""
    _report(folder, as_json)


@app.command("show", epilog=SHOW_EXAMPLES)
def show_results(
    results: Annotated[Path, typer.Argument(help="A results.json, or the folder that holds one.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    image: Annotated[
        Path | None,
        typer.Option(help="Write quality against cache as .svg, .png or .pdf instead.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show finished results; writes nothing but the image that is asked for."""
    from twofold.study.results import RESULTS_JSON, read_results

    file = results / RESULTS_JSON if results.is_dir() else results
    if not file.is_file():
        raise ValueError(f"{file} is not there: `twofold study report` makes it")
    found = read_results(file)
    if image is not None:
        from twofold.report.frontier import frontier_figure
        from twofold.report.look import write_image

        write_image(frontier_figure(found), image)
    elif as_json:
        print_json(found.model_dump(mode="json"))
    elif markdown:
        typer.echo(_markdown(found))
    else:
        show(_summary(found))


@app.command("list")
def list_studies(as_json: AsJson = False) -> None:
    """The studies that come with the package."""
    from twofold.study.load import builtin_studies, load_study

    studies = [load_study(name) for name in builtin_studies()]
    if as_json:
        print_json([{"name": s.name, "description": s.description, "variants": s.variants} for s in studies])
        return
    shown = table()
    for heading in ("study", "runs", "tokens each", "about"):
        shown.add_column(heading, overflow="fold")
    for spec in studies:
        runs = len(spec.variants) * len(spec.seeds)
        shown.add_row(spec.name, str(runs), f"{spec.tokens:,}", " ".join(spec.description.split()))
    show(shown)


def _show_plan(spec: StudySpec, folder: Path, as_json: bool) -> None:
    from twofold.analysis.costs import cache_bytes_per_token, parameters
    from twofold.study.plan import check_folder, planned_runs

    check_folder(spec, folder)
    rows = []
    for one in planned_runs(spec, folder):
        sizes = spec.model.architecture(one.variant)
        rows.append(
            {
                "variant": one.variant,
                "seed": one.seed,
                "parameters": parameters(sizes)["total"],
                "cache_bytes_per_token": cache_bytes_per_token(sizes, "float32"),
                "steps": spec.training.steps(spec.tokens, spec.data.context),
                "folder": str(one.folder),
                "state": "finished" if one.finished else "to run",
            }
        )
    if as_json:
        print_json(rows)
        return
    shown = table()
    for heading in rows[0]:
        numeric = isinstance(rows[0][heading], int)
        shown.add_column(heading.replace("_", " "), justify="right" if numeric else "left")
    for row in rows:
        shown.add_row(*(f"{v:,}" if isinstance(v, int) else str(v) for v in row.values()))
    show(f"{spec.name}: {len(rows)} runs of {spec.tokens:,} tokens on {spec.data.source}", "", shown)


def _report(folder: Path, as_json: bool) -> None:
    from twofold.report.page import write_report
    from twofold.study.runner import collect_results

    results = collect_results(folder)
    page = write_report(results, folder)
    if as_json:
        print_json(results.model_dump(mode="json"))
        return
    show(_summary(results), "", f"bigram model of bytes: {results.bigram_bits_per_byte:.3f} bits per byte", str(page))


HEADINGS = ("variant", "parameters", "bits per byte", "cache bytes/token", "of largest", "verdict")
LEFT = ("variant", "verdict")


def _rows(results: Results) -> list[list[str]]:
    rows = []
    for entry in results.summary:
        spread = entry.bits_per_byte.standard_deviation
        quality = f"{entry.bits_per_byte.mean:.4f}" + (f" ± {spread:.4f}" if spread is not None else "")
        cache = (f"{entry.cache_bytes_per_token:,.0f}", f"{100 * entry.cache_ratio:.4g} %")
        rows.append([entry.variant, f"{entry.parameters['total']:,}", quality, *cache, entry.verdict])
    return rows


def _summary(results: Results) -> Table:
    shown = table()
    for heading in HEADINGS:
        shown.add_column(heading, justify="left" if heading in LEFT else "right")
    for row in _rows(results):
        shown.add_row(*row)
    return shown


def _markdown(results: Results) -> str:
    rule = [":--" if heading in LEFT else "--:" for heading in HEADINGS]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (HEADINGS, rule, *_rows(results)))
