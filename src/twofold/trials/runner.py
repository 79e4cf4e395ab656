"""Run what is missing of a study of tasks, then read the test sets."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from twofold.environment import process_count
from twofold.study.plan import DIVERGED_FILE, PlannedRun, claimed
from twofold.study.record import write_atomically
from twofold.study.runner import SECONDS_BETWEEN_LOOKS
from twofold.tasks.task import Splits
from twofold.trials.plan import Place, check_folder, note_study, places_of, runs_of, untested
from twofold.trials.spec import TaskStudySpec
from twofold.trials.trial import Trial

if TYPE_CHECKING:
    from twofold.study.execute import Watcher

COMMAND_FILE = "command.txt"

Watch = Callable[[Trial, PlannedRun, bool], AbstractContextManager["Watcher"]]
"""Entered for a run of a task, and once more (True) when its test set is read."""


class Data:
    """The examples of the task at hand: one task after the other is read once."""

    def __init__(self) -> None:
        self._latest: tuple[str, Splits] | None = None

    def of(self, trial: Trial) -> Splits:
        """Generate or read a task's examples, unless they are those at hand."""
        key = trial.task.model_dump_json()
        if self._latest is None or self._latest[0] != key:
            self._latest = None  # before the next one takes memory
            self._latest = key, trial.task.load()
        return self._latest[1]


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
    data = Data()
    require_models(places)
    note_study(spec, out)
    write_atomically(out / COMMAND_FILE, f"{command}\n".encode())
    for place in places:
        _make([place], data, watch)


def require_models(places: list[Place]) -> dict[tuple[str, str], int]:
    """(task, label) → parameters of each model. ValueError where one cannot be made; before anything is written."""
    import torch

    from twofold.analysis.costs import measured_parameters
    from twofold.trials.build import build

    found = {}
    for trial, _ in places:
        for contender in trial.contenders:
            try:
                with torch.device("meta"):
                    model = build(contender, trial.task.form)
            except ValueError as error:
                raise ValueError(f"{trial.name}, {contender.label}: {error}") from error
            found[trial.name, contender.label] = measured_parameters(model)["total"]
    return found


def _make(places: list[Place], data: Data, watch: Watch) -> None:
    """All runs and tests of some tasks, those among them that only become known on the way."""
    from twofold.trials.execute import execute, execute_test

    while True:
        missing = [(trial, run) for trial, run in runs_of(places) if not run.ended]
        made = [run for trial, run in missing if _made(trial, run, data, watch, execute)]
        if missing and not made:
            time.sleep(SECONDS_BETWEEN_LOOKS)  # another process makes them, or made them in vain
        if not missing:
            break
    for trial, run in untested(places):
        with claimed(run) as mine:
            if mine and (trial, run) in untested(places):
                with watch(trial, run, True) as watcher:
                    execute_test(run, trial, data.of(trial), watcher)


def _made(trial: Trial, run: PlannedRun, data: Data, watch: Watch, execute: Callable[..., object]) -> bool:
    """Make one run, unless another process does or did."""
    from twofold.training.metrics import DivergedError

    with claimed(run) as mine:
        if not mine or run.ended:
            return False
        with watch(trial, run, False) as watcher:
            try:
                execute(run, trial.at(run.point), data.of(trial), watcher)
            except DivergedError as error:
                write_atomically(run.folder / DIVERGED_FILE, f"{error}\n".encode())
                watcher.say(f"diverged and is left out: {error}")
    return True
