"""Per-step metrics: one JSON line per step, and a progress call for whoever shows it."""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

METRICS_FILE = "metrics.jsonl"

LayerGradients = dict[str, float | None]
"""What reaches one `layer`'s queries, keys and values; `training.gradients` says what the numbers are."""


class Step(NamedTuple):
    """What one optimizer step tells. `tokens` seen so far, `loss` in nats per token, `seconds` since the start.

    `gradient_norm` is the norm before clipping; None where float16 could not hold the gradient and the step was left
    out. `gradients` are of the layers, None in steps of which they were not asked.
    """

    step: int
    steps: int
    tokens: int
    loss: float
    learning_rate: float
    gradient_norm: float | None
    seconds: float
    gradients: list[LayerGradients] | None = None

    @property
    def tokens_per_second(self) -> float:
        """Mean speed since the start."""
        return self.tokens / self.seconds if self.seconds else 0.0


class DivergedError(ValueError):
    """The loss or its gradient is no longer a number; training on would be in vain."""


class MetricsCallback(TrainerCallback):
    """Writes `metrics.jsonl` and tells `progress` about each step. Raises `DivergedError` when the loss is no number.

    `kept` are the steps before the one that training goes on from; the file starts with them. Without a `path` there is
    no file: another process writes it. `skips`: a loss scale skips the steps whose gradient is no number. `gradients`
    are looked up when a step is written.
    """

    def __init__(
        self,
        path: Path | None,
        tokens_per_step: int,
        progress: Callable[[Step], None] | None,
        kept: list[Step],
        skips: bool = False,
        gradients: Mapping[int, list[LayerGradients]] | None = None,
    ) -> None:
        self.path = path
        self.gradients = {} if gradients is None else gradients
        self.skips = skips
        self.tokens_per_step = tokens_per_step
        self.progress = progress
        self.steps = list(kept)
        self._file: TextIO | None = None
        self._training = False
        self._started = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the file with the steps that are kept, and the clock where they left it."""
        self._training = True
        if self.path is not None:
            # Replaced whole: killed before the next step is written, the file still holds what came before.
            fresh = self.path.with_name(f".{self.path.name}.{os.getpid()}")
            fresh.write_text("".join(_line(step) for step in self.steps))
            fresh.replace(self.path)
            self._file = self.path.open("a")
        self._started = time.perf_counter() - (self.steps[-1].seconds if self.steps else 0.0)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """One line; the Trainer's closing summary, which has no loss of a step, is left out."""
        if not self._training or not logs or "loss" not in logs:
            return
        norm = logs["grad_norm"]
        step = Step(
            step=state.global_step,
            steps=state.max_steps,
            tokens=state.global_step * self.tokens_per_step,
            loss=logs["loss"],
            learning_rate=logs["learning_rate"],
            gradient_norm=None if self.skips and not math.isfinite(norm) else norm,
            seconds=time.perf_counter() - self._started,
            gradients=self.gradients.get(state.global_step),
        )
        for name, value in (("loss", step.loss), ("gradient's norm", step.gradient_norm)):
            if value is not None and not math.isfinite(value):
                raise DivergedError(
                    f"the {name} is {value} at step {step.step} of {step.steps}: lower the learning rate "
                    f"({step.learning_rate:.2g} here), lengthen the warm-up, or clip harder"
                )
        if self._file is not None:
            self._file.write(_line(step))
            self._file.flush()
        self.steps.append(step)
        if self.progress:
            self.progress(step)

    def close(self) -> None:
        """Take no more steps, also after an error."""
        self._training = False
        if self._file is not None:
            self._file.close()
            self._file = None


class GradientSize(NamedTuple):
    """Norms of a run's gradient before clipping: the median and the largest of all its steps, and the medians of the
    first and of the last tenth of them.
    """

    median: float
    largest: float
    first_tenth: float
    last_tenth: float


def gradient_size(steps: Sequence[Step]) -> GradientSize | None:
    """What the steps say of the gradient; those that float16 left out do not count. None where none is left."""
    norms = [step.gradient_norm for step in steps if step.gradient_norm is not None]
    if not norms:
        return None
    tenth = -(-len(norms) // 10)
    return GradientSize(
        median=statistics.median(norms),
        largest=max(norms),
        first_tenth=statistics.median(norms[:tenth]),
        last_tenth=statistics.median(norms[-tenth:]),
    )


def _line(step: Step) -> str:
    told = step._asdict()
    if step.gradients is None:
        del told["gradients"]
    return json.dumps(told) + "\n"


def read_metrics(folder: Path, up_to: int | None = None) -> list[Step]:
    """The steps that a run's folder tells of, up to one of them if given; a line that was cut off is left out."""
    path = folder / METRICS_FILE
    if not path.is_file():
        return []
    lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    steps = [Step(**json.loads(line)) for line in lines]
    return steps if up_to is None else [step for step in steps if step.step <= up_to]
