"""What one finished run on a task leaves behind, checked when it is made and when it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveInt

from twofold.study.record import CacheRecord, CurvePoint, Environment, Finite, Labelled, Part, read_checked

TEST_FILE = "test.json"


class Score(Part):
    """Between 0 and 1, of so many `answers` asked in so many `examples`; `loss` in nats per answer.

    `guess` is the score of the commonest answer, always given.

    `parts` are the scores of parts of the examples, such as those with 4 pairs.
    """

    score: FiniteFloat
    guess: FiniteFloat | None = None
    loss: FiniteFloat
    examples: PositiveInt
    answers: PositiveInt
    parts: dict[str, FiniteFloat] = Field(default_factory=dict)


class Look(Part):
    """The score on some validation examples after so many steps."""

    step: NonNegativeInt
    score: FiniteFloat
    parts: dict[str, FiniteFloat] = Field(default_factory=dict)


class TaskRun(Labelled):
    """One run on a task. `cache` is that of a decoder; an encoder keeps nothing.

    `measures` say what the attention maps look like (`evaluation.attention_maps`), over validation examples.
    """

    seed: int
    parameters: dict[str, NonNegativeInt]
    validation: Score
    test: Score | None = None
    cache: CacheRecord | None = None
    measures: dict[str, FiniteFloat] = Field(default_factory=dict)
    curve: tuple[CurvePoint, ...]
    looks: tuple[Look, ...]
    examples_per_second: Finite
    wall_seconds: Finite
    environment: Environment
    configuration: dict[str, Any]

    @property
    def point(self) -> dict[str, Any]:
        """Where in its study's sweep the run stands."""
        return self.configuration.get("point", {})


class AttentionMap(Part):
    """The mean attention of one head over validation examples: [query position][key position]."""

    layer: NonNegativeInt
    head: NonNegativeInt
    weights: tuple[tuple[FiniteFloat, ...], ...]


class TrialRecord(TaskRun):
    """One run as its folder keeps it: with attention maps, where the task has some worth a look."""

    maps: tuple[AttentionMap, ...] = ()


def read_trial_record(path: Path) -> TrialRecord:
    """Read one record. ValueError names the file, the place in it and what to do."""
    return read_checked(path, TrialRecord, "delete the run's folder and run the study again")


def is_of_a_task(path: Path) -> bool:
    """Whether a record is one of a run on a task, and not of text."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        return False
    return isinstance(content, dict) and "task" in content.get("configuration", {})


def read_test(folder: Path) -> Score | None:
    """The test score of a finished run; None where the test set was not read by it."""
    path = folder / TEST_FILE
    return read_checked(path, Score, "delete the file and run the study again") if path.is_file() else None
