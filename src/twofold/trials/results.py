"""What the runs on each task say together, and the file that carries it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, NonNegativeInt

from twofold.study.contrast import Interval, t_interval
from twofold.study.record import Labelled, Part, read_checked, to_json, write_atomically
from twofold.study.results import RESULTS_CSV, RESULTS_JSON, Failure
from twofold.study.statistics import Spread
from twofold.trials.record import Look, TaskRun

UNSOLVED = "baseline does not solve it"


class TriedPoint(Labelled):
    """One point of a sweep: its validation score, None where it diverged; `chosen` where the results are of it."""

    point: dict[str, Any]
    score: float | None
    chosen: bool


class Against(Part):
    """A score minus the baseline's with the same seeds: the mean, and its 95 % interval (Student's t, paired)."""

    difference: float
    interval: Interval | None

    @property
    def separable(self) -> bool:
        """Whether the interval excludes zero."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


class TaskSummary(Labelled):
    """A variant on a task over its seeds, on the test set. `published` is the source's score, where there is one.

    `steps_to_solve` tells for each seed the training steps after which a look at validation examples first found the
    task's threshold reached; None where none did, and empty for a task without a threshold.
    """

    seeds: tuple[int, ...]
    score: Spread
    interval: Interval | None
    to_baseline: Against | None
    parts: dict[str, Spread] = Field(default_factory=dict)
    measures: dict[str, Spread] = Field(default_factory=dict)
    parameters: dict[str, int]
    cache_bytes_per_token: float | None
    point: dict[str, Any]
    published: float | None = None
    steps_to_solve: tuple[int | None, ...] = ()


class TaskResults(Part):
    """One task. `solved` says whether the baseline reaches `threshold`, on `deciding_part` where that is named; a
    table that is not solved does not count. `answers` are those of the test set, `chance` what a guess scores there.

    Training ended early once a look scored `until`: what solves the task so is not told apart by its score.
    `further_tests` counts runs that read the test set and are not reported, since the sweep was another then.
    """

    name: str
    task: dict[str, Any]
    metric: str
    chance: float | None
    threshold: float | None
    deciding_part: str | None
    baseline: str
    solved: bool | None
    steps: int
    answers: int
    summary: tuple[TaskSummary, ...]
    runs: tuple[TaskRun, ...]
    sweep: tuple[TriedPoint, ...] = ()
    diverged: tuple[Failure, ...] = ()
    unfinished: NonNegativeInt = 0
    until: float | None = None
    further_tests: NonNegativeInt = 0

    def told_apart(self, one: TaskSummary) -> bool:
        """Whether a variant's difference to the baseline is beyond its interval, and means anything."""
        if not (one.to_baseline and one.to_baseline.separable):
            return False
        if self.until is None or self.threshold is None:
            return True
        own = next(each for each in self.summary if each.label == self.baseline)
        return min(one.score.mean, own.score.mean) < self.threshold

    @property
    def verdict(self) -> str:
        """Whether the table counts, in words; empty where nothing decides."""
        if self.solved is None:
            return ""
        return f"{self.baseline} solves it" if self.solved else UNSOLVED


class TrialResults(Part):
    """All tasks of a study. `created` is an ISO 8601 time, `command` what made the runs."""

    study: str
    description: str
    command: str
    created: str
    tasks: tuple[TaskResults, ...]

    @property
    def unfinished(self) -> int:
        """Runs that are still to be made."""
        return sum(task.unfinished for task in self.tasks)


def summarise(
    runs: Sequence[TaskRun],
    baseline: str,
    order: Sequence[str],
    published: Callable[[str], float | None],
    is_solved: Callable[[Look], bool] | None = None,
) -> tuple[TaskSummary, ...]:
    """One summary per variant that has tested runs, in the given order."""
    by_label = {label: {run.seed: run for run in runs if run.label == label and run.test} for label in order}
    return tuple(
        _summary(label, found, None if label == baseline else by_label.get(baseline, {}), published).model_copy(
            update={"steps_to_solve": _steps_to_solve(found, is_solved) if is_solved else ()}
        )
        for label, found in by_label.items()
        if found
    )


def _summary(
    label: str, runs: dict[int, TaskRun], others: dict[int, TaskRun] | None, published: Callable[[str], float | None]
) -> TaskSummary:
    own = [runs[seed] for seed in sorted(runs)]
    scores = [_test(run) for run in own]
    shared = sorted(runs.keys() & (others or {}).keys())
    deltas = [_test(runs[seed]) - _test((others or {})[seed]) for seed in shared]
    parts = own[0].test.parts if own[0].test else {}
    return TaskSummary(
        label=label,
        variant=own[0].variant,
        seeds=tuple(sorted(runs)),
        score=Spread.of(scores),
        interval=t_interval(scores) if len(scores) > 1 else None,
        to_baseline=Against(difference=float(np.mean(deltas)), interval=t_interval(deltas) if len(deltas) > 1 else None)
        if deltas
        else None,
        parts={part: Spread.of([run.test.parts[part] for run in own if run.test]) for part in parts},
        measures={name: Spread.of([run.measures[name] for run in own]) for name in own[0].measures},
        parameters=own[0].parameters,
        cache_bytes_per_token=own[0].cache.bytes_per_token if own[0].cache else None,
        point=own[0].point,
        published=published(label),
    )


def _steps_to_solve(runs: dict[int, TaskRun], is_solved: Callable[[Look], bool]) -> tuple[int | None, ...]:
    return tuple(next((look.step for look in runs[seed].looks if is_solved(look)), None) for seed in sorted(runs))


def _test(run: TaskRun) -> float:
    assert run.test is not None
    return run.test.score


def is_solved(summary: Sequence[TaskSummary], baseline: str, threshold: float | None, part: str | None) -> bool | None:
    """Whether the baseline's mean reaches the threshold; None without a threshold or a baseline's run."""
    own = next((one for one in summary if one.label == baseline), None)
    if threshold is None or own is None:
        return None
    return (own.parts[part] if part else own.score).mean >= threshold


def read_trial_results(path: Path) -> TrialResults:
    """Read `results.json`. ValueError names the file, the place in it and what to do."""
    return read_checked(path, TrialResults, "make it again with `twofold study report`")


def write_trial_results(results: TrialResults, directory: Path) -> None:
    """Write `results.json` and `results.csv` (one line per run) into `directory`."""
    write_atomically(directory / RESULTS_JSON, to_json(results))
    write_atomically(directory / RESULTS_CSV, to_csv(results).encode())


def to_csv(results: TrialResults) -> str:
    """One line per run that is reported."""
    columns = ("task", "label", "seed", "test", "validation", "parameters", "cache_bytes_per_token", "point")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for task in results.tasks:
        for run in task.runs:
            cache = run.cache.bytes_per_token if run.cache else ""
            test = run.test.score if run.test else ""
            line = [task.name, run.label, run.seed, test, run.validation.score, run.parameters["total"], cache]
            writer.writerow([*line, "; ".join(f"{key}={value}" for key, value in run.point.items())])
    return text.getvalue()
