"""Who does what to whom: sentences whose words do not answer, only their order does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from twofold.tasks.distinct import distinct_rows, distinct_tokens
from twofold.tasks.task import Examples, Form, Head, Reads, Splits, TaskSpec

NOUNS = ("dog", "man", "cat", "woman", "horse", "child", "wolf", "farmer", "bear", "doctor", "fox", "king")
VERBS = {
    "bites": "bitten",
    "sees": "seen",
    "chases": "chased",
    "follows": "followed",
    "fears": "feared",
    "hears": "heard",
    "helps": "helped",
    "pushes": "pushed",
    "calls": "called",
    "finds": "found",
    "likes": "liked",
    "knows": "known",
}
"""Each with its participle."""

ADJECTIVES = ("old", "young", "big", "small", "tired", "happy", "quiet", "brave")
ADVERBS = ("often", "quickly", "always", "suddenly")
"""None of them denies what the verb says."""

CONSTRUCTIONS = {
    "active": ("the dog bites the man",),
    "passive": ("the man is bitten by the dog",),
    "cleft": ("it is the dog that bites the man", "it is the man that the dog bites"),
    "relative clause": (
        "the dog that sees the cat bites the man",
        "the man that sees the cat is bitten by the dog",
        "the dog that the cat sees bites the man",
        "the man that the cat sees is bitten by the dog",
        "the dog that bites the man sees the cat",
        "the man that the dog bites sees the cat",
        "the cat sees the dog that bites the man",
        "the cat sees the man that the dog bites",
        "the cat is seen by the dog that bites the man",
        "the cat is seen by the man that the dog bites",
        "the dog that bites the man is seen by the cat",
        "the man that is bitten by the dog is seen by the cat",
    ),
}
"""The sentences. The dog acts on the man; any nouns stand for these and the cat, any verbs for bites and sees.

In half of the sentences of a construction, or of active and passive together, the dog is named before the man.
"""

WORDS = ("", "the", "is", "by", "it", "that", "?", *NOUNS, *VERBS, *VERBS.values(), *ADJECTIVES, *ADVERBS)
"""What each token stands for; token 0 is padding."""

# What is chosen for a sentence, a column each: the sentence as above, whom the question names (0 is the dog), nouns and
# verbs, then for each of these an adjective or adverb (0 is none).
_FRAME, _ASKED, _DOG, _MAN, _CAT, _BITES, _SEES = range(7)
_DESCRIBES = 5
_COLUMNS = _SEES + 1 + _DESCRIBES
_SLOTS = {"dog": _DOG, "man": _MAN, "cat": _CAT, "bites": _BITES, "bitten": _BITES, "sees": _SEES, "seen": _SEES}
_FIRST_OF_KIND = {
    **dict.fromkeys(NOUNS, "dog"),
    **dict.fromkeys(VERBS, "bites"),
    **dict.fromkeys(VERBS.values(), "bitten"),
}

_FRAMES = tuple(text.split() for texts in CONSTRUCTIONS.values() for text in texts)
_PARTS = np.repeat(np.arange(len(CONSTRUCTIONS)), [len(texts) for texts in CONSTRUCTIONS.values()])
_SHARES = 1 / (len(CONSTRUCTIONS) * np.bincount(_PARTS)[_PARTS])
_USED = np.zeros((len(_FRAMES), _COLUMNS), dtype=np.int64)
for _frame, _text in enumerate(_FRAMES):
    _slots = sorted({_SLOTS[word] for word in _text if word in _SLOTS})
    _USED[_frame, [_FRAME, _ASKED, *_slots, *(slot + _DESCRIBES for slot in _slots)]] = 1
_QUESTION_WORDS = 3
_LONGEST = max(len(text) + sum(word in _SLOTS for word in text) for text in _FRAMES) + _QUESTION_WORDS


class RolesTask(TaskSpec):
    """Does a noun do what a verb says? "the man is bitten by the dog ? dog bites" is 1, "… ? man bites" is 0.

    Sentences are active, passive, cleft or have a relative clause, which are the parts of the results, and may have
    adjectives and adverbs. Examples 2i and 2i + 1 of a split are twins: in the second the two nouns have changed places
    before the question mark, so that the same words have the other answer, and whoever ignores their order is right
    in exactly half. The first two test examples ask whether the dog bites in "the dog bites the man" and in "the man
    bites the dog".
    """

    words: ClassVar[tuple[str, ...]] = WORDS

    head: ClassVar[Head] = Head.WHOLE
    reads: ClassVar[Reads] = "tokens"

    task: Literal["roles"] = "roles"
    solved: float | None = Field(0.95, ge=0, le=1)
    training: int = Field(default=20_000, ge=2, multiple_of=2)
    validation: int = Field(default=2_000, ge=2, multiple_of=2)
    test: int = Field(default=2_000, ge=2, multiple_of=2)

    @property
    def form(self) -> Form:
        """Words in, yes or no out."""
        return Form("tokens", Head.WHOLE, classes=2, length=_LONGEST, vocabulary=len(self.words), padding=0)

    def load(self) -> Splits:
        """Generate the sentences, no two of them equal; 24,000 take a fraction of a second."""
        rng = np.random.default_rng(self.data_seed)
        sizes = np.array([self.test, self.validation, self.training]) // 2
        choices = distinct_rows(lambda rows: np.concatenate([_well_known(), _choose(rng, rows)]), int(sizes.sum()))
        test, validation, training = (_examples(rows) for rows in np.split(choices, np.cumsum(sizes)[:-1]))
        return Splits(self.form, training, validation, test, part_names=tuple(CONSTRUCTIONS))

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of token ids, without padding."""
        return " ".join(self.words[token] for token in tokens if token)


