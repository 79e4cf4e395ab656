"""What a task is to whoever trains and scores: examples in three splits, and the form of the model that they need."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

IGNORED = -100
"""The label of a position at which nothing is asked."""

Reads = Literal["tokens", "features", "images"]
Metric = Literal["accuracy", "mean IoU"]
Augmentation = Literal["crop", "flip", "rotate", "erase"]
"""What a training image may undergo (`twofold.training.augmentation`)."""


class Head(StrEnum):
    """What a model answers."""

    POSITIONS = "positions"  # a class for each position: token, patch or member of a set
    WHOLE = "whole"  # one class for the whole input
    MEMBER = "member"  # which position is meant
    NEXT = "next"  # a causal decoder's next token


@dataclass(frozen=True)
class Form:
    """What a model for the task reads and answers: all that its shapes depend on beside its own sizes.

    `classes` are those of the answer; of `Head.MEMBER` the positions, of `Head.NEXT` the vocabulary. `length` counts
    positions, tokens or members of a set, and is 0 for images, whose patches follow from `patch`, where the task fixes
    it, or else from the model. `image` is (channels, height, width). `padding` is the token that nobody sees.
    """

    reads: Reads
    head: Head
    classes: int
    length: int = 0
    vocabulary: int = 0
    features: int = 0
    image: tuple[int, int, int] | None = None
    patch: int = 0
    padding: int | None = None

    @property
    def causal(self) -> bool:
        """Whether the model is a decoder."""
        return self.head is Head.NEXT


@dataclass(frozen=True)
class Examples:
    """N examples. `inputs`: token ids int64 [N, T], features float32 [N, T, F], or images uint8 [N, C, height, width].

    `labels` int64: [N], or [N, T] with `IGNORED` where nothing is asked. For `Head.NEXT` label t is what the decoder
    should answer at input t. `parts` int64 [N] says which part of the results an example counts to
    (`Splits.part_names`).
    """

    inputs: NDArray[np.generic]
    labels: NDArray[np.int64]
    parts: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class Splits:
    """The examples of a task, none of which is in two splits, under equal seeds always the same.

    `part_names` name the values of `Examples.parts`, such as "4 pairs"; `augmentation` what training examples undergo.
    """

    form: Form
    training: Examples
    validation: Examples
    test: Examples
    part_names: tuple[str, ...] = ()
    augmentation: tuple[Augmentation, ...] = ()

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all examples: runs with equal fingerprints had the same data."""
        digest = hashlib.sha256()
        for examples in (self.training, self.validation, self.test):
            for array in (examples.inputs, examples.labels, examples.parts):
                if array is not None:
                    digest.update(f"{array.dtype}{array.shape}".encode())
                    digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


class TaskSpec(BaseModel, ABC):
    """The part of a study file that says which task, and how large. `data_seed` alone decides generated examples.

    `solved` is the score below which a table does not count: the baseline must reach it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    metric: ClassVar[Metric] = "accuracy"
    head: ClassVar[Head]
    reads: ClassVar[Reads]

    task: str
    data_seed: int = Field(0, ge=0)
    solved: float | None = Field(None, ge=0, le=1)

    @property
    @abstractmethod
    def form(self) -> Form:
        """What the model must read and answer, told without reading data where that is possible."""

    @property
    def answer_positions(self) -> NDArray[np.int64] | None:
        """For each position the one that holds its answer, [T]; None where that depends on the input."""
        return None

    @property
    def chance(self) -> float | None:
        """The score of a guess that knows how the task is made; None where the commonest answer is the best guess."""
        return None

    @property
    def deciding_part(self) -> str | None:
        """The part of the results by which `solved` is judged; None for all examples."""
        return None

    @abstractmethod
    def load(self) -> Splits:
        """Generate or read the examples. ValueError where there are too few, or a file is not what it should be."""
