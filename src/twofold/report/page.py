"""A study's results as one HTML file that needs nothing else: no network, no other file, no server."""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from twofold.report import headline, tables
from twofold.report.figures import curves_figure, differences_figure, gaps_figure
from twofold.report.formats import bits_text, bytes_text, count_text
from twofold.report.frontier import frontier_figure
from twofold.report.gaps import LEFT
from twofold.report.scores import score_table
from twofold.report.sweep import sweep_figure, sweep_table
from twofold.study.record import write_atomically
from twofold.study.results import Results

REPORT_FILE = "report.html"
TEMPLATES = Path(__file__).parent / "templates"
FIGURES = {
    "frontier": frontier_figure,
    "differences": differences_figure,
    "curves": curves_figure,
    "gaps": gaps_figure,
    "sweep": sweep_figure,
}


def render(results: Results) -> str:
    """The report as one HTML page. Everything that comes from the results is escaped."""
    figures = {name: make(results) for name, make in FIGURES.items()}
    template = page_template("report.html.j2")
    return template.render(
        results=results,
        lead=headline.lead(results),
        notes=headline.notes(results),
        tiles=_tiles(results),
        summary=tables.summary_rows(results),
        changed=any(run.changed for run in results.runs),
        sweep=sweep_table(results),
        padded=any(run.configuration.get("data", {}).get("packing") == "padded" for run in results.runs),
        matching=tables.matching(results),
        measured=tables.measured_rows(results),
        scores=score_table(results),
        left=LEFT,
        pairs=tables.pair_rows(results),
        runs=tables.run_rows(results),
        several_seeds=len(results.runs) > len(results.summary),
        samples=_first_runs(results),
        methods=tables.methods(results),
        environment=tables.facts([run.environment.model_dump() for run in results.runs]),
        configuration=tables.facts([run.configuration for run in results.runs]),
        figures={name: figure_json(figure) for name, figure in figures.items() if _has_points(figure)},
        plotly=Markup(get_plotlyjs()),  # the library's own text; it holds no closing script tag
    )


def write_report(results: Results, directory: Path) -> Path:
    """Write `report.html` into `directory` and return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / REPORT_FILE
    write_atomically(path, render(results).encode())
    return path


def page_template(name: str) -> Template:
    """A page's template: whatever is put into it is escaped, and a name that is missing is an error."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name)


def figure_json(figure: go.Figure) -> Markup:
    """The figure as JSON for a script element."""
    return script_json(figure.to_json())


def script_json(text: str) -> Markup:
    """JSON that cannot end the script element around it: `<`, `>` and `&` become \\u escapes."""
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _has_points(figure: go.Figure) -> bool:
    return len(figure.data) > 0


def _tiles(results: Results) -> list[tuple[str, str]]:
    """A few large numbers under the headline, as (number, what it counts)."""
    seeds = {run.seed for run in results.runs}
    trained = [run.curve[-1].tokens for run in results.runs if run.curve]
    first = results.runs[0].validation
    tiles = [
        (
            f"{len(results.summary)} × {len(seeds)}",
            f"{_plural('variant', len(results.summary))} × {_plural('seed', len(seeds))}",
        ),
        (bytes_text(first.bytes), "of held-out text scored"),
        (bits_text(results.bigram_bits_per_byte), "bits per byte of a byte-bigram model"),
    ]
    if trained:
        tiles.insert(1, (count_text(max(trained)), "training tokens each"))
    return tiles


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _first_runs(results: Results) -> list[dict[str, str]]:
    """One sample for each variant: its first seed's."""
    first = {run.label: run for run in reversed(results.runs)}
    order = [row.label for row in tables.summary_rows(results)]
    return [{"label": name, **first[name].sample.model_dump()} for name in order]
