"""`twofold study`: run a comparison, report it, list what comes with the package."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from twofold.cli.output import print_json, show, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from twofold.study.results import Results
    from twofold.study.spec import StudySpec
    from twofold.study.statistics import VariantSummary

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
        what = "`twofold study report` makes it" if results.is_dir() else "give a results.json or a study's folder"
        raise ValueError(f"{file} is not there: {what}")
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
        _plan_table(sizes, of_sizes),
        "",
        _plan_table(rows, ("label", "seed", "state", "folder")),
    )


SIZES = ("heads", "kv_heads", "head_dim", "mlp")
PLAN_HEADINGS = {
    "label": "variant",
    "cache_bytes_per_token": "cache bytes/token",
    "macs_per_window": "MACs/window",
}


def _plan_table(rows: list[dict[str, Any]], keys: Sequence[str]) -> Table:
    shown = table()
    for key in keys:
        heading = PLAN_HEADINGS.get(key, key).replace("_", " ")
        justify: Literal["left", "right"] = "right" if isinstance(rows[0][key], int) else "left"
        shown.add_column(heading, justify=justify, no_wrap=key == "label", overflow="fold")
    for row in rows:
        shown.add_row(*(f"{row[key]:,}" if isinstance(row[key], int) else str(row[key]) for key in keys))
    return shown


def _report(folder: Path, as_json: bool) -> None:
    from twofold.report.page import write_report
    from twofold.study.runner import collect_results

    results = collect_results(folder)
    page = write_report(results, folder)
    if as_json:
        print_json(results.model_dump(mode="json"))
        return
    show(_summary(results), "", *_remarks(results), str(page))


def _remarks(results: Results) -> list[str]:
    """What belongs to the table: the level to beat, and what is missing."""
    level = results.bigram_bits_per_byte
    untrained = [e.label for e in results.summary if e.bits_per_byte.mean >= level]
    remarks = [f"bigram model of bytes: {level:.3f} bits per byte"]
    if untrained:
        remarks.append(f"trained too little to be compared, no better than that model: {', '.join(untrained)}")
    if results.unfinished:
        remarks.append(f"not finished yet: {results.unfinished} of {results.unfinished + len(results.runs)} runs")
    return remarks + [f"{f.label}, seed {f.seed} diverged: {f.reason}" for f in results.diverged]


HEADINGS = ("variant", "parameters", "bits per byte", "to baseline", "cache bytes/token", "of largest", "verdict")
LEFT = ("variant", "verdict", "changed")


def _headings(results: Results) -> tuple[str, ...]:
    """What was changed against the study's own model has a column where anything was."""
    return (*HEADINGS, "changed") if any(run.changed for run in results.runs) else HEADINGS


def _rows(results: Results) -> list[list[str]]:
    from twofold.study.contenders import changes_text

    changed = {run.label: changes_text(run.changed) for run in results.runs}
    rows = []
    for entry in results.summary:
        spread = entry.bits_per_byte.standard_deviation
        quality = f"{entry.bits_per_byte.mean:.4f}" + (f" ± {spread:.4f}" if spread is not None else "")
        cache = (f"{entry.cache_bytes_per_token:,.0f}", f"{100 * entry.cache_ratio:.4g} %")
        row = [entry.label, f"{entry.parameters['total']:,}", quality, _to_baseline(entry), *cache, entry.verdict]
        row.append(changed[entry.label])
        rows.append(row[: len(_headings(results))])
    return rows


def _to_baseline(entry: VariantSummary) -> str:
    """The difference and its 95 % interval, where there is one."""
    found = entry.difference_to_baseline
    if found is None:
        return "baseline"
    interval = f" [{found.interval[0]:+.4f}, {found.interval[1]:+.4f}]" if found.interval else ""
    return f"{found.difference:+.4f}{interval}"


def _summary(results: Results) -> Table:
    shown = table()
    for heading in _headings(results):
        shown.add_column(heading, justify="left" if heading in LEFT else "right")
    for row in _rows(results):
        shown.add_row(*row)
    return shown


def _markdown(results: Results) -> str:
    headings = _headings(results)
    rule = [":--" if heading in LEFT else "--:" for heading in headings]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, rule, *_rows(results)))
