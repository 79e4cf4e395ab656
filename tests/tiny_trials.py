"""A study of tasks small enough for tests, and a way to run it that notes what is made."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from twofold.study.plan import PlannedRun
from twofold.trials.runner import run_trials
from twofold.trials.spec import TaskStudySpec
from twofold.trials.trial import Trial

COMMAND = "twofold study run tiny.yaml"
SIZES = {"training": 101, "validation": 31, "test": 37}
REVERSE = {"task": "reverse", "length": 7, **SIZES}
RECALL = {
    "task": "recall",
    "pairs": [2, 3],
    "vocabulary": 14,
    **SIZES,
    "model": {"layers": 1, "width": 24, "heads": 2, "mlp": 31},
    "variants": ["QKV", "K=V MQA"],
}


def content(**changes: Any) -> dict[str, Any]:
    """What a study file holds; `changes` replace whole keys."""
    return {
        "name": "tiny",
        "tasks": [dict(REVERSE)],
        "model": {"layers": 2, "width": 12, "heads": 2},
        "variants": ["QKV", "Q=K +"],
        "seeds": [0, 1],
        "steps": 7,
        "looks": 3,
        "training": {"batch": 5, "checkpoints": 3},
        **changes,
    }


def spec(**changes: Any) -> TaskStudySpec:
    return TaskStudySpec.model_validate(content(**changes))


class Watching:
    """Notes which runs are made and tested, and may stop one in the middle."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at = stop_at
        self.made: list[tuple[str, str, int]] = []
        self.tested: list[tuple[str, str, int]] = []
        self.said: list[str] = []

    def trained(self, step: Any) -> None:
        if step.step == self.stop_at:
            raise KeyboardInterrupt

    def evaluated(self, done: int, total: int) -> None:
        assert 0 < done <= total

    def say(self, message: str) -> None:
        self.said.append(message)

    @contextmanager
    def __call__(self, trial: Trial, run: PlannedRun, is_test: bool) -> Iterator["Watching"]:
        (self.tested if is_test else self.made).append((trial.name, run.label, run.seed))
        yield self


def make(study: TaskStudySpec, out: Path, stop_at: int | None = None) -> Watching:
    watching = Watching(stop_at)
    run_trials(study, out, COMMAND, watching)
    return watching
