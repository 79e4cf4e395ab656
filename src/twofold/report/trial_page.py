"""A study of tasks as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from twofold.report import trial_headline, trials
from twofold.report.page import REPORT_FILE, figure_json, page_template
from twofold.report.tables import facts
from twofold.report.trial_figures import curves_figure, looks_figure, parts_figure, scores_figure, sweep_figure
from twofold.report.trial_maps import columns_of, maps_figure, maps_of
from twofold.study.record import write_atomically
from twofold.trials.maps import Maps
from twofold.trials.published import SOURCE
from twofold.trials.record import AttentionMap
from twofold.trials.results import TaskResults, TrialResults
from twofold.version import __version__

MAP_ROW = 125  # pixels of a row of heat maps, with their titles
FIGURES = {"scores": scores_figure, "looks": looks_figure, "curves": curves_figure, "sweep": sweep_figure}


def render_trials(results: TrialResults, maps: Maps) -> str:
    """The report as one HTML page, with attention maps where there are some. Everything from the results is escaped."""
    with_parts = [task for task in results.tasks if trials.part_names(task)]
    runs = [run for task in results.tasks for run in task.runs]
    return page_template("trials.html.j2").render(
        results=results,
        lead=trial_headline.lead(results),
        notes=trial_headline.notes(results),
        tiles=_tiles(results),
        panels=_json(parts_figure(with_parts)) if len(with_parts) > 1 else None,
        panels_height=80 + 330 * -(-len(with_parts) // 2),
        parts=[_part(number, task, maps) for number, task in enumerate(results.tasks, 1)],
        left=trials.LEFT,
        does_not_count=trials.DOES_NOT_COUNT,
        remarks=trials.remarks(results),
        has_cache=any(run.cache for run in runs),
        environment=facts([run.environment.model_dump() for run in runs]),
        version=__version__,
        plotly=Markup(get_plotlyjs()),  # the library's own text; it holds no closing script tag
    )


def write_trial_report(results: TrialResults, maps: Maps, directory: Path) -> Path:
    """Write `report.html` into `directory` and return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / REPORT_FILE
    write_atomically(path, render_trials(results, maps).encode())
    return path


def _part(number: int, task: TaskResults, maps: Maps) -> dict[str, Any]:
    """What the page shows of one task. Ids hold its number and not its name, which may be anything."""
    figures = {name: _json(make(task)) for name, make in FIGURES.items()}
    said = trials.asked(task)
    configurations = [run.configuration for run in task.runs]
    return {
        "id": number,
        "task": task,
        "asked": f"{said[0].upper()}{said[1:]}",
        "trained": f"Each run took {'up to ' if task.until else ''}{task.steps:,} steps.",
        "main": trials.main_table(task),
        "below": [line for line in trials.below(task) if line != trials.DOES_NOT_COUNT],
        "parts": trials.parts_table(task),
        "attention": trials.attention_table(task),
        "sweep": trials.sweep_table(task),
        "runs": trials.run_table(task),
        "meanings": [trials.MEASURES[name] for name in trials.measure_names(task)],
        "maps": _maps(task, maps_of(maps, task)),
        "figures": figures | {"parts": _json(parts_figure([task]))},
        "scores_caption": _scores_caption(task),
        "tall": 330 + 12 * len(task.summary),
        "fingerprints": list(dict.fromkeys(str(each.get("data", "")) for each in configurations)),
        "settings": facts([{k: v for k, v in each.items() if k != "data"} for each in configurations]),
    }


def _maps(task: TaskResults, maps: Mapping[str, tuple[AttentionMap, ...]]) -> list[dict[str, Any]]:
    first = {run.label: run for run in reversed(task.runs)}
    found = []
    for label, of_label in maps.items():
        rows = -(-len(of_label) // columns_of(of_label))
        names = [name for name in trials.MEASURES if name in first[label].measures]
        numbers = [f"{trials.MEASURES[name][0]} {first[label].measures[name]:.3f}" for name in names]
        found.append(
            {
                "label": label,
                "figure": _json(maps_figure({label: of_label})),
                "height": MAP_ROW * rows,
                "caption": f"seed {first[label].seed}: {', '.join(numbers)}"
                if numbers
                else f"seed {first[label].seed}",
            }
        )
    return found


def _scores_caption(task: TaskResults) -> str:
    chance = "" if task.chance is None else f"; chance is {task.chance:.3f}"
    said = f"Mean {task.metric} on the test set{chance}. Bars are 95 % intervals over seeds, within 0 and 1."
    if any(one.published is not None for one in task.summary):
        said += f" Diamonds: {SOURCE}, whose settings are not these."
    return said


def _tiles(results: TrialResults) -> list[tuple[str, str]]:
    """A few large numbers under the headline, as (number, what it counts)."""
    labels = {run.label for task in results.tasks for run in task.runs}
    seeds = {run.seed for task in results.tasks for run in task.runs}
    counted = len(trial_headline.counting(results))
    tries = sum(len(task.sweep) for task in results.tasks)
    return [
        (f"{counted} of {len(results.tasks)}", "tasks count"),
        (f"{len(labels)} × {len(seeds)}", "variants × seeds"),
        (f"{sum(len(task.runs) for task in results.tasks):,}", "runs reported"),
        *([(f"{tries:,}", "tries of the sweep")] if tries else []),
    ]


def _json(figure: go.Figure) -> Markup | None:
    return figure_json(figure) if figure.data else None
