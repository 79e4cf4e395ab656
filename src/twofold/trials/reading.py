"""Examples of a task for a model to read: those of the run that it comes from, or of a task by name. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from twofold.study.record import RECORD_FILE
from twofold.tasks.sentences import RolesTask
from twofold.tasks.task import TaskSpec
from twofold.trials.kinds import KINDS
from twofold.trials.record import is_of_a_task, read_trial_record

if TYPE_CHECKING:
    from twofold.explain.reading import Given

SHOWN = 48
"""Tokens that are told as pieces."""


class TaskText(NamedTuple):
    """Validation examples of a task: token ids int64 [N, T], the task's name, and the SHA-256 of its examples."""

    ids_NT: NDArray[np.int64]  # noqa: N815
    task: str
    fingerprint: str

    @property
    def pieces(self) -> tuple[str, ...]:
        """The first example's tokens as text: their numbers, with a space before all but the first."""
        return tuple(f" {token}" if place else f"{token}" for place, token in enumerate(self.ids_NT[0, :SHOWN]))


def task_text(run: str, tokens: int, task: str | None = None) -> TaskText:
    """Validation examples, as many as fit into so many tokens and at least one, of the task of the folder `run`.

    The run's record says which task, and how large; its `model` folder will do as well. `task` asks for another one: of
    the same kind with the same sizes, or else with its usual ones. Raises ValueError for a folder that is no run on a
    task where `task` is None, for names of no task, and for tasks that a model does not read as tokens of one length.
    """
    spec = _spec(run, task)
    if spec.reads != "tokens":
        raise ValueError(f"{spec.task} is read as {spec.reads}, and attention over tokens needs a task of tokens")
    if isinstance(spec, RolesTask) or spec.form.padding is not None:
        raise ValueError(f"{spec.task} has examples of unequal lengths: take a task on sequences, such as reverse")
    splits = spec.load()
    inputs = splits.validation.inputs
    chosen = inputs[: max(1, tokens // inputs.shape[1])].astype(np.int64)
    return TaskText(chosen, spec.task, splits.fingerprint)


def given(text: TaskText) -> Given:
    """The same as `explain` reads it."""
    import torch

    from twofold.explain.reading import Given
    from twofold.explain.record import TextRead

    read = TextRead(
        source=f"validation examples of {text.task}",
        sha256=text.fingerprint,
        tokens=text.ids_NT.size,
        window=text.ids_NT.shape[1],
        pieces=text.pieces,
    )
    return Given(torch.from_numpy(text.ids_NT), read)


def _spec(run: str, task: str | None) -> TaskSpec:
    own = _of_run(Path(run))
    if task is None and own is None:
        raise ValueError(f"{run} is no run on a task ({RECORD_FILE} names none): say which with --task")
    name = task or str((own or {})["task"])
    if name not in KINDS:
        raise ValueError(f"no task {name!r}: the tasks are {', '.join(KINDS)}")
    alike = own is not None and KINDS.get(own["task"]) is KINDS[name]
    try:
        return KINDS[name].model_validate({**(own if own and alike else {}), "task": name})
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"]))
        raise ValueError(f"{name} cannot be made by its name alone: {place}: {fault['msg']}") from error


def _of_run(folder: Path) -> dict[str, Any] | None:
    """The task that a run's record names."""
    for path in (folder / RECORD_FILE, folder.parent / RECORD_FILE):
        if path.is_file() and is_of_a_task(path):
            found: dict[str, Any] = read_trial_record(path).configuration["task"]
            return found
    return None
