"""The sentences at the top of a report on tasks. Every one is drawn from the results."""

from __future__ import annotations

from collections.abc import Sequence

from twofold.report.formats import list_text, signed_text
from twofold.report.trials import edge_notes
from twofold.trials.results import TaskResults, TaskSummary, TrialResults

Differing = tuple[TaskResults, TaskSummary]
MANY = 4  # differences that the headline itself still names


def counting(results: TrialResults) -> list[TaskResults]:
    """The tasks whose tables count: the baseline solves them, or they ask for no score."""
    return [task for task in results.tasks if task.solved or (task.threshold is None and task.summary)]


def lead(results: TrialResults) -> str:
    """The main finding, or that no table counts."""
    counted = counting(results)
    unsolved = [task for task in results.tasks if task.solved is False]
    if not counted:
        if not unsolved:
            return "No result yet: the baseline has not read a test set."
        return f"No table counts here: the baseline does not solve {_names(unsolved)}."
    compared = [one for task in counted for one in task.summary if one.to_baseline]
    if not compared:
        return f"On {_names(counted)}, nothing stands beside the baseline yet."
    if not any(one.to_baseline and one.to_baseline.interval for one in compared):
        return "One seed each: no difference to the baseline has a known uncertainty."
    found = differing(counted)
    if not found:
        which = f" that the baseline solves ({_names(counted)})" if unsolved else ""
        return f"No variant differs from the baseline by more than its interval on any task{which}."
    return _finding(found, len(compared))


def notes(results: TrialResults) -> list[str]:
    """Which tasks count and which do not, each difference that is beyond its interval, and what is missing."""
    counted = counting(results)
    solved = [task for task in counted if task.solved]
    found = []
    if solved:
        found.append(f"The baseline solves {_names(solved)}.")
    found += [_unsolved(task) for task in results.tasks if task.solved is False]
    free = [task for task in counted if task.threshold is None]
    if free:
        found.append(f"No score is asked of the baseline on {_names(free)}.")
    found += [_differences(task) for task in counted if differing([task])]
    at_edge = [task for task in results.tasks if edge_notes(task)]
    if at_edge:
        found.append(f"Chosen at the edge of the sweep, where a wider one may do better, on {_names(at_edge)}.")
    diverged = sum(len(task.diverged) for task in results.tasks)
    if diverged:
        found.append(f"Diverged: {diverged} {_runs(diverged)}, which no number here is of.")
    if results.unfinished:
        found.append(f"Not finished yet: {results.unfinished} {_runs(results.unfinished)}.")
    return found


def differing(tasks: Sequence[TaskResults]) -> list[Differing]:
    """The variants whose interval of the difference to the baseline excludes zero."""
    return [(task, one) for task in tasks for one in task.summary if task.told_apart(one)]


def _finding(found: Sequence[Differing], compared: int) -> str:
    below = [pair for pair in found if pair[1].to_baseline and pair[1].to_baseline.difference < 0]
    sides = {"below": below, "above": [pair for pair in found if pair not in below]}
    if len(found) > MANY:
        counts = " and ".join(f"{len(pairs)} {side}" for side, pairs in sides.items() if pairs)
        return f"{len(found)} of {compared} differences to the baseline are beyond their interval: {counts}."
    named = [
        f"{side} it {list_text([f'{one.label} on {task.name}' for task, one in pairs])}"
        for side, pairs in sides.items()
        if pairs
    ]
    return f"Beyond the interval of the difference to the baseline: {'; '.join(named)} (of {compared} compared)."


def _differences(task: TaskResults) -> str:
    found = [
        f"{one.label} {signed_text(one.to_baseline.difference)}" for _, one in differing([task]) if one.to_baseline
    ]
    return f"On {task.name}, these differ from {task.baseline} beyond their interval: {list_text(found)}."


def _unsolved(task: TaskResults) -> str:
    own = next(one for one in task.summary if one.label == task.baseline)
    reached = own.parts[task.deciding_part] if task.deciding_part else own.score
    part = f" with {task.deciding_part}" if task.deciding_part else ""
    return (
        f"The baseline does not solve {task.name}, and its table does not count: {task.baseline} reaches "
        f"{reached.mean:.4f}{part}, and {task.threshold:g} is asked."
    )


def _names(tasks: Sequence[TaskResults]) -> str:
    return list_text([task.name for task in tasks])


def _runs(count: int) -> str:
    return "run" if count == 1 else "runs"
