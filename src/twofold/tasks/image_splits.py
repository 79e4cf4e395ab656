"""The images of a source in three splits, with the share of each class kept."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from twofold.tasks.image_set import ImageForm, ImageSet, LabelledImages


@dataclass(frozen=True)
class ImageSplits:
    """Three splits of a source, none of whose images is in two of them."""

    form: ImageForm
    training: LabelledImages
    validation: LabelledImages
    test: LabelledImages


def split_images(
    source: ImageSet, validation_share: float, test_share: float, seed: int, training: int | None = None
) -> ImageSplits:
    """Splits of a source under a seed.

    Test images are the source's own; where it has none, its validation images, as in results published on such
    sources; where it has neither, the share `test_share` of its training images. Validation images are the source's
    own; where it has none left, as many training images as the share `validation_share` of `training`, the number
    wanted to train on (None: all that there are). Each cut keeps the classes' shares. Of images that are equal in all
    pixels one is kept, if possible in the test split. ValueError where there are too few.
    """
    rng = np.random.default_rng(seed)
    held_back = source.test or source.validation
    rest, own = source.training, source.validation if source.test else None
    if held_back is None:
        rest = _unlike(rest, ())
        rest, held_back = _cut(rest, round(test_share * len(rest)), "test", rng)
    rest = _unlike(rest, (held_back,) if own is None else (held_back, own))
    own = None if own is None else _unlike(own, (held_back,))
    if own is None:
        rest, own = _cut(
            rest, round(validation_share * (len(rest) if training is None else training)), "validation", rng
        )
    if training is not None and training > len(rest):
        raise ValueError(
            f"There are {len(rest)} images to train on beside validation and test: {training} are asked for"
        )
    if training is not None:
        _, rest = _cut(rest, training, "training", rng)
    for name, images in (("training", rest), ("validation", own), ("test", held_back)):
        if not len(images):
            raise ValueError(f"No images are left for {name}: ask for a larger share, or for less elsewhere")
    return ImageSplits(source.form, rest, own, held_back)


def _cut(
    images: LabelledImages, count: int, name: str, rng: np.random.Generator
) -> tuple[LabelledImages, LabelledImages]:
    """What remains and `count` images that were drawn, both in the order they had, with the share of each class."""
    if count > len(images):
        raise ValueError(f"There are only {len(images)} images left of which to take {count} for {name}")
    drawn = np.zeros(len(images), bool)
    for label, quota in enumerate(_quotas(np.bincount(images.labels), count, rng)):
        drawn[rng.choice(np.flatnonzero(images.labels == label), quota, replace=False)] = True
    return images.at(np.flatnonzero(~drawn)), images.at(np.flatnonzero(drawn))


def _quotas(sizes_K: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """How many of each class make `count`: the exact shares rounded down, and one more for the largest remainders.

    Equal remainders go by lot: else the first classes would have one more in every cut.
    """
    exact_K = sizes_K * (count / max(1, sizes_K.sum()))
    quotas_K = np.floor(exact_K).astype(np.int64)
    by_remainder = np.lexsort((rng.random(len(sizes_K)), quotas_K - exact_K))
    quotas_K[by_remainder[: count - quotas_K.sum()]] += 1
    return quotas_K


def _print(image: NDArray[np.uint8]) -> bytes:
    """Pixels in 16 bytes: those of a large source would take its memory twice."""
    return blake2b(image.tobytes(), digest_size=16).digest()


def _unlike(images: LabelledImages, others: tuple[LabelledImages, ...]) -> LabelledImages:
    """Those whose pixels are not among the others', nor among those before them."""
    seen = {_print(image) for other in others for image in other.images}
    kept = []
    for index, image in enumerate(images.images):
        pixels = _print(image)
        if pixels not in seen:
            seen.add(pixels)
            kept.append(index)
    return images if len(kept) == len(images) else images.at(np.array(kept, np.int64))
