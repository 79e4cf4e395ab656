"""Set anomaly: nine of one class, one odd, and none of them from another split."""

import numpy as np
import pytest

from small_images import idx_folder, labelled
from twofold.tasks.anomaly import AnomalyTask, draw_sets
from twofold.tasks.image_splits import ImageSplits
from twofold.tasks.task import Form, Head

CLASSES = 3
SIZES = {"training": 307, "validation": 53, "test": 59}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    parts = {"train": labelled(401, CLASSES), "t10k": labelled(101, CLASSES, seed=1)}
    folder = idx_folder(tmp_path_factory.mktemp("idx"), **parts)
    return AnomalyTask(source=f"idx:{folder}", validation_share=0.3, **SIZES)


def classes_by_pixels(images):
    return {
        (image.reshape(-1).astype(np.float32) / 255).tobytes(): label
        for image, label in zip(images.images, images.labels, strict=True)
    }


@pytest.mark.parametrize("name", SIZES)
def test_the_odd_one_is_odd_and_all_are_of_the_split(task, name):
    images: ImageSplits = task.image_splits()
    class_of = classes_by_pixels(getattr(images, name))
    examples = getattr(task.load(), name)
    assert examples.inputs.shape == (SIZES[name], 10, 35)
    assert examples.inputs.dtype == np.float32
    for members, odd in zip(examples.inputs, examples.labels, strict=True):
        assert len({member.tobytes() for member in members}) == 10
        classes = np.array([class_of[member.tobytes()] for member in members])
        others = np.delete(classes, odd)
        assert len(set(others)) == 1
        assert classes[odd] != others[0]


def test_the_form_and_the_seed(task):
    splits = task.load()
    assert task.form == splits.form == Form("features", Head.MEMBER, 10, length=10, features=35)
    assert task.load().fingerprint == splits.fingerprint
    assert task.model_copy(update={"data_seed": 1}).load().fingerprint != splits.fingerprint
    assert splits.training.inputs.min() == 0
    assert splits.training.inputs.max() == 1


def test_positions_and_classes_are_uniform():
    """Chi-square statistics, each below the value that chance exceeds once in 10,000 times."""
    labels = np.repeat(np.arange(4), [9, 11, 40, 140])
    sets, positions = draw_sets(labels, 9_000, np.random.default_rng(0))
    odd = labels[sets[np.arange(9_000), positions]]
    alike = labels[sets[np.arange(9_000), (positions + 1) % 10]]
    counts = np.bincount(positions, minlength=10)
    assert ((counts - 900) ** 2 / 900).sum() < 33.7  # 9 degrees of freedom
    pairs = np.bincount(odd * 4 + alike, minlength=16)
    assert (pairs[::5] == 0).all()
    others = np.delete(pairs, np.arange(0, 16, 5))
    assert ((others - 750) ** 2 / 750).sum() < 37.4  # 11 degrees of freedom


def test_too_few_images_or_too_little_memory(tmp_path):
    with pytest.raises(ValueError, match=r"has 2 class\(es\), and 8 images of one"):
        draw_sets(np.repeat([0, 1], [8, 100]), 3, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"has 1 class\(es\)"):
        draw_sets(np.zeros(100, np.int64), 3, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"102000 sets of 10 images of 3072 values take 11.7 GiB, and 8 GiB"):
        AnomalyTask(source="cifar10", training=100_000).load()


def test_digits_by_default():
    task = AnomalyTask(training=101, validation=11, test=13)
    assert task.form.features == 64
    assert len(task.load().training) == 101
    assert AnomalyTask().training == 10_000
