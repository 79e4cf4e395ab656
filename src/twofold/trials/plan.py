"""Where a study of tasks keeps its runs, and which are left to do. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twofold.study.plan import RUNS_FOLDER, STUDY_FILE, PlannedRun, courses, first_difference, planned_runs
from twofold.study.record import RECORD_FILE, read_checked, to_json, write_atomically
from twofold.trials.record import TEST_FILE, TrialRecord, read_trial_record
from twofold.trials.spec import TaskStudySpec
from twofold.trials.trial import Trial

Place = tuple[Trial, Path]
"""One task of a study, and the folder of its runs."""


def places_of(spec: TaskStudySpec, out: Path) -> list[Place]:
    """The tasks of a study in `out`, with their folders."""
    return [(trial, out / trial.folder) for trial in spec.trials]


def runs_of(places: list[Place]) -> list[tuple[Trial, PlannedRun]]:
    """All runs that are known by now, task by task."""
    return [(trial, run) for trial, folder in places for run in planned_runs(trial, folder)]


def settings_of(run: PlannedRun, trial: Trial) -> dict[str, Any]:
    """All that a run is made with, but its data."""
    return {
        **trial.at(run.point).comparable(),
        "point": dict(run.point),
        "sizes": dict(run.contender.sizes),
        "seed": run.seed,
    }


def untested(trial: Trial, folder: Path) -> list[PlannedRun]:
    """Finished runs that are to be reported and have not read the test set."""
    return [
        run
        for course in courses(trial, folder)
        for run in course.reported
        if run.finished and not (run.folder / TEST_FILE).is_file()
    ]


def has_work(trial: Trial, folder: Path) -> bool:
    """Whether a run of a task is left to be made, or to be tested."""
    return any(not run.ended for run in planned_runs(trial, folder)) or bool(untested(trial, folder))


def check_folder(spec: TaskStudySpec, out: Path) -> None:
    """Raise ValueError where `out` holds something else, or finished runs of other settings, naming the difference.

    Tasks, variants, seeds and a sweep's values may be added at any time.
    """
    if not (out / STUDY_FILE).exists():
        if out.is_dir() and any(out.iterdir()):
            raise ValueError(f"{out} is not empty and holds no study: choose another folder with --out")
        return
    for trial, folder in places_of(spec, out):
        # Every finished run that is there, also of a seed or a point that the study does not name at the moment.
        for path in sorted(folder.glob(f"{RUNS_FOLDER}/*/{RECORD_FILE}")):
            difference = _difference(read_trial_record(path), trial)
            if difference:
                raise ValueError(
                    f"{out} holds runs of other settings, on {trial.name}: {difference}. Choose another folder with "
                    "--out"
                )


def _difference(record: TrialRecord, trial: Trial) -> str:
    """In what a finished run is not one of the trial's; empty where it is."""
    noted, asked = record.configuration, trial.at(record.point).comparable()
    found = first_difference(_like(asked, noted), asked)
    own = next((one for one in trial.contenders if one.label == record.label), None)
    if found or own is None:
        return found
    # A size that there was not yet had the value that it has by default.
    there, sizes = noted["sizes"], dict(own.sizes)
    return first_difference(_like(sizes, there), _like(there, sizes), f"{record.label}: ")


def _like(asked: Mapping[str, Any], noted: Mapping[str, Any]) -> dict[str, Any]:
    """What is noted of what is asked, at all depths."""
    both = {key: (asked[key], noted[key]) for key in asked if key in noted}
    return {
        key: _like(one, other) if isinstance(one, dict) and isinstance(other, dict) else other
        for key, (one, other) in both.items()
    }


def note_study(spec: TaskStudySpec, out: Path) -> None:
    """Make the folder if need be, and write down the study that it holds."""
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / STUDY_FILE, to_json(spec))


def holds_tasks(out: Path) -> bool:
    """Whether a folder holds a study of tasks."""
    return is_of_tasks(out / STUDY_FILE)


def is_of_tasks(file: Path) -> bool:
    """Whether a study.json or a results.json is of a study of tasks; False also where it is no JSON, or not there."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "tasks" in content


def read_task_study(out: Path) -> TaskStudySpec:
    """The study of tasks that a folder holds. Raises ValueError where it holds none."""
    path = out / STUDY_FILE
    if not path.is_file():
        raise ValueError(f"{out} holds no study ({STUDY_FILE} is not there): give the folder that `study run` made")
    return read_checked(path, TaskStudySpec, "choose another folder with --out")
