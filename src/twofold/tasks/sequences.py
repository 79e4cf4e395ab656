"""The five tasks on sequences of digits: reverse, sort, subtract, swap halves, copy (arXiv 2606.04032)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from twofold.tasks.distinct import distinct_rows
from twofold.tasks.task import Examples, Form, Head, Reads, Splits, TaskSpec

_ENUMERATED = 4
"""Where there are fewer than this many sequences for each one asked for, they are numbered and not tried out."""


class SequenceTask(TaskSpec):
    """A class for each position, out of a sequence of random digits 0 … `digits` - 1.

    `reverse` turns the order round, `sort` puts it in ascending order, `subtract` takes each digit from `digits` - 1,
    `swap` exchanges the halves, `copy` changes nothing. `training`, `validation` and `test` count sequences; no two of
    them are equal. `solved` is 0.99, of `sort` 0.97, where it is left out; None says that any score counts.
    """

    head: ClassVar[Head] = Head.POSITIONS
    reads: ClassVar[Reads] = "tokens"

    task: Literal["reverse", "sort", "subtract", "swap", "copy"]
    length: int = Field(default=32, ge=1)
    digits: int = Field(default=10, ge=2)
    training: int = Field(default=50_000, ge=1)
    validation: int = Field(default=2_000, ge=1)
    test: int = Field(default=2_000, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _when_solved(cls, values: Any) -> Any:
        # Equal digits make sorting the one task that a good model does not quite finish.
        if isinstance(values, dict) and "solved" not in values:
            return {**values, "solved": 0.97 if values.get("task") == "sort" else 0.99}
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.task == "swap" and self.length % 2:
            raise ValueError(f"swap exchanges halves, and a length of {self.length} has none: make it even")
        if self.digits**self.length < self._count:
            raise ValueError(
                f"There are only {self.digits}^{self.length} = {self.digits**self.length} sequences, and "
                f"{self._count} different ones are asked for: make length or digits larger, or the splits smaller"
            )
        return self

    @property
    def form(self) -> Form:
        """Digits in, a digit for each position out."""
        return Form("tokens", Head.POSITIONS, classes=self.digits, length=self.length, vocabulary=self.digits)

    @property
    def answer_positions(self) -> NDArray[np.int64] | None:
        """Where each digit of the answer stands; None for `sort`, where the digits decide."""
        places = np.arange(self.length)
        match self.task:
            case "reverse":
                return places[::-1].copy()
            case "swap":
                return np.roll(places, self.length // 2)
            case "subtract" | "copy":
                return places
            case "sort":
                return None

    def load(self) -> Splits:
        """Generate the sequences; 54,000 of length 128 take less than a second."""
        inputs = self._sequences()
        labels = self.answer(inputs)
        first, second = self.training, self.training + self.validation
        parts = (slice(0, first), slice(first, second), slice(second, None))
        training, validation, test = (Examples(inputs[part], labels[part]) for part in parts)
        return Splits(self.form, training, validation, test)

    def answer(self, inputs: NDArray[np.int64]) -> NDArray[np.int64]:
        """The right answers [N, T] to sequences of digits [N, T]."""
        match self.task:
            case "reverse":
                return inputs[:, ::-1].copy()
            case "sort":
                return np.sort(inputs, axis=1)
            case "subtract":
                return self.digits - 1 - inputs
            case "swap":
                return np.roll(inputs, self.length // 2, axis=1)
            case "copy":
                return inputs.copy()

    @property
    def _count(self) -> int:
        return self.training + self.validation + self.test

    def _sequences(self) -> NDArray[np.int64]:
        """All sequences [N, T] in a random order."""
        # The task's name is no part of the seed: all five ask about the same sequences.
        rng = np.random.default_rng(self.data_seed)
        there_are = self.digits**self.length
        if there_are > _ENUMERATED * self._count:
            return distinct_rows(lambda rows: rng.integers(0, self.digits, size=(rows, self.length)), self._count)
        numbers = rng.permutation(there_are)[: self._count]
        places = self.digits ** np.arange(self.length - 1, -1, -1, dtype=np.int64)
        return numbers[:, None] // places % self.digits
