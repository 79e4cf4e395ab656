"""Training on a task: its examples as the Trainer takes them, and scores while it trains."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from twofold.tasks.batches import Batch, batch
from twofold.tasks.task import Splits

LOOKS_FILE = "looks.jsonl"

Look = dict[str, Any]
"""The step, and what was found there."""


class TaskSet(Dataset):
    """The training examples of a task, a whole batch at a time, augmented where the task asks for it.

    What augmentation does to a batch follows from `seed` and from which examples are in it, so that a run that goes on
    from a checkpoint sees what it would have seen.
    """

    def __init__(self, splits: Splits, seed: int) -> None:
        self.splits = splits
        self.seed = seed

    def __len__(self) -> int:
        return len(self.splits.training)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """The examples at `indices` as one batch."""
        made = batch(self.splits.form, self.splits.training, indices)
        if self.splits.augmentation:
            from twofold.training.augmentation import augment  # its library is an extra

            drawn = hashlib.sha256(f"{self.seed}/{list(indices)}".encode()).digest()
            seed = int.from_bytes(drawn[:4], "big")
            made["pixel_values"] = augment(made["pixel_values"], self.splits.augmentation, seed)
        return made


class LookOften(TrainerCallback):
    """Scores the model `looks` times, evenly over the steps, by calling `look`; notes what that gives in `folder`.

    Training ends early once a look's `score` reaches `until`. A run that goes on from a checkpoint keeps what was noted
    before it.
    """

    def __init__(
        self,
        folder: Path,
        looks: int,
        look: Callable[[PreTrainedModel], dict[str, Any]],
        until: float | None = None,
    ) -> None:
        self._until = until
        self._path = folder / LOOKS_FILE
        self._count = looks
        self._look = look
        self.found: list[Look] = []

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep the looks up to the step that training goes on from."""
        self.found = [one for one in read_looks(self._path) if one["step"] <= state.global_step]
        self._write()

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel,
        **kwargs: Any,
    ) -> None:
        """Look when it is time."""
        step, steps = state.global_step, state.max_steps
        if step * self._count // steps > (step - 1) * self._count // steps:
            self.found.append({"step": step, **self._look(model)})
            self._write()
            control.should_training_stop |= self.ended(step)

    def ended(self, step: int) -> bool:
        """Whether the look at this step was enough; also told by the file, before training goes on from there."""
        looks = self.found or read_looks(self._path)
        return self._until is not None and any(one["step"] == step and one["score"] >= self._until for one in looks)

    def _write(self) -> None:
        fresh = self._path.with_name(f".{self._path.name}")
        fresh.write_text("".join(json.dumps(one) + "\n" for one in self.found))
        fresh.replace(self._path)


def read_looks(path: Path) -> list[Look]:
    """The looks noted in a file; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
