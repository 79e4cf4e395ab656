"""Tasks for causal decoders whose answer stands earlier in the context: associative recall and induction."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from twofold.tasks.distinct import distinct_rows, distinct_tokens
from twofold.tasks.task import IGNORED, Examples, Form, Head, Reads, Splits, TaskSpec

FILLER = 0
"""The token of `RecallTask` that is neither key nor value."""


class RecallTask(TaskSpec):
    """Multi-query associative recall, MQAR (Arora et al. 2023, arXiv 2312.04927, section 3.1).

    An example begins with pairs of a key and its value; then keys come again, and the value of each is asked for, but
    not shown: values seen would leave fewer to guess among. With `questions` "throughout" all later positions ask,
    every key as often as any other (to within once), in random order; with "once" each key comes once more, at a
    random place, and all other positions hold `FILLER`, which is nearer to the source and takes far longer to learn.
    No key and no value comes twice among the pairs of an example.

    Token 0 is `FILLER`, 1 … vocabulary/2 - 1 are keys, the rest are values. `pairs` are the numbers of pairs, equally
    frequent (to within one example) and each a part of the results. `length` counts tokens, by default four for each of
    the most pairs. The source has a vocabulary of 8,192, and queries closer to the pairs more often; here all places
    are equally likely.
    """

    head: ClassVar[Head] = Head.NEXT
    reads: ClassVar[Reads] = "tokens"

    task: Literal["recall"] = "recall"
    solved: float | None = Field(0.99, ge=0, le=1)
    pairs: tuple[int, ...] = Field(default=(2, 4, 8), min_length=1)
    length: int | None = Field(default=None, ge=1)
    vocabulary: int = Field(default=32, ge=4)
    questions: Literal["throughout", "once"] = "throughout"
    training: int = Field(default=30_000, ge=1)
    validation: int = Field(default=1_500, ge=1)
    test: int = Field(default=3_000, ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.pairs[0] < 1 or list(self.pairs) != sorted(set(self.pairs)):
            raise ValueError(f"pairs are ascending numbers from 1 on, each once, and not {list(self.pairs)}")
        most = self.pairs[-1]
        if self.vocabulary % 2:
            raise ValueError(f"One half of the vocabulary are values: make {self.vocabulary} even")
        if most > self._keys:
            raise ValueError(
                f"A vocabulary of {self.vocabulary} has {self._keys} keys, and {most} pairs need as many: make it "
                f"{2 * most + 2} or more"
            )
        if self._tokens < 3 * most:
            raise ValueError(
                f"{most} pairs and a question for each take {3 * most} tokens, and length is {self._tokens}: make it "
                "larger or leave it out"
            )
        if (smallest := min(self.training, self.validation, self.test)) < len(self.pairs):
            raise ValueError(f"{len(self.pairs)} numbers of pairs need as many examples in a split, not {smallest}")
        return self

    @property
    def form(self) -> Form:
        """A decoder's, over keys, values and `FILLER`."""
        return Form("tokens", Head.NEXT, classes=self.vocabulary, length=self._tokens, vocabulary=self.vocabulary)

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts, such as "4 pairs", in the order of `pairs`."""
        return tuple(f"{count} pair{'s' * (count > 1)}" for count in self.pairs)

    @property
    def chance(self) -> float:
        """A guess among the values of the pairs, over all answers: more are asked where there are fewer pairs."""
        asked = [count if self.questions == "once" else self._tokens - 2 * count for count in self.pairs]
        return sum(answers / count for answers, count in zip(asked, self.pairs, strict=True)) / sum(asked)

    @property
    def deciding_part(self) -> str:
        """The part with the fewest pairs, by which one tells whether a model recalls at all."""
        return self.part_names[0]

    def load(self) -> Splits:
        """Generate the examples, no two of them equal; 34,500 of 64 tokens take a fraction of a second."""
        rng = np.random.default_rng(self.data_seed)
        counts = [_shares(count, len(self.pairs)) for count in (self.training, self.validation, self.test)]
        splits: list[list[Examples]] = [[], [], []]
        for part, pairs in enumerate(self.pairs):
            sizes = [shares[part] for shares in counts]
            inputs = distinct_rows(partial(self._draw, rng, pairs), sum(sizes))
            for split, rows in zip(splits, np.split(inputs, np.cumsum(sizes)[:-1]), strict=True):
                split.append(Examples(rows, _recalled(rows, pairs), np.full(len(rows), part)))
        training, validation, test = (_mixed(rng, split) for split in splits)
        return Splits(self.form, training, validation, test, part_names=self.part_names)

    @property
    def _tokens(self) -> int:
        return 4 * self.pairs[-1] if self.length is None else self.length

    @property
    def _keys(self) -> int:
        return self.vocabulary // 2 - 1

    def _draw(self, rng: np.random.Generator, pairs: int, rows: int) -> NDArray[np.int64]:
        """Random inputs [rows, T] with this many pairs."""
        inputs = np.full((rows, self._tokens), FILLER)
        keys = 1 + distinct_tokens(rng, rows, pairs, self._keys)
        values = self.vocabulary // 2 + distinct_tokens(rng, rows, pairs, self.vocabulary // 2)
        inputs[:, 0 : 2 * pairs : 2] = keys
        inputs[:, 1 : 2 * pairs : 2] = values
        room = self._tokens - 2 * pairs
        if self.questions == "once":
            np.put_along_axis(inputs, 2 * pairs + distinct_tokens(rng, rows, pairs, room), keys, axis=1)
        else:
            rounds = rng.random((rows, -(-room // pairs), pairs)).argsort(-1)
            inputs[:, 2 * pairs :] = np.take_along_axis(keys, rounds.reshape(rows, -1)[:, :room], axis=1)
        return inputs


class InductionTask(TaskSpec):
    """Induction (Olsson et al. 2022, arXiv 2209.11895): a random sequence comes again; what follows the token now?

    Each example repeats its first p tokens, all different, to the end; p is random in length/4 … length/2, so that
    no fixed distance answers. From the first repeated token on, every next token is asked for, and it is the one that
    followed the token's last occurrence.
    """

    head: ClassVar[Head] = Head.NEXT
    reads: ClassVar[Reads] = "tokens"

    task: Literal["induction"] = "induction"
    solved: float | None = Field(0.99, ge=0, le=1)
    length: int = Field(default=64, ge=4)
    vocabulary: int = Field(default=64, ge=2)
    training: int = Field(default=20_000, ge=1)
    validation: int = Field(default=1_000, ge=1)
    test: int = Field(default=2_000, ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.length // 2 > self.vocabulary:
            raise ValueError(
                f"Half of {self.length} tokens must all differ, and the vocabulary has {self.vocabulary}: make it "
                f"{self.length // 2} or more"
            )
        return self

    @property
    def form(self) -> Form:
        """A decoder's, over tokens without a meaning."""
        return Form("tokens", Head.NEXT, classes=self.vocabulary, length=self.length, vocabulary=self.vocabulary)

    def load(self) -> Splits:
        """Generate the examples, no two of them equal; 23,000 of 64 tokens take a fraction of a second."""
        rng = np.random.default_rng(self.data_seed)
        sizes = (self.training, self.validation, self.test)
        # One more token than is read, since the last position has a next token too.
        sequences = distinct_rows(partial(self._draw, rng), sum(sizes))
        first_again = 1 + (sequences[:, 1:] == sequences[:, :1]).argmax(axis=1)
        asked = np.arange(self.length) >= first_again[:, None]
        labels = np.where(asked, sequences[:, 1:], IGNORED)
        ends = np.cumsum(sizes)[:-1]
        halves = zip(np.split(sequences[:, :-1].copy(), ends), np.split(labels, ends), strict=True)
        training, validation, test = (Examples(inputs, answers) for inputs, answers in halves)
        return Splits(self.form, training, validation, test)

    def _draw(self, rng: np.random.Generator, rows: int) -> NDArray[np.int64]:
        """Random sequences [rows, T + 1], each of one period."""
        longest = self.length // 2
        periods = rng.integers(self.length // 4, longest + 1, size=rows)
        tokens = distinct_tokens(rng, rows, longest, self.vocabulary)
        return np.take_along_axis(tokens, np.arange(self.length + 1) % periods[:, None], axis=1)


def _shares(count: int, parts: int) -> list[int]:
    """`count` in as equal shares as can be."""
    return [count // parts + (part < count % parts) for part in range(parts)]


def _recalled(inputs: NDArray[np.int64], pairs: int) -> NDArray[np.int64]:
    """The labels [n, T] of `RecallTask` for inputs [n, T] with this many pairs."""
    labels = np.full_like(inputs, IGNORED)
    later = inputs[:, 2 * pairs :]
    for pair in range(pairs):
        key, value = inputs[:, 2 * pair, None], inputs[:, 2 * pair + 1, None]
        labels[:, 2 * pairs :] = np.where(later == key, value, labels[:, 2 * pairs :])
    return labels


def _mixed(rng: np.random.Generator, by_part: list[Examples]) -> Examples:
    """The examples of all parts in a random order."""
    order = rng.permutation(sum(map(len, by_part)))
    columns = zip(*((part.inputs, part.labels, part.parts) for part in by_part), strict=True)
    return Examples(*(np.concatenate(column)[order] for column in columns))
