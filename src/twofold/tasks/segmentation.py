"""Segmentation: what lies at each patch of a canvas with several images on it."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from twofold.tasks.image_set import LabelledImages
from twofold.tasks.image_task import ImageTaskSpec
from twofold.tasks.task import Examples, Form, Head, Metric, Reads, Splits

BACKGROUND = 0
_ATTEMPTS = 100
"""Times that a canvas is begun anew when the last image found no room. Free places in a tight canvas need several."""


class SegmentationTask(ImageTaskSpec):
    """Images on black canvases, none over another: the class of each patch, row by row, 0 for the background.

    Class k of the source has the label k + 1. A patch has the label of most of its pixels, the lowest of equals.
    Where they are not given, `patch` is half the image's shorter side, and `canvas` (pixels of a square's side) three
    times the longer one, in whole patches. With `aligned`, images lie on the patches' grid, else anywhere. `training`,
    `validation` and `test` count canvases; the images of a split's canvases are its own.
    """

    metric: ClassVar[Metric] = "mean IoU"
    head: ClassVar[Head] = Head.POSITIONS
    reads: ClassVar[Reads] = "images"
    solved_by_default: ClassVar[float | None] = 0.6

    task: Literal["segmentation"] = "segmentation"
    canvas: int | None = Field(default=None, ge=1)
    patch: int | None = Field(default=None, ge=1)
    objects: int = Field(default=3, ge=1)
    aligned: bool = True
    training: int = Field(default=10_000, ge=1)
    validation: int = Field(default=1_000, ge=1)
    test: int = Field(default=1_000, ge=1)

    @property
    def form(self) -> Form:
        """A class for each patch. ValueError where the patches do not fill the canvas, or the images have no room."""
        images = self.image_form
        patch = self.patch or max(1, min(images.height, images.width) // 2)
        side = self.canvas or _up(3 * max(images.height, images.width), patch)
        if side % patch:
            raise ValueError(f"Patches of {patch} pixels do not fill a canvas of {side}: set canvas or patch")
        step = patch if self.aligned else 1
        room = (side // _up(images.height, step)) * (side // _up(images.width, step))
        if room < self.objects:
            raise ValueError(
                f"A canvas of {side} pixels has room for {room} images of {images.height}x{images.width}, and objects "
                f"is {self.objects}: set a larger canvas or fewer objects"
            )
        return Form("images", Head.POSITIONS, images.classes + 1, image=(images.channels, side, side), patch=patch)

    def load(self) -> Splits:
        """Canvases made of each split's images, under `data_seed`."""
        form = self.form
        images = self.image_splits()
        wanted = ((images.training, self.training), (images.validation, self.validation), (images.test, self.test))
        training, validation, test = (
            self._draw(form, split, count, np.random.default_rng((self.data_seed, index)))
            for index, (split, count) in enumerate(wanted)
        )
        return Splits(form, training, validation, test)

    def _draw(self, form: Form, images: LabelledImages, count: int, rng: np.random.Generator) -> Examples:
        assert form.image is not None
        _, side, _ = form.image
        height, width = images.images.shape[2:]
        canvases = np.zeros((count, *form.image), np.uint8)
        labels = np.full((count, side, side), BACKGROUND, np.int16)
        for canvas, label in zip(canvases, labels, strict=True):
            corners = place(side, (height, width), self.objects, form.patch if self.aligned else 1, rng)
            for (top, left), index in zip(corners, rng.integers(len(images), size=self.objects), strict=True):
                rows, columns = slice(top, top + height), slice(left, left + width)
                canvas[:, rows, columns] = images.images[index]
                label[rows, columns] = images.labels[index] + 1
        return Examples(canvases, patch_labels(labels, form.patch, form.classes))


def place(side: int, size: tuple[int, int], count: int, step: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """The corners (row, column) of `count` rectangles of `size` (height, width) on a square, none over another.

    Each is uniform over the multiples of `step` where it has room beside those before it. ValueError where the last
    found no room time and again.
    """
    height, width = size
    for _ in range(_ATTEMPTS):
        free = np.ones((side - height + 1, side - width + 1), bool)
        grid = free[::step, ::step]
        corners: list[tuple[int, int]] = []
        while len(corners) < count and grid.any():
            row, column = (step * index for index in divmod(int(rng.choice(np.flatnonzero(grid))), grid.shape[1]))
            corners.append((row, column))
            free[max(0, row - height + 1) : row + height, max(0, column - width + 1) : column + width] = False
        if len(corners) == count:
            return corners
    raise ValueError(
        f"{count} images of {height}x{width} found no room on a canvas of {side} pixels: set a larger canvas"
    )


def patch_labels(pixels: NDArray[np.int16], patch: int, classes: int) -> NDArray[np.int64]:
    """The label that most pixels of a patch have, the lowest of equals: [N, side, side] to [N, patches], row by row."""
    count, side, _ = pixels.shape
    across = side // patch
    tiles = pixels.reshape(count, across, patch, across, patch).transpose(0, 1, 3, 2, 4)
    tiles_NPp = tiles.reshape(count, across * across, patch * patch)
    most = np.zeros(tiles_NPp.shape[:2], np.int64)
    winners = np.full(most.shape, BACKGROUND, np.int64)
    for label in range(classes):
        pixels_of_it = np.count_nonzero(tiles_NPp == label, axis=2)
        winners[pixels_of_it > most] = label
        np.maximum(most, pixels_of_it, out=most)
    return winners


def _up(length: int, step: int) -> int:
    """The next multiple of `step`."""
    return -(-length // step) * step
