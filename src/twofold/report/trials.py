"""A study of tasks in tables: finished texts, whichever way they are printed."""

from __future__ import annotations

from typing import NamedTuple

from twofold.report.formats import duration_text, list_text, signed_text
from twofold.study.picking import at_the_edge
from twofold.study.statistics import Spread
from twofold.study.sweep import point_text, value_text
from twofold.trials.published import SOURCE
from twofold.trials.results import TaskResults, TaskSummary, TrialResults

NO_VALUE = "–"
LEFT = ("variant", "ran with")
DOES_NOT_COUNT = "The baseline does not solve it: this table does not count."
MEASURES = {
    "answer": ("answer", "The mean weight on the position that holds the answer, in the head that gives it most."),
    "answer_near": ("with neighbours", "In the same head, the weight on that position and the two beside it."),
    "symmetry": (
        "symmetry",
        "⟨A, Aᵀ⟩ / ⟨A, A⟩ of a map A, the mean over examples, layers and heads: 1 where each position is looked at as "
        "it looks.",
    ),
    "diagonal": ("diagonal", "The mean weight that a position gives to itself, over layers and heads."),
}
"""Name of a measure of attention maps → its heading, and what it is in one sentence."""


class Cell(NamedTuple):
    """One text, with what belongs below or beside it. `kind` is `better` or `worse` where an interval says so, or
    `chosen`.
    """

    text: str
    detail: str = ""
    kind: str = ""


class Table(NamedTuple):
    """Headings, and rows of as many cells."""

    headings: list[str]
    rows: list[list[Cell]]


def title(task: TaskResults) -> str:
    """`reverse: accuracy on 64,000 test answers, chance 0.100; QKV solves it (0.99 asked)`."""
    return f"{task.name}: {asked(task)}"


def asked(task: TaskResults) -> str:
    """What was measured on how many answers, and whether the baseline solves the task."""
    said = f"{task.metric} on {task.answers:,} test answers"
    said += "" if task.chance is None else f", chance {task.chance:.3f}"
    if task.threshold is None or task.solved is None:
        return said
    part = f" with {task.deciding_part}" if task.deciding_part else ""
    return f"{said}; {task.verdict}{part} ({task.threshold:g} asked)"


def main_table(task: TaskResults) -> Table:
    """One row per variant: its score, the difference to the baseline's, and what it took. No column is empty."""
    has_cache = any(one.cache_bytes_per_token is not None for one in task.summary)
    has_published = any(one.published is not None for one in task.summary)
    swept = _swept(task)
    columns = {
        "variant": [Cell(one.label) for one in task.summary],
        "score": [spread_cell(one.score) for one in task.summary],
        "to baseline": [_against(one, task) for one in task.summary],
    }
    if task.threshold is not None and any(one.steps_to_solve for one in task.summary):
        columns[f"steps to {task.threshold:g}"] = [_steps_to_solve(one) for one in task.summary]
    if has_published:
        columns["published"] = [_optional(one.published, ".3f") for one in task.summary]
    columns["parameters"] = [Cell(f"{one.parameters['total']:,}") for one in task.summary]
    if has_cache:
        columns["cache bytes/token"] = [_optional(one.cache_bytes_per_token, ",.0f") for one in task.summary]
    if len(swept) == 1:
        columns[_words(swept[0])] = [Cell(value_text(one.point.get(swept[0], NO_VALUE))) for one in task.summary]
    elif swept:
        columns["ran with"] = [Cell(point_text(one.point)) for one in task.summary]
    return _of_columns(columns)


def parts_table(task: TaskResults) -> Table:
    """Scores of the parts of the test set, such as examples with 4 pairs; no rows where there are none."""
    parts = part_names(task)
    if not parts:
        return Table([], [])
    columns = {"variant": [Cell(one.label) for one in task.summary]}
    return _of_columns(columns | {part: [spread_cell(one.parts[part]) for one in task.summary] for part in parts})


def attention_table(task: TaskResults) -> Table:
    """Numbers of the attention maps; no rows where none were taken."""
    taken = measure_names(task)
    shown = [one for one in task.summary if one.measures]
    if not taken:
        return Table([], [])
    columns = {"variant": [Cell(one.label) for one in shown]}
    return _of_columns(
        columns | {MEASURES[name][0]: [spread_cell(one.measures[name], 3) for one in shown] for name in taken}
    )


def sweep_table(task: TaskResults) -> Table:
    """Validation scores at each point of the sweep, the chosen one marked; no rows where nothing was swept."""
    points = list(dict.fromkeys(point_text(one.point) for one in task.sweep))
    tried = {(one.label, point_text(one.point)): one for one in task.sweep}
    rows = []
    for label in dict.fromkeys(one.label for one in task.sweep):
        row = [Cell(label)]
        for point in points:
            one = tried.get((label, point))
            if one is None:
                row.append(Cell(NO_VALUE))
            elif one.score is None:
                row.append(Cell("diverged"))
            else:
                row.append(Cell(f"{one.score:.4f} ✓", kind="chosen") if one.chosen else Cell(f"{one.score:.4f}"))
        rows.append(row)
    return Table(["variant", *points], rows) if rows else Table([], [])


