"""Texts to be told apart by their folder: one sub-folder per class, with a .txt file for each example."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from twofold.data.byte_tokens import END, VOCABULARY, encode
from twofold.tasks.task import Examples, Form, Head, Reads, Splits, TaskSpec


@dataclass(frozen=True)
class _Text:
    """What a model reads of a file, and its class. `place` orders the texts by chance, the same way everywhere."""

    path: Path
    content: bytes
    label: int
    for_test: bool
    place: bytes


class LabelledFilesTask(TaskSpec):
    """One class for each text file of `folder`: the name of the folder in which it lies.

    A text is the bytes of its UTF-8, one token each, cut to `length` and padded with END. In the order of hashes of
    content and `data_seed`, the shares `validation` and `test` of each class come first, then what is trained on. With
    sub-folders `train` and `test`, as in aclImdb (Maas et al. 2011), the latter is the test, whatever the share. Texts
    that are equal up to `length` count once, as test where one of them lies there. `classes` names the sub-folders
    that count, by default all.
    """

    head: ClassVar[Head] = Head.WHOLE
    reads: ClassVar[Reads] = "tokens"

    task: Literal["files"] = "files"
    folder: str = Field(min_length=1)
    classes: tuple[str, ...] = ()
    length: int = Field(default=512, ge=1)
    validation: float = Field(default=0.1, gt=0, lt=1)
    test: float = Field(default=0.1, gt=0, lt=1)

    @model_validator(mode="after")
    def _leaves_something(self) -> Self:
        if self.validation + self.test >= 1:
            raise ValueError(
                f"validation {self.validation} and test {self.test} leave nothing to train on: make them smaller"
            )
        return self

    @property
    def form(self) -> Form:
        """Bytes in, a class out. ValueError where the folder is not there or has too few classes."""
        return Form(
            "tokens",
            Head.WHOLE,
            classes=len(self.class_names),
            length=self.length,
            vocabulary=VOCABULARY,
            padding=END,
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The class of label 0, 1 and so on, in alphabetical order where `classes` does not say otherwise."""
        names = [self._names(folder) for folder in self._folders]
        if names[0] != names[-1]:
            raise ValueError(
                f"{str(self._root)!r} has other classes in train ({', '.join(names[0])}) than in test "
                f"({', '.join(names[-1])}): name those that count with classes"
            )
        return names[0]

    def load(self) -> Splits:
        """Read all files. ValueError for one that is empty or not UTF-8, for two equal texts of different classes, and
        where a class has too few texts.
        """
        form = self.form
        texts = _once(self._texts())
        training: list[_Text] = []
        validation: list[_Text] = []
        test = [text for text in texts if text.for_test]
        shares = (self.validation, 0.0 if test else self.test)
        for label, name in enumerate(self.class_names):
            rest = sorted((t for t in texts if t.label == label and not t.for_test), key=lambda text: text.place)
            end, test_end = np.cumsum([ceil(share * len(rest)) for share in shares])
            if test_end >= len(rest):
                raise ValueError(
                    f"The class {name!r} of {str(self._root)!r} has {len(rest)} different text(s), too few to train on "
                    f"once {test_end} are held out: give it more files, or make length larger"
                )
            validation += rest[:end]
            test += rest[end:test_end]
            training += rest[test_end:]
        return Splits(form, self._examples(training), self._examples(validation), self._examples(test))

    @property
    def _root(self) -> Path:
        return Path(os.path.expanduser(self.folder))  # noqa: PTH111 – unlike Path's, it leaves an unknown ~ as it is

    @property
    def _folders(self) -> tuple[Path, ...]:
        """The folder that is split, or those of training and test."""
        if not self._root.is_dir():
            raise ValueError(f"There is no folder {str(self._root.absolute())!r}: give one with a sub-folder per class")
        apart = (self._root / "train", self._root / "test")
        return apart if all(folder.is_dir() for folder in apart) else (self._root,)

    def _names(self, folder: Path) -> tuple[str, ...]:
        there = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        names = self.classes or tuple(there)
        if missing := [name for name in names if name not in there]:
            raise ValueError(f"{str(folder)!r} has no sub-folder {missing[0]!r}, only {', '.join(there) or 'none'}")
        if len(set(names)) < max(2, len(names)):
            raise ValueError(
                f"Classes are sub-folders of {str(folder)!r}, two or more and each once, and there are "
                f"{len(names)}: {', '.join(names) or 'none'}"
            )
        return names

    def _texts(self) -> list[_Text]:
        """The texts of all classes, those of a test folder first."""
        texts = []
        for folder in reversed(self._folders):
            for label, name in enumerate(self._names(folder)):
                paths = sorted((folder / name).glob("*.txt"))
                if not paths:
                    raise ValueError(f"{str(folder / name)!r} has no .txt file: put an example of its class in each")
                texts += [self._text(path, label, for_test=folder != self._folders[0]) for path in paths]
        return texts

    def _text(self, path: Path, label: int, *, for_test: bool) -> _Text:
        content = path.read_bytes()
        try:
            content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{str(path)!r} is not UTF-8 (byte {error.start}): convert it or take it away") from error
        if not content:
            raise ValueError(f"{str(path)!r} is empty: take it away")
        content = content[: self.length]
        return _Text(path, content, label, for_test, sha256(b"%d " % self.data_seed + content).digest())

    def _examples(self, texts: list[_Text]) -> Examples:
        """The texts as tokens [n, T], the classes mixed."""
        texts = sorted(texts, key=lambda text: text.place)
        inputs = np.full((len(texts), self.length), END, dtype=np.int64)
        for row, text in zip(inputs, texts, strict=True):
            row[: len(text.content)] = encode(text.content)
        return Examples(inputs, np.array([text.label for text in texts], dtype=np.int64))


def _once(texts: list[_Text]) -> list[_Text]:
    """The first of all equal texts. ValueError where they have different classes."""
    firsts: dict[bytes, _Text] = {}
    for text in texts:
        first = firsts.setdefault(text.content, text)
        if first.label != text.label:
            raise ValueError(
                f"{str(first.path)!r} and {str(text.path)!r} begin with the same {len(text.content)} bytes and have "
                "different classes: take one away, or make length larger"
            )
    return list(firsts.values())
