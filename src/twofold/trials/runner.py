"""Run what is missing of a study of tasks, then read the test sets."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from twofold.environment import process_count
from twofold.study.plan import DIVERGED_FILE, PlannedRun, claimed, planned_runs
from twofold.study.record import RECORD_FILE, SETTINGS_FILE, write_atomically
from twofold.study.runner import SECONDS_BETWEEN_LOOKS
from twofold.tasks.task import Splits
from twofold.trials.plan import Place, check_folder, has_work, note_study, places_of, settings_of, untested
from twofold.trials.record import TEST_FILE, read_trial_record
from twofold.trials.spec import TaskStudySpec
from twofold.trials.trial import Trial

if TYPE_CHECKING:
    from twofold.study.execute import Watcher

COMMAND_FILE = "command.txt"

Watch = Callable[[Trial, PlannedRun, bool], AbstractContextManager["Watcher"]]
"""Entered for a run of a task, and once more (True) when its test set is read."""


class Data:
    """The examples of the task at hand: one task after the other is read once, and held to what finished runs had."""

    def __init__(self) -> None:
        self._latest: tuple[str, Splits] | None = None
        self._checked: set[Path] = set()

    def of(self, trial: Trial, folder: Path) -> Splits:
        """Generate or read a task's examples, unless they are those at hand.

        Raises ValueError where the finished runs in `folder` had others: a test set cut anew may hold what they were
        trained on.
        """
        key = trial.task.model_dump_json()
        if self._latest is None or self._latest[0] != key:
            self._latest = None  # before the next one takes memory
            self._latest = key, trial.task.load()
        if folder not in self._checked:
            _require_same(self._latest[1], trial, folder)
            self._checked.add(folder)
        return self._latest[1]


def _require_same(data: Splits, trial: Trial, folder: Path) -> None:
    fingerprint = data.fingerprint
    for run in planned_runs(trial, folder):
        if run.finished and read_trial_record(run.folder / RECORD_FILE).configuration["data"] != fingerprint:
            raise ValueError(
                f"the examples of {trial.name} are not those that the runs in {folder} had: what they are read from "
                "has changed. Put it back, or choose another folder with --out"
            )


def run_trials(spec: TaskStudySpec, out: Path, command: str, watch: Watch) -> None:
    """Make the runs that have no record yet, task by task, and score those that are reported on the test sets.

    Several processes may work on one folder: each run is made by one of them, and where that one dies, another goes on
    from its last checkpoint. A run that diverges is noted and left. `watch` is entered for each run. Raises ValueError
    where `out` belongs to something else, or where a model cannot be made.
    """
    from twofold.training import requirements

    if process_count() > 1:
        raise ValueError(
            f"a study is not launched over processes, and here are {process_count()}: start it once per device, and "
            "they share the folder and its runs"
        )
    check_folder(spec, out)
    places = places_of(spec, out)
    for trial, _ in places:
        for point in trial.points:
            requirements.check(trial.at(point).training)
    require_models(places)
    data = Data()
    for trial, folder in reversed(places):  # before anything is written; the first task's stay at hand
        if has_work(trial, folder):
            data.of(trial, folder)
    note_study(spec, out)
    write_atomically(out / COMMAND_FILE, f"{command}\n".encode())
    for place in places:
        _make(place, data, watch)


def require_models(places: list[Place]) -> dict[tuple[str, str], int]:
    """(task, label) → parameters of each model. ValueError where one cannot be made; before anything is written."""
    import torch

    from twofold.analysis.costs import measured_parameters
    from twofold.trials.build import build

    found = {}
    for trial, _ in places:
        form = trial.task.form  # of images, it may open their source
        for contender in trial.contenders:
            try:
                with torch.device("meta"):
                    model = build(contender, form)
            except ValueError as error:
                raise ValueError(f"{trial.name}, {contender.label}: {error}") from error
            found[trial.name, contender.label] = measured_parameters(model)["total"]
    return found


def _make(place: Place, data: Data, watch: Watch) -> None:
    """All runs of a task, those among them that only become known on the way; then the tests."""
    trial, folder = place
    _forget_other_attempts(trial, folder)
    while missing := [run for run in planned_runs(trial, folder) if not run.ended]:
        made = [run for run in missing if _made(trial, run, folder, data, watch)]
        if not made:
            time.sleep(SECONDS_BETWEEN_LOOKS)  # another process makes them, or made them in vain
    while missing := untested(trial, folder):
        tested = [run for run in missing if _tested(trial, run, folder, data, watch)]
        if not tested:
            time.sleep(SECONDS_BETWEEN_LOOKS)


def _forget_other_attempts(trial: Trial, folder: Path) -> None:
    """Remove what runs with other settings left unfinished, or diverged with."""
    for run in planned_runs(trial, folder):
        noted = run.folder / SETTINGS_FILE
        if run.finished or not noted.is_file():
            continue
        if json.loads(noted.read_bytes()) | {"data": ""} != settings_of(run, trial) | {"data": ""}:
            with claimed(run) as mine:
                if mine:
                    shutil.rmtree(run.folder)


def _tested(trial: Trial, run: PlannedRun, folder: Path, data: Data, watch: Watch) -> bool:
    """Read the test set with one run, unless another process does or did."""
    from twofold.trials.execute import execute_test

    with claimed(run) as mine:
        if not mine or (run.folder / TEST_FILE).is_file():
            return False
        with watch(trial, run, True) as watcher:
            execute_test(run, trial, data.of(trial, folder), watcher)
    return True


def _made(trial: Trial, run: PlannedRun, folder: Path, data: Data, watch: Watch) -> bool:
    """Make one run, unless another process does or did."""
    from twofold.training.metrics import DivergedError
    from twofold.trials.execute import execute

    with claimed(run) as mine:
        if not mine or run.ended:
            return False
        with watch(trial, run, False) as watcher:
            try:
                execute(run, trial.at(run.point), data.of(trial, folder), watcher)
            except DivergedError as error:
                write_atomically(run.folder / DIVERGED_FILE, f"{error}\n".encode())
                watcher.say(f"diverged and is left out: {error}")
    return True
