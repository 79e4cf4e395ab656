"""What the tasks on images share: the source, and its images in three splits."""

from __future__ import annotations

from abc import ABC
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from twofold.tasks.image_set import ImageForm
from twofold.tasks.image_sources import DIGITS, ImageOptions, Source, image_source
from twofold.tasks.image_splits import ImageSplits, split_images
from twofold.tasks.task import TaskSpec


class ImageTaskSpec(TaskSpec, ABC):
    """A task on a source of labelled images, named as `image_sources.image_source` says.

    Where the source has no images to test or validate on, `test_share` and `validation_share` of its training images
    do. `size` (pixels of a square's side) and `channels` are for folders and datasets, the columns for datasets with
    several.
    """

    solved_by_source: ClassVar[dict[str, float]] = {}
    """The default of `solved` on well-known sources."""
    solved_by_default: ClassVar[float | None] = None
    """The default of `solved` on any other."""

    source: str = DIGITS
    validation_share: float = Field(default=0.1, gt=0, lt=1)
    test_share: float = Field(default=0.2, gt=0, lt=1)
    size: int | None = Field(default=None, ge=1)
    channels: Literal[1, 3] | None = None
    image_column: str | None = None
    label_column: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _solved_by_source(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "solved" in given:
            return given
        name = str(given.get("source", DIGITS)).partition(":")[0]
        return {**given, "solved": cls.solved_by_source.get(name, cls.solved_by_default)}

    @model_validator(mode="after")
    def _known_source(self) -> Self:
        self._images()
        return self

    @property
    def image_form(self) -> ImageForm:
        """The shape of the source's images and the number of their classes."""
        return self._images().form

    def image_splits(self, training: int | None = None) -> ImageSplits:
        """The images in three splits, by `data_seed`, of which `training` train (None: all that there are)."""
        return split_images(self._images().read(), self.validation_share, self.test_share, self.data_seed, training)

    def _images(self) -> Source:
        return image_source(self.source, ImageOptions(self.size, self.channels, self.image_column, self.label_column))
