"""Where labelled images come from, by name: digits, IDX files, folders, Hugging Face datasets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from twofold.data.dataset import PREFIX as DATASET_PREFIX
from twofold.tasks.idx_files import idx_shape, read_idx
from twofold.tasks.image_datasets import ImageDataset
from twofold.tasks.image_folders import ImageFolder
from twofold.tasks.image_set import ImageForm, ImageSet, LabelledImages

DIGITS = "digits"
FASHION = "fashion-mnist"
MNIST = "mnist"
IDX_PREFIX, FOLDER_PREFIX = "idx:", "folder:"

_SYSTEM_FOLDER = Path("/usr/share/datasets")
"""Where Debian's `dataset-…` packages put their files."""

_DIGITS_FORM = ImageForm(1, 8, 8, 10)
_MNIST_FORM = ImageForm(1, 28, 28, 10)
_WHERE_FROM = {
    FASHION: "apt-get install dataset-fashion-mnist puts them there",
    MNIST: "put its four files there",
}


@dataclass(frozen=True)
class HubImages:
    """A well-known dataset on the Hugging Face hub."""

    name: str
    image_column: str
    label_column: str
    form: ImageForm


HUB = {
    "cifar10": HubImages("uoft-cs/cifar10", "img", "label", ImageForm(3, 32, 32, 10)),
    "cifar100": HubImages("uoft-cs/cifar100", "img", "fine_label", ImageForm(3, 32, 32, 100)),
    "tiny-imagenet": HubImages("zh-plus/tiny-imagenet", "image", "label", ImageForm(3, 64, 64, 200)),
}


class Source(Protocol):
    """Where images are read from."""

    @property
    def form(self) -> ImageForm:
        """The shape of its images and the number of its classes."""

    def read(self) -> ImageSet:
        """All its images."""


@dataclass(frozen=True)
class ImageOptions:
    """What only folders and datasets need: `size` of a square to resize to, `channels` (1 grey, 3 colours), columns."""

    size: int | None = None
    channels: int | None = None
    image_column: str | None = None
    label_column: str | None = None

    @property
    def given(self) -> list[str]:
        """The names of those that are set."""
        return [name for name, value in vars(self).items() if value is not None]


def image_source(name: str, options: ImageOptions) -> Source:
    """The source of that name. Nothing is read before `form` or `read`, and `form` of a well-known one reads nothing.

    `digits`; `fashion-mnist` and `mnist`, whose folder of IDX files may follow (`mnist:FOLDER`); `idx:FOLDER`;
    `folder:PATH`; `cifar10`, `cifar100`, `tiny-imagenet`; `dataset:NAME`, a hub's name or a folder. ValueError for any
    other, and for options that the source does not have.
    """
    kind, _, rest = name.partition(":")
    path = Path(rest).expanduser()
    if rest and name.startswith(FOLDER_PREFIX):
        _only(name, options, ("size", "channels"))
        return ImageFolder(path, options.size, options.channels)
    if rest and name.startswith(DATASET_PREFIX):
        return ImageDataset(rest, options.image_column, options.label_column, options.size, options.channels)
    _only(name, options, ())
    if rest and name.startswith(IDX_PREFIX):
        return IdxImages(path)
    if kind in _WHERE_FROM:
        return IdxImages(path if rest else _SYSTEM_FOLDER / kind, known=kind)
    if name == DIGITS:
        return Digits()
    if name in HUB:
        return WellKnown(HUB[name])
    raise ValueError(
        f"There are no images called {name!r}: write {DIGITS}, {FASHION}, {MNIST}, {', '.join(HUB)}, "
        f"{IDX_PREFIX}FOLDER, {FOLDER_PREFIX}PATH or {DATASET_PREFIX}NAME"
    )


def _only(name: str, options: ImageOptions, possible: tuple[str, ...]) -> None:
    if unused := [option for option in options.given if option not in possible]:
        raise ValueError(f"{', '.join(unused)} cannot be set for the images {name!r}: leave it out")


@dataclass(frozen=True)
class Digits:
    """Scikit-learn's 1,797 handwritten digits of 8x8 pixels, whose values 0 to 16 become 0 to 255."""

    form: ImageForm = _DIGITS_FORM

    def read(self) -> ImageSet:
        """All of them as training images: there are no others. ValueError where scikit-learn is not installed."""
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise ValueError("The digits come with scikit-learn: pip install 'twofold[vision]'") from error
        images, labels = load_digits(return_X_y=True)
        scaled = np.rint(images * (255 / 16)).astype(np.uint8).reshape(-1, *self.form.shape)
        return ImageSet(self.form, LabelledImages(scaled, labels.astype(np.int64)))


@dataclass(frozen=True)
class WellKnown:
    """A dataset on the hub, of which the columns and the form are known."""

    images: HubImages

    @property
    def form(self) -> ImageForm:
        """As published: nothing is fetched for it."""
        return self.images.form

    def read(self) -> ImageSet:
        """All splits. ValueError where the hub cannot be reached, or has something else by now."""
        known = self.images
        read = ImageDataset(known.name, known.image_column, known.label_column, channels=known.form.channels).read()
        if read.form != known.form:
            raise ValueError(f"dataset:{known.name} should have images like {known.form} and has {read.form}")
        return read


@dataclass(frozen=True)
class IdxImages:
    """A folder with the four files of MNIST's form, each plain or gzipped; the two of `t10k` may be absent."""

    folder: Path
    known: str | None = None

    @property
    def form(self) -> ImageForm:
        """From the header of the images and the largest label, and of well-known ones without a look."""
        if self.known:
            return _MNIST_FORM
        _, height, width = idx_shape(self._file("train", "images", 3), 3)
        labels = read_idx(self._file("train", "labels", 1), 1)
        return ImageForm(1, height, width, int(labels.max(initial=0)) + 1)

    def read(self) -> ImageSet:
        """Training images, and test images where there are any. ValueError where files are missing or do not agree."""
        form = self.form
        has_test = any(self._path("t10k", what, dimensions) for what, dimensions in (("images", 3), ("labels", 1)))
        return ImageSet(form, self._split("train", form), test=self._split("t10k", form) if has_test else None)

    def _split(self, name: str, form: ImageForm) -> LabelledImages:
        images, labels = read_idx(self._file(name, "images", 3), 3), read_idx(self._file(name, "labels", 1), 1)
        if len(images) != len(labels):
            raise ValueError(
                f"{self.folder} has {len(images)} {name} images and {len(labels)} labels: fetch both again"
            )
        if images.shape[1:] != form.shape[1:]:
            raise ValueError(f"The {name} images in {self.folder} are {images.shape[1:]} and not {form.shape[1:]}")
        if labels.max(initial=0) >= form.classes:
            raise ValueError(f"{self.folder} has the {name} label {labels.max()}, and classes 0 to {form.classes - 1}")
        return LabelledImages(images[:, None], labels.astype(np.int64))

    def _file(self, split: str, what: str, dimensions: int) -> Path:
        path = self._path(split, what, dimensions)
        if path is None:
            advice = _WHERE_FROM.get(self.known or "")
            also = f"; {advice}, or name their folder with {self.known}:FOLDER" if advice else ""
            raise ValueError(f"There is no {_name(split, what, dimensions)} in {self.folder}, plain or .gz{also}")
        return path

    def _path(self, split: str, what: str, dimensions: int) -> Path | None:
        name = _name(split, what, dimensions)
        return next((path for end in ("", ".gz") if (path := self.folder / f"{name}{end}").is_file()), None)


def _name(split: str, what: str, dimensions: int) -> str:
    return f"{split}-{what}-idx{dimensions}-ubyte"
