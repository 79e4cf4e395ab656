"""Put the finished runs of a study of tasks together."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from twofold.study.plan import RUNS_FOLDER, Course, PlannedRun, courses
from twofold.study.record import RECORD_FILE, CurvePoint
from twofold.study.results import Failure
from twofold.trials.plan import places_of, read_task_study
from twofold.trials.published import published_score
from twofold.trials.record import TEST_FILE, Look, TaskRun, read_test, read_trial_record
from twofold.trials.results import TaskResults, TrialResults, TriedPoint, is_solved, summarise, write_trial_results
from twofold.trials.runner import COMMAND_FILE
from twofold.trials.trial import Trial

SHOWN_POINTS = 50
"""Of a run's training curve, in the results; its own record has more."""


def collect_trials(out: Path) -> TrialResults:
    """Put the finished runs in `out` together and write results.json and results.csv.

    Raises ValueError where `out` holds no study of tasks, or nothing finished.
    """
    spec = read_task_study(out)
    tasks = tuple(_task(trial, folder) for trial, folder in places_of(spec, out))
    if not any(task.runs or task.sweep or task.diverged for task in tasks):
        raise ValueError(f"{out}: no run is finished yet; `twofold study run` makes them")
    command = out / COMMAND_FILE
    results = TrialResults(
        study=spec.name,
        description=" ".join(spec.description.split()),
        command=command.read_text().strip() if command.is_file() else "",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tasks=tasks,
    )
    write_trial_results(results, out)
    return results


def _task(trial: Trial, folder: Path) -> TaskResults:
    found = courses(trial, folder)
    runs = [_read(run) for course in found for run in course.reported if run.finished]
    order = [one.label for one in trial.contenders]
    source = str(getattr(trial.task, "source", ""))
    variants = {one.label: one.variant for one in trial.contenders}

    def published(label: str) -> float | None:
        return published_score(trial.task.task, source, label) if label == variants[label] else None

    part, threshold = trial.task.deciding_part, trial.task.solved

    def solved(look: Look) -> bool:
        return threshold is not None and (look.parts[part] if part else look.score) >= threshold

    summary = summarise(runs, trial.baseline, order, published, None if threshold is None else solved)
    return TaskResults(
        name=trial.name,
        task=trial.task.model_dump(mode="json"),
        metric=trial.task.metric,
        chance=trial.task.chance if trial.task.chance is not None else _guess(runs),
        threshold=threshold,
        deciding_part=part,
        baseline=trial.baseline,
        solved=is_solved(summary, trial.baseline, threshold, part),
        steps=trial.steps,
        answers=next((run.test.answers for run in runs if run.test), 0),
        summary=summary,
        runs=tuple(runs),
        sweep=tuple(one for course in found for one in _tried(course)) if len(trial.points) > 1 else (),
        diverged=tuple(one for course in found for one in _failures(course)),
        unfinished=sum(_unfinished(course, len(trial.seeds)) for course in found),
        until=trial.until,
        further_tests=sum(1 for _ in folder.glob(f"{RUNS_FOLDER}/*/{TEST_FILE}")) - sum(bool(run.test) for run in runs),
    )


def _guess(runs: Sequence[TaskRun]) -> float | None:
    """What the commonest answer scores on the test set; None before anything was tested."""
    return next((run.test.guess for run in runs if run.test), None)


def _read(run: PlannedRun) -> TaskRun:
    record = read_trial_record(run.folder / RECORD_FILE)
    told = record.model_dump(exclude={"maps", "curve"}) | {"test": read_test(run.folder), "curve": _few(record.curve)}
    return TaskRun.model_validate(told)


def _few(curve: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
    """Every k-th point of a curve, the last among them: results of many runs stay small."""
    every = -(-len(curve) // SHOWN_POINTS)
    return tuple(curve[(len(curve) - 1) % every :: every])


def _tried(course: Course) -> Sequence[TriedPoint]:
    return [
        TriedPoint(
            label=run.label,
            variant=run.variant,
            point=dict(run.point),
            score=read_trial_record(run.folder / RECORD_FILE).validation.score if run.finished else None,
            chosen=run is course.best,
        )
        for run in course.tries
        if run.ended
    ]


def _failures(course: Course) -> Sequence[Failure]:
    return [
        Failure(label=run.label, variant=run.variant, seed=run.seed, reason=run.diverged)
        for run in (course.reported or course.tries)
        if run.diverged
    ]


def _unfinished(course: Course, seeds: int) -> int:
    """Runs that are still to be made, or to be tested."""
    known = sum(not run.ended for run in (*course.tries, *course.others))
    known += sum(run.finished and not (run.folder / TEST_FILE).is_file() for run in course.reported)
    return known + (seeds - 1 if course.is_open else 0)
