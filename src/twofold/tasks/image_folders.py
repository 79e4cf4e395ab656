"""Images in folders: one sub-folder per class, and `train`, `val` and `test` above them where they are split."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from twofold.tasks.image_pixels import Pixels, readable, require_pillow
from twofold.tasks.image_set import ImageForm, ImageSet, LabelledImages

_TRAINING, _VALIDATION, _TEST = ("train", "training"), ("val", "valid", "validation"), ("test",)


@dataclass(frozen=True)
class ImageFolder:
    """A folder of images by class. `size` and `channels` as in `Pixels.of`."""

    path: Path
    size: int | None = None
    channels: int | None = None

    @property
    def form(self) -> ImageForm:
        """From the names of the sub-folders and the first image."""
        classes = self._classes()
        pixels = self._pixels(classes)
        return ImageForm(pixels.channels, pixels.height, pixels.width, len(classes))

    def read(self) -> ImageSet:
        """All images, class by class and by name. ValueError where one cannot be read or is unlike the first."""
        classes = self._classes()
        training = self._read(self._training_folder, classes)
        validation, test = (self._read_split(names, classes) for names in (_VALIDATION, _TEST))
        return ImageSet(self.form, training, validation, test)

    @property
    def _training_folder(self) -> Path:
        return self._split_folder(_TRAINING) or self.path

    def _split_folder(self, names: tuple[str, ...]) -> Path | None:
        return next((self.path / name for name in names if (self.path / name).is_dir()), None)

    def _read_split(self, names: tuple[str, ...], classes: list[str]) -> LabelledImages | None:
        folder = self._split_folder(names)
        # Without a training folder, a folder of this name is a class.
        return self._read(folder, classes) if folder and self._training_folder != self.path else None

    def _classes(self) -> list[str]:
        require_pillow()
        if not self.path.is_dir():
            raise ValueError(f"There is no folder {self.path.absolute()}")
        names = _sub_folders(self._training_folder)
        if len(names) < 2:
            raise ValueError(f"{self._training_folder} needs a sub-folder for each class, and has {len(names)}")
        return names

    def _pixels(self, classes: list[str]) -> Pixels:
        from PIL import Image

        first = _files(self._training_folder / classes[0])[0]
        with readable(str(first)), Image.open(first) as picture:
            return Pixels.of(picture, self.size, self.channels)

    def _read(self, folder: Path, classes: list[str]) -> LabelledImages:
        from PIL import Image

        if unknown := sorted(set(_sub_folders(folder)) - set(classes)):
            raise ValueError(f"{folder} has classes that are not in {self._training_folder}: {', '.join(unknown)}")
        found = [(file, classes.index(name)) for name in _sub_folders(folder) for file in _files(folder / name)]
        if not found:
            raise ValueError(f"{folder} has no sub-folder with images")
        pixels = self._pixels(classes)
        images = np.empty((len(found), pixels.channels, pixels.height, pixels.width), np.uint8)
        for index, (file, _) in enumerate(found):
            with readable(str(file)), Image.open(file) as picture:
                images[index] = pixels.array(picture, str(file), may_lose_colour=self.channels == 1)
        return LabelledImages(images, np.array([label for _, label in found], np.int64))


def _sub_folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _files(folder: Path) -> list[Path]:
    """The images of a class, by name, in folders within it also: Tiny-ImageNet has them in `images`."""
    from PIL import Image

    suffixes = Image.registered_extensions()
    files = [file for file in folder.rglob("*") if file.suffix.lower() in suffixes and not file.name.startswith(".")]
    if not files:
        raise ValueError(f"{folder} has no image: a class needs one, so remove the folder or fill it")
    return sorted(files)
