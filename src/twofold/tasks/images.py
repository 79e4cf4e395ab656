"""Classification of images."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from twofold.tasks.image_set import LabelledImages
from twofold.tasks.image_sources import DIGITS, FASHION, MNIST
from twofold.tasks.image_task import ImageTaskSpec
from twofold.tasks.task import Augmentation, Examples, Form, Head, Reads, Splits


class ImagesTask(ImageTaskSpec):
    """The class of an image, of uint8 [channels, height, width]. `training` limits the training images.

    `augment` names what training images undergo, anew each time they are seen.
    """

    head: ClassVar[Head] = Head.WHOLE
    reads: ClassVar[Reads] = "images"
    solved_by_source: ClassVar[dict[str, float]] = {DIGITS: 0.95, FASHION: 0.85, MNIST: 0.95}

    task: Literal["images"] = "images"
    training: int | None = Field(default=None, ge=1)
    augment: tuple[Augmentation, ...] = ()

    @property
    def form(self) -> Form:
        """One class for the whole image."""
        images = self.image_form
        return Form("images", Head.WHOLE, images.classes, image=images.shape)

    def load(self) -> Splits:
        """The source's images in three splits."""
        images = self.image_splits(self.training)
        training, validation, test = map(_examples, (images.training, images.validation, images.test))
        return Splits(self.form, training, validation, test, augmentation=self.augment)


def _examples(split: LabelledImages) -> Examples:
    return Examples(split.images, split.labels)
