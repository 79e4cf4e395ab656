"""Segmentation: canvases hold whole images of their split, and each patch's label is what covers it."""

from itertools import combinations

import numpy as np
import pytest

from small_images import idx_folder, labelled
from twofold.tasks.segmentation import SegmentationTask, patch_labels, place
from twofold.tasks.task import Form, Head

CLASSES = 3
HEIGHT, WIDTH = 5, 7
SIZES = {"training": 41, "validation": 11, "test": 13}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    # No pixel is 0, so that an image can be found on its canvas.
    parts = {"train": labelled(61, CLASSES), "t10k": labelled(23, CLASSES, seed=1)}
    for part in parts.values():
        part.images[part.images == 0] = 1
    return idx_folder(tmp_path_factory.mktemp("idx"), **parts)


def segmentation(folder, **more):
    return SegmentationTask(source=f"idx:{folder}", **SIZES, **more)


def found_on(canvas, images):
    """(row, column, class) of each image that lies on a canvas, by looking for it everywhere."""
    found = []
    for row in range(len(canvas) - HEIGHT + 1):
        for column in range(len(canvas) - WIDTH + 1):
            cut = canvas[row : row + HEIGHT, column : column + WIDTH]
            same = (images.images[:, 0] == cut).all((1, 2))
            found += [(row, column, int(label)) for label in images.labels[same]]
    return found


def labels_by_counting(found, side, patch):
    """Pixel by pixel: the label of most of a patch's pixels, the lowest of equals."""
    labels = []
    for top in range(0, side, patch):
        for left in range(0, side, patch):
            counts = dict.fromkeys(range(CLASSES + 1), 0)
            for y in range(top, top + patch):
                for x in range(left, left + patch):
                    here = [k + 1 for r, c, k in found if r <= y < r + HEIGHT and c <= x < c + WIDTH]
                    counts[here[0] if here else 0] += 1
            labels.append(max(counts, key=lambda label: (counts[label], -label)))
    return labels


CASES = {
    "defaults": ({}, 22, 2),
    "aligned": ({"canvas": 27, "patch": 3, "objects": 5}, 27, 3),
    "free": ({"canvas": 24, "patch": 4, "objects": 4, "aligned": False}, 24, 4),
    "patches as large as images": ({"canvas": 28, "patch": 7, "objects": 2, "aligned": False}, 28, 7),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("split", SIZES)
def test_labels_are_what_lies_there(folder, case, split):
    options, side, patch = CASES[case]
    task = segmentation(folder, **options)
    images = getattr(task.image_splits(), split)
    examples = getattr(task.load(), split)
    assert examples.inputs.shape == (SIZES[split], 1, side, side)
    assert examples.inputs.dtype == np.uint8
    assert examples.labels.shape == (SIZES[split], (side // patch) ** 2)
    assert examples.labels.dtype == np.int64
    for canvas, labels in zip(examples.inputs[:, 0], examples.labels, strict=True):
        found = found_on(canvas, images)
        assert len(found) == task.objects
        # As many pixels as the images have: none is over another, and the rest is black.
        assert np.count_nonzero(canvas) == task.objects * HEIGHT * WIDTH
        if task.aligned:
            assert all(row % patch == column % patch == 0 for row, column, _ in found)
        assert labels.tolist() == labels_by_counting(found, side, patch)


def test_the_form_and_the_seed(folder):
    task = segmentation(folder, canvas=24, patch=4)
    splits = task.load()
    assert task.form == splits.form == Form("images", Head.POSITIONS, CLASSES + 1, image=(1, 24, 24), patch=4)
    assert task.metric == "mean IoU"
    assert task.load().fingerprint == splits.fingerprint
    assert task.model_copy(update={"data_seed": 1}).load().fingerprint != splits.fingerprint


def test_digits_and_others_without_sizes():
    assert SegmentationTask().form == Form("images", Head.POSITIONS, 11, image=(1, 24, 24), patch=4)
    form = SegmentationTask(source="tiny-imagenet").form
    assert (form.classes, form.image, form.patch) == (201, (3, 192, 192), 32)
    splits = SegmentationTask(**SIZES).load()
    assert set(np.unique(splits.training.labels)) <= set(range(11))
    # Three images of four patches each.
    assert (np.count_nonzero(splits.training.labels, axis=1) == 12).all()


def test_places_are_free_and_uniform():
    rng = np.random.default_rng(0)
    for _ in range(200):
        for (top, left), (other_top, other_left) in combinations(place(19, (5, 7), 4, 1, rng), 2):
            assert abs(top - other_top) >= 5 or abs(left - other_left) >= 7
    corners = [place(19, (5, 7), 1, 4, rng)[0] for _ in range(3_200)]
    counts = np.array([corners.count((row, column)) for row in (0, 4, 8, 12) for column in (0, 4, 8, 12)])
    assert counts.sum() == 3_200
    # Chi-square with 15 degrees of freedom: chance exceeds it once in 10,000 times.
    assert ((counts - 200) ** 2 / 200).sum() < 44.3


def test_a_tight_canvas_is_begun_anew():
    """Two of 3x4 in 6x6 fit only where the first leaves room for the second, which half of its places do not."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        (first, _), (second, _) = place(6, (3, 4), 2, 1, rng)
        assert {first, second} == {0, 3}
    with pytest.raises(ValueError, match="9 images of 3x3 found no room on a canvas of 10"):
        place(10, (3, 3), 9, 4, rng)


def test_equal_shares_go_to_the_lowest():
    pixels = np.zeros((1, 4, 4), np.int16)
    pixels[0, :2, 1] = 2  # half background, half 2
    pixels[0, :2, 2], pixels[0, :2, 3] = 2, 1  # half 1, half 2
    pixels[0, 2:, 0], pixels[0, 2, 1] = 1, 1  # three quarters
    pixels[0, 2, 2] = 2  # a quarter
    assert patch_labels(pixels, 2, 3).tolist() == [[0, 1, 1, 0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"canvas": 25}, "Patches of 4 pixels do not fill a canvas of 25"),
        ({"objects": 10}, "room for 9 images of 8x8, and objects is 10"),
        ({"patch": 6}, "room for 4 images of 8x8, and objects is 5"),
        ({"canvas": 4}, "room for 0 images"),
    ],
)
def test_what_has_no_room(options, message):
    with pytest.raises(ValueError, match=message):
        _ = SegmentationTask(**{"objects": 5, **options}).form
