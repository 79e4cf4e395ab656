"""Labelled images as arrays, whatever they were read from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ImageForm:
    """The shape that all images of a source have, and the number of its classes."""

    channels: int
    height: int
    width: int
    classes: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        return self.channels, self.height, self.width


@dataclass(frozen=True)
class LabelledImages:
    """`images` uint8 [N, channels, height, width] and `labels` int64 [N], from 0."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.images)

    def at(self, indices: NDArray[np.int64]) -> LabelledImages:
        """Those at `indices` [K], in that order."""
        return LabelledImages(self.images[indices], self.labels[indices])


@dataclass(frozen=True)
class ImageSet:
    """What a source gives: training images, and validation and test images where it has them."""

    form: ImageForm
    training: LabelledImages
    validation: LabelledImages | None = None
    test: LabelledImages | None = None
