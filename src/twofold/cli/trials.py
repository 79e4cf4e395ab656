"""What `twofold study` does with a study of tasks: run it, show its plan, report it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twofold.cli.output import print_json, show
from twofold.cli.study_tables import plan_table
from twofold.cli.trial_show import show_task_results

if TYPE_CHECKING:
    from twofold.cli.progress import RunProgress
    from twofold.study.plan import PlannedRun
    from twofold.trials.spec import TaskStudySpec
    from twofold.trials.trial import Trial


def run_task_study(spec: TaskStudySpec, folder: Path, command: str, as_json: bool) -> None:
    """Make the runs that are missing, then write the report."""
    from twofold.cli.progress import quiet_libraries, running
    from twofold.trials.runner import run_trials

    quiet_libraries()
    total = spec.run_count
    before, numbers = 0, {}
    for trial in spec.trials:
        numbers[trial.name] = before
        before += trial.run_count

    def watch(trial: Trial, run: PlannedRun, is_test: bool) -> AbstractContextManager[RunProgress]:
        number = numbers[trial.name] + run.number
        what = f"{trial.name}: {run}" + (", test set" if is_test else "")
        return running(f"{number} of {total}: {what}", later=total - number)

    run_trials(spec, folder, command, watch)
    report_trials(folder, as_json)


def show_task_plan(spec: TaskStudySpec, folder: Path, as_json: bool) -> None:
    """Print what would run, and run nothing. ValueError where the folder holds something else, or a model cannot be."""
    from twofold.trials.plan import check_folder, places_of, runs_of
    from twofold.trials.runner import require_models

    check_folder(spec, folder)
    places = places_of(spec, folder)
    counts = require_models(places)
    rows = [
        {
            "task": trial.name,
            "label": run.label,
            "variant": run.variant,
            "seed": run.seed,
            "point": dict(run.point),
            "steps": trial.steps,
            "batch": trial.at(run.point).training.batch,
            "parameters": counts[trial.name, run.label],
            "sizes": dict(run.contender.sizes),
            "folder": str(run.folder),
            "state": run.state,
        }
        for trial, run in runs_of(places)
    ]
    if as_json:
        print_json({"study": spec.name, "runs": spec.run_count, "tasks": _tasks(spec), "known": rows})
        return
    show(f"{spec.name}: {spec.run_count} runs on {len(places)} tasks", "", *_plan_lines(spec), "")
    of_models = ("task", "label", "parameters", "steps", "batch")
    seen = {tuple(str(row[key]) for key in of_models): {key: row[key] for key in of_models} for row in rows}
    show(plan_table(list(seen.values()), of_models), "")
    of_runs = ("task", "label", "seed", "point", "state", "folder")
    show(plan_table([{key: _words(row[key]) for key in of_runs} for row in rows], of_runs))
    if spec.run_count > len(rows):
        later = spec.run_count - len(rows)
        show("", f"and {later} runs with further seeds, each at its variant's best point, which the sweep will tell")


def _tasks(spec: TaskStudySpec) -> list[dict[str, Any]]:
    return [{"name": t.name, **t.comparable(), "points": [dict(p) for p in t.points]} for t in spec.trials]


def _plan_lines(spec: TaskStudySpec) -> list[str]:
    from twofold.study.sweep import point_text

    lines = []
    for trial in spec.trials:
        own = ", ".join(f"{key} {value}" for key, value in trial.task.model_dump().items() if value is not None)
        points = "; ".join(text for text in map(point_text, trial.points) if text)
        lines.append(f"{trial.name}: {own}" + (f"; tried at {points}" if points else ""))
    return lines


def _words(value: Any) -> Any:
    from twofold.study.sweep import point_text

    return point_text(value) if isinstance(value, dict) else value


def report_trials(folder: Path, as_json: bool) -> None:
    """Write results.json, results.csv and report.html from the finished runs, and print the tables."""
    from twofold.report.trial_page import write_trial_report
    from twofold.trials.collection import collect_trials
    from twofold.trials.maps import read_maps

    results = collect_trials(folder)
    page = write_trial_report(results, read_maps(folder), folder)
    show_task_results(results, None, as_json=as_json)
    if not as_json:
        show("", str(page))
