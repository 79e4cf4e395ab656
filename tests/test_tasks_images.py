"""Classification of images: splits without a common image, with each class's share, the same under the same seed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from small_images import idx_folder, labelled, pixels_of
from twofold.tasks.image_set import ImageForm, ImageSet, LabelledImages
from twofold.tasks.image_splits import split_images
from twofold.tasks.images import ImagesTask
from twofold.tasks.task import Form, Head

CLASSES = 5
FORM = ImageForm(1, 5, 7, CLASSES)


def source(training=211, validation=0, test=0):
    parts = (labelled(n, CLASSES, seed=n) if n else None for n in (training, validation, test))
    return ImageSet(FORM, *parts)


def split(images, seed=0, training=None):
    return split_images(images, 0.1, 0.2, seed, training)


def parts_of(splits):
    return splits.training, splits.validation, splits.test


def assert_shares(part, whole):
    """Each class has its share, rounded down or up."""
    exact = np.bincount(whole.labels, minlength=CLASSES) * len(part) / len(whole)
    assert (np.abs(np.bincount(part.labels, minlength=CLASSES) - exact) < 1).all()


SOURCES = {"training": (), "with validation": (53,), "with test": (0, 53), "with both": (41, 53)}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("training", [None, 97])
def test_no_image_is_in_two_splits_and_labels_stay_with_images(kind, training):
    images = source(211, *SOURCES[kind])
    given = [part for part in (images.training, images.validation, images.test) if part]
    label_of = {p: label for part in given for p, label in zip(pixels_of(part.images), part.labels, strict=True)}
    found = []
    for part in parts_of(split(images, training=training)):
        assert [label_of[p] for p in pixels_of(part.images)] == part.labels.tolist()
        found += pixels_of(part.images)
    assert len(set(found)) == len(found)
    if training is None:
        assert set(found) == set(label_of)


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("training", (152, 17, 42)),  # 42 = 0.2 of 211, 17 = 0.1 of the 169 others
        ("with validation", (190, 21, 53)),
        ("with test", (190, 21, 53)),
        ("with both", (211, 41, 53)),
    ],
)
def test_sizes(kind, sizes):
    images = source(211, *SOURCES[kind])
    splits = split(images)
    assert tuple(map(len, parts_of(splits))) == sizes
    if kind != "training":
        np.testing.assert_array_equal(splits.test.images, (images.test or images.validation).images)
    if kind == "with both":
        np.testing.assert_array_equal(splits.validation.images, images.validation.images)


def test_a_limit_counts_training_images_and_validation_follows_it():
    splits = split(source(211, 0, 53), training=97)
    assert tuple(map(len, parts_of(splits))) == (97, 10, 53)
    assert_shares(splits.training, split(source(211, 0, 53)).training)


@pytest.mark.parametrize("seed", range(5))
def test_classes_keep_their_shares(seed):
    images = source(499)
    splits = split(images, seed)
    assert_shares(splits.test, images.training)
    rest = np.setdiff1d(pixels_of(images.training.images), pixels_of(splits.test.images))
    assert len(rest) == len(splits.training) + len(splits.validation)
    both = LabelledImages(images.training.images, np.concatenate([splits.training.labels, splits.validation.labels]))
    assert_shares(splits.validation, replace(both, images=both.labels))


def test_equal_classes_take_turns_to_have_one_more():
    """13 of five classes of equal size: three of the classes have one more, and not always the first."""
    images = replace(labelled(100, CLASSES), labels=np.arange(100) % CLASSES)
    more = {tuple(np.bincount(split(ImageSet(FORM, images), seed).validation.labels)) for seed in range(20)}
    assert len(more) > 3
    assert {sum(counts) for counts in more} == {8}


def test_equal_images_are_kept_once():
    images = labelled(101, CLASSES)
    test = labelled(23, CLASSES, seed=1)
    doubled = LabelledImages(
        np.concatenate([images.images, images.images[:11], test.images[:7]]),
        np.concatenate([images.labels, images.labels[:11], test.labels[:7]]),
    )
    splits = split(ImageSet(FORM, doubled, test=test))
    assert len(splits.test) == 23
    assert sorted(pixels_of(splits.training.images) + pixels_of(splits.validation.images)) == sorted(
        pixels_of(images.images)
    )
    whole = split(ImageSet(FORM, doubled))
    found = [p for part in parts_of(whole) for p in pixels_of(part.images)]
    assert sorted(found) == sorted({*pixels_of(doubled.images)})


def test_too_few_images():
    with pytest.raises(ValueError, match="There are 189 images to train on beside validation and test: 211 are"):
        split(source(210, 0, 53), training=211)
    with pytest.raises(ValueError, match="No images are left for validation"):
        split(source(5, 0, 53), training=4)
    with pytest.raises(ValueError, match="only 211 images left of which to take 300 for validation"):
        split(source(211, 0, 53), training=3000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    parts = {"train": labelled(211, CLASSES), "t10k": labelled(53, CLASSES, seed=1)}
    return idx_folder(tmp_path_factory.mktemp("idx"), **parts)


def test_the_seed_decides(folder):
    same, again, other = (ImagesTask(source=f"idx:{folder}", data_seed=seed).load() for seed in (3, 3, 4))
    assert same.fingerprint == again.fingerprint != other.fingerprint
    np.testing.assert_array_equal(same.test.inputs, other.test.inputs)
    assert set(pixels_of(same.validation.inputs)) != set(pixels_of(other.validation.inputs))


def test_examples_are_what_the_form_says(folder):
    task = ImagesTask(source=f"idx:{folder}", training=97, augment=("crop", "flip"))
    splits = task.load()
    assert task.form == splits.form == Form("images", Head.WHOLE, CLASSES, image=(1, 5, 7))
    assert splits.augmentation == ("crop", "flip")
    for examples in (splits.training, splits.validation, splits.test):
        assert examples.inputs.shape == (len(examples), 1, 5, 7)
        assert examples.inputs.dtype == np.uint8
        assert examples.labels.shape == (len(examples),)
        assert examples.labels.dtype == np.int64
    assert len(splits.training) == 97


def test_digits():
    splits = ImagesTask().load()
    assert [len(part) for part in (splits.training, splits.validation, splits.test)] == [1294, 144, 359]
    for part in (splits.training, splits.validation, splits.test):
        assert np.ptp(np.bincount(part.labels, minlength=10)) <= 0.1 * len(part)


def test_forms_and_levels_of_known_sources_read_nothing():
    assert ImagesTask().solved == 0.95
    assert ImagesTask(source="fashion-mnist:/nowhere").solved == 0.85
    assert ImagesTask(source="cifar100").solved is None
    assert ImagesTask(source="fashion-mnist", solved=None).solved is None
    assert ImagesTask(solved=0.5).solved == 0.5
    assert ImagesTask(source="fashion-mnist:/nowhere").form.image == (1, 28, 28)
    assert ImagesTask(source="tiny-imagenet").form == Form("images", Head.WHOLE, 200, image=(3, 64, 64))


@pytest.mark.parametrize(
    "wrong",
    [
        {"source": "digit"},
        {"size": 8},
        {"augment": ["blur"]},
        {"training": 0},
        {"validation_share": 1},
        {"channels": 2},
    ],
)
def test_what_is_no_task(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ImagesTask(**wrong)


@pytest.mark.skipif(not Path("/usr/share/datasets/fashion-mnist").exists(), reason="needs dataset-fashion-mnist")
def test_fashion_mnist_on_ten_thousand():
    splits = ImagesTask(source="fashion-mnist", training=10_000).load()
    assert [len(part) for part in (splits.training, splits.validation, splits.test)] == [10_000, 1_000, 10_000]
    for part in (splits.training, splits.validation, splits.test):
        assert (np.bincount(part.labels) == len(part) // 10).all()
    assert splits.training.inputs.shape[1:] == (1, 28, 28)
