"""Images of a Hugging Face dataset: on the hub, saved in a folder, or files that the library `datasets` reads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twofold.data.dataset import SAVED_FILES, DatasetSource, one_line, require_library
from twofold.tasks.image_pixels import Pixels, require_pillow
from twofold.tasks.image_set import ImageForm, ImageSet, LabelledImages

if TYPE_CHECKING:
    from datasets import Dataset

_TRAINING, _VALIDATION, _TEST = ("train",), ("validation", "valid", "val"), ("test",)
_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class ImageDataset:
    """A dataset with a column of images and one of classes; which ones must be named only where it has several.

    `name` as in `twofold.data.dataset.DatasetSource`, `size` and `channels` as in `Pixels.of`.
    """

    name: str
    image_column: str | None = None
    label_column: str | None = None
    size: int | None = None
    channels: int | None = None

    @property
    def form(self) -> ImageForm:
        """From the dataset's columns and its first image; one on the hub is fetched for that."""
        return self._form(self._training(self._open()))

    def read(self) -> ImageSet:
        """All splits that it has. ValueError where a row has no image or class, or an image is unlike the first."""
        splits = self._open()
        training = self._training(splits)
        form = self._form(training)
        others = (_first(splits, names) for names in (_VALIDATION, _TEST))
        validation, test = (self._read(rows, form) if rows and self._labelled(rows) else None for rows in others)
        return ImageSet(form, self._read(training, form), validation, test)

    def _labelled(self, rows: Dataset) -> bool:
        """Whether a split tells its classes: those of hidden test splits are all -1."""
        return any(label not in (-1, None) for label in rows[self._columns(rows)[1]])

    def _open(self) -> dict[str, Dataset]:
        require_library()
        require_pillow()
        import datasets

        path = Path(os.path.expanduser(self.name))  # noqa: PTH111 – unlike Path's, it leaves an unknown ~ as it is
        with one_line(self._source):
            if any((path / name).is_file() for name in SAVED_FILES):
                saved = datasets.load_from_disk(str(path))
                return dict(saved) if isinstance(saved, datasets.DatasetDict) else {_TRAINING[0]: saved}
            if not path.exists() and self.name.startswith(("/", ".", "~")):
                raise ValueError(f"there is no folder {path.absolute()}")
            builder = datasets.load_dataset_builder(str(path) if path.exists() else self.name)
            builder.download_and_prepare()
            return dict(builder.as_dataset())

    @property
    def _source(self) -> DatasetSource:
        return DatasetSource(self.name)

    def _training(self, splits: dict[str, Dataset]) -> Dataset:
        rows = _first(splits, _TRAINING)
        if rows is None or not len(rows):
            raise ValueError(f"dataset:{self.name} has no rows in a split 'train', only in {', '.join(splits)}")
        return rows

    def _columns(self, rows: Dataset) -> tuple[str, str]:
        from datasets import ClassLabel, Image

        image = self._column(rows, Image, self.image_column, "image_column")
        return image, self._column(rows, ClassLabel, self.label_column, "label_column")

    def _column(self, rows: Dataset, kind: type, named: str | None, option: str) -> str:
        found = [name for name, feature in rows.features.items() if isinstance(feature, kind)]
        if named is not None and named not in found:
            raise ValueError(f"dataset:{self.name} has no {kind.__name__} column {named!r}, only {found}: see {option}")
        if named is None and len(found) != 1:
            raise ValueError(
                f"dataset:{self.name} has {len(found)} {kind.__name__} columns, {found}, among {rows.column_names}: "
                f"it needs one, or {option} to say which"
            )
        return named or found[0]

    def _form(self, training: Dataset) -> ImageForm:
        image_column, label_column = self._columns(training)
        with one_line(self._source):
            first = training[0][image_column]
        if first is None:
            raise ValueError(f"Row 0 of dataset:{self.name} has no image")
        pixels = Pixels.of(first, self.size, self.channels)
        return ImageForm(pixels.channels, pixels.height, pixels.width, training.features[label_column].num_classes)

    def _read(self, rows: Dataset, form: ImageForm) -> LabelledImages:
        image_column, label_column = self._columns(rows)
        pixels = Pixels(*form.shape, resize=self.size is not None)
        images = np.empty((len(rows), *form.shape), np.uint8)
        labels = np.empty(len(rows), np.int64)
        index = 0
        with one_line(self._source):
            for batch in rows.select_columns([image_column, label_column]).iter(batch_size=_ROWS_AT_ONCE):
                for image, label in zip(batch[image_column], batch[label_column], strict=True):
                    where = f"row {index}"
                    labels[index] = _class(label, where, form.classes)
                    if image is None:
                        raise ValueError(f"{where} has no image")
                    images[index] = pixels.array(image, where, may_lose_colour=self.channels == 1)
                    index += 1
        return LabelledImages(images, labels)


def _class(label: Any, where: str, classes: int) -> int:
    if label is None or not 0 <= label < classes:
        raise ValueError(f"{where} has the class {label}, and there are classes 0 to {classes - 1}")
    return int(label)


def _first(splits: dict[str, Dataset], names: tuple[str, ...]) -> Dataset | None:
    return next((splits[name] for name in names if name in splits), None)