def run_table(task: TaskResults) -> Table:
    """Every reported run on its own."""
    rows = [
        [
            Cell(run.label),
            Cell(str(run.seed)),
            Cell(NO_VALUE) if run.test is None else Cell(f"{run.test.score:.4f}"),
            Cell(f"{run.validation.score:.4f}"),
            Cell(f"{run.validation.loss:.4f}"),
            Cell(f"{run.examples_per_second:,.0f}"),
            Cell(duration_text(run.wall_seconds)),
        ]
        for run in task.runs
    ]
    return Table(["variant", "seed", "test", "validation", "validation loss", "examples/s", "took"], rows)


def part_names(task: TaskResults) -> list[str]:
    """The parts that every variant has a score of, in the task's order."""
    parts = list(task.summary[0].parts) if task.summary else []
    return [part for part in parts if all(part in one.parts for one in task.summary)]


def measure_names(task: TaskResults) -> list[str]:
    """The measures that every measured variant has, as `MEASURES` orders them."""
    measured = [one.measures for one in task.summary if one.measures]
    return [name for name in MEASURES if measured and all(name in each for each in measured)]


def below(task: TaskResults) -> list[str]:
    """What must be read with a task's table: that it does not count, whose runs diverged or are missing."""
    found = [DOES_NOT_COUNT] if task.solved is False else []
    if task.until:
        found.append(
            f"Training ended once a look at validation examples scored {task.until:g}: scores of variants that solve "
            "it are not told apart."
        )
    found += edge_notes(task)
    if task.further_tests:
        found.append(
            f"{task.further_tests} further runs read the test set, when the sweep was another: take the scores as a "
            "little too good."
        )
    found += [f"{one.label}, seed {one.seed} diverged: {one.reason}" for one in task.diverged]
    if task.unfinished:
        found.append(f"Not finished yet: {task.unfinished} {'run' if task.unfinished == 1 else 'runs'}.")
    return found


def edge_notes(task: TaskResults) -> list[str]:
    """A sentence for each value at which a wider sweep might do better."""
    groups: dict[str, list[str]] = {}
    for label, value in at_the_edge(task.sweep):
        groups.setdefault(value, []).append(label)
    return [
        f"At the edge of the sweep: {list_text(labels)} with {value}; a wider one may do better."
        for value, labels in groups.items()
    ]


def remarks(results: TrialResults) -> list[str]:
    """What belongs to all tables."""
    seeds = sorted({len(one.seeds) for task in results.tasks for one in task.summary})
    if not seeds:
        return ["No run has read the test set yet."]
    once = not any(task.further_tests for task in results.tasks)
    read = "The test set was read once, by the runs reported here." if once else "The test set was read by more runs."
    if seeds == [1]:
        found = [f"Scores are of one seed: how far another would be from it is not known. {read}"]
    else:
        found = [
            f"Scores are means over {' or '.join(map(str, seeds))} seeds, ± their standard deviation; differences are "
            f"paired by seed, with 95 % intervals (Student's t). {read}"
        ]
    if any(one.published is not None for task in results.tasks for one in task.summary):
        found.append(
            f"Published: {SOURCE}; its synthetic rows are means over settings, its sets are of features of a trained "
            "network."
        )
    return found


def _steps_to_solve(one: TaskSummary) -> Cell:
    """The median over seeds, where one that never reached it counts as more than all; beside it, how many did."""
    reached = sorted(steps for steps in one.steps_to_solve if steps is not None)
    middle = (len(one.steps_to_solve) - 1) // 2
    median = f"{reached[middle]:,}" if middle < len(reached) else "not reached"
    missing = len(one.steps_to_solve) - len(reached)
    return Cell(median, f"by {len(reached)} of {len(one.steps_to_solve)}" if missing and reached else "")


def spread_cell(spread: Spread, decimals: int = 4) -> Cell:
    """`0.9981`, with `± .0004`, the standard deviation over seeds, where there are several."""
    deviation = spread.standard_deviation
    more = "" if deviation is None else f"± {deviation:.{decimals}f}".replace(" 0.", " .")
    return Cell(f"{spread.mean:.{decimals}f}", more)


def _against(one: TaskSummary, task: TaskResults) -> Cell:
    if one.label == task.baseline:
        return Cell("baseline")
    found = one.to_baseline
    if found is None:
        return Cell(NO_VALUE)
    interval = f"[{', '.join(map(signed_text, found.interval))}]" if found.interval else ""
    kind = ("better" if found.difference > 0 else "worse") if task.told_apart(one) else ""
    return Cell(signed_text(found.difference), interval, kind)


def _swept(task: TaskResults) -> list[str]:
    return list(dict.fromkeys(key for one in task.summary for key in one.point))


def _optional(value: float | None, form: str) -> Cell:
    return Cell(NO_VALUE if value is None else format(value, form))


def _of_columns(columns: dict[str, list[Cell]]) -> Table:
    return Table(list(columns), [list(row) for row in zip(*columns.values(), strict=True)])


def _words(key: str) -> str:
    return key.partition(".")[2].replace("_", " ")