def _well_known() -> NDArray[np.int64]:
    """The choices [1, columns] of "the dog bites the man ? dog bites"."""
    choices = np.zeros((1, _COLUMNS), dtype=np.int64)
    choices[:, _MAN] = NOUNS.index("man")
    return choices


def _choose(rng: np.random.Generator, rows: int) -> NDArray[np.int64]:
    """Random choices [rows, columns], 0 where a sentence does not use one, so that no two give the same text."""
    choices = np.empty((rows, _COLUMNS), dtype=np.int64)
    choices[:, _FRAME] = rng.choice(len(_FRAMES), size=rows, p=_SHARES)
    choices[:, _ASKED] = rng.integers(0, 2, size=rows)
    choices[:, _DOG : _CAT + 1] = distinct_tokens(rng, rows, 3, len(NOUNS))
    # The other order is the twin's.
    choices[:, _DOG : _MAN + 1].sort(axis=1)
    choices[:, _BITES : _SEES + 1] = distinct_tokens(rng, rows, 2, len(VERBS))
    for slot in range(_DOG, _SEES + 1):
        most = len(ADJECTIVES if slot <= _CAT else ADVERBS)
        choices[:, slot + _DESCRIBES] = rng.integers(-most, most + 1, size=rows).clip(min=0)
    return choices * _USED[choices[:, _FRAME]]


def _examples(choices: NDArray[np.int64]) -> Examples:
    """Each choice [n, columns] as a sentence and its twin."""
    twice = np.repeat(choices, 2, axis=0)
    named = np.where(twice[:, _ASKED] == 0, twice[:, _DOG], twice[:, _MAN])
    twice[1::2, [_DOG, _MAN]] = twice[1::2, [_MAN, _DOG]]
    inputs = np.zeros((len(twice), _LONGEST), dtype=np.int64)
    for frame, text in enumerate(_FRAMES):
        rows = np.flatnonzero(twice[:, _FRAME] == frame)
        written = _write(text, twice[rows], named[rows])
        inputs[rows, : written.shape[1]] = written
    labels = (named == twice[:, _DOG]).astype(np.int64)
    return Examples(inputs, labels, _PARTS[twice[:, _FRAME]])


def _write(text: list[str], choices: NDArray[np.int64], named: NDArray[np.int64]) -> NDArray[np.int64]:
    """Tokens [n, words] of sentences of one construction with their questions, padded where words are left out."""
    columns = []
    for word in text:
        if word not in _SLOTS:
            columns.append(np.full(len(choices), WORDS.index(word)))
            continue
        slot = _SLOTS[word]
        extra = choices[:, slot + _DESCRIBES]
        extras = ADJECTIVES if word in NOUNS else ADVERBS
        columns.append(np.where(extra > 0, WORDS.index(extras[0]) - 1 + extra, 0))
        columns.append(WORDS.index(_FIRST_OF_KIND[word]) + choices[:, slot])
    question = (
        np.full(len(choices), WORDS.index("?")),
        WORDS.index("dog") + named,
        WORDS.index("bites") + choices[:, _BITES],
    )
    columns += question
    tokens = np.stack(columns, axis=1)
    return np.take_along_axis(tokens, (tokens == 0).argsort(axis=1, kind="stable"), axis=1)
