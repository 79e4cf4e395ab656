"""Set anomaly: which of ten images is of another class than the nine others."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from twofold.tasks.image_set import LabelledImages
from twofold.tasks.image_task import ImageTaskSpec
from twofold.tasks.task import Examples, Form, Head, Reads, Splits

MEMBERS = 10
_ALIKE = MEMBERS - 1

_LARGEST = 8 << 30
"""Bytes of features in all splits: more is a mistake, or needs smaller images."""


class AnomalyTask(ImageTaskSpec):
    """Sets of ten images, nine of one class and one of another: the answer is the odd one's position.

    The task is the paper's (arXiv 2606.04032). An image is its pixels in 0 to 1, in one row. The sets of a split are
    drawn from its own images. `training`, `validation` and `test` count sets.
    """

    head: ClassVar[Head] = Head.MEMBER
    reads: ClassVar[Reads] = "features"
    solved_by_default: ClassVar[float | None] = 0.9

    task: Literal["anomaly"] = "anomaly"
    training: int = Field(default=10_000, ge=1)
    validation: int = Field(default=1_000, ge=1)
    test: int = Field(default=1_000, ge=1)

    @property
    def form(self) -> Form:
        """One of ten members, each of as many features as an image has values."""
        channels, height, width = self.image_form.shape
        return Form("features", Head.MEMBER, MEMBERS, length=MEMBERS, features=channels * height * width)

    def load(self) -> Splits:
        """Sets of each split's images. ValueError where they are too many for memory, or a class has too few images."""
        form = self.form
        sets = self.training + self.validation + self.test
        if (size := sets * MEMBERS * form.features * 4) > _LARGEST:
            raise ValueError(
                f"{sets} sets of {MEMBERS} images of {form.features} values take {size / 2**30:.1f} GiB, and "
                f"{_LARGEST >> 30} GiB are the limit: ask for fewer sets or smaller images"
            )
        images = self.image_splits()
        wanted = ((images.training, self.training), (images.validation, self.validation), (images.test, self.test))
        training, validation, test = (
            _examples(split, draw_sets(split.labels, count, np.random.default_rng((self.data_seed, index))))
            for index, (split, count) in enumerate(wanted)
        )
        return Splits(form, training, validation, test)


def draw_sets(
    labels: NDArray[np.int64], count: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`count` sets as indices into `labels` [count, 10], and the positions of the odd ones [count].

    The two classes of a set and the position are uniform, and no image is twice in a set. ValueError where there are
    fewer than two classes, or fewer than nine images of one.
    """
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    fewest = min(map(len, members), default=0)
    if len(members) < 2 or fewest < _ALIKE:
        raise ValueError(
            f"A set needs {_ALIKE} images of one class and one of another: a split has {len(members)} class(es), and "
            f"{fewest} images of one; ask for larger shares"
        )
    alike = rng.integers(len(members), size=count)
    odd = (alike + rng.integers(1, len(members), size=count)) % len(members)
    positions = rng.integers(MEMBERS, size=count)
    sets = np.empty((count, MEMBERS), np.int64)
    for index, position in enumerate(positions):
        sets[index, np.arange(MEMBERS) != position] = rng.choice(members[alike[index]], _ALIKE, replace=False)
        sets[index, position] = rng.choice(members[odd[index]])
    return sets, positions


def _examples(images: LabelledImages, sets: tuple[NDArray[np.int64], NDArray[np.int64]]) -> Examples:
    indices, positions = sets
    pixels = images.images.reshape(len(images), -1)
    # Scaled after they are gathered and in place, so that the features are in memory once.
    features = pixels[indices].astype(np.float32)
    features /= 255
    return Examples(features, positions)
