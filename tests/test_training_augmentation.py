"""Augmentation: each transformation does what it says, under its own seed, and leaves torch's random state alone."""

import sys

import pytest
import torch

from twofold.tasks.images import ImagesTask
from twofold.training.augmentation import augment

NAMES = ("crop", "flip", "rotate", "erase")


@pytest.fixture
def images():
    return 0.1 + 0.9 * torch.rand(64, 3, 16, 17, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("names", [*((name,) for name in NAMES), NAMES])
def test_seeds_decide_and_the_global_state_does_not(images, names):
    torch.manual_seed(1)
    before, kept = torch.get_rng_state(), images.clone()
    first = augment(images, names, 3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(augment(images, names, 3), first)
    assert not torch.equal(augment(images, names, 4), first)
    assert torch.equal(images, kept)
    assert (first.shape, first.dtype) == (images.shape, torch.float32)
    assert first.min() >= 0
    assert first.max() <= 1 + 1e-6


def test_images_differ_in_what_they_undergo(images):
    one = images[:1].expand(64, -1, -1, -1)
    for name in NAMES:
        assert len({image.numpy().tobytes() for image in augment(one, (name,), 0)}) >= 2


def test_no_names_no_change(images):
    assert torch.equal(augment(images, (), 0), images)


def test_flip_exchanges_left_and_right_of_half(images):
    flipped = augment(images, ("flip",), 0)
    same = (flipped == images).flatten(1).all(1)
    assert torch.equal(flipped[~same], images[~same].flip(-1))
    assert 16 <= same.sum() <= 48


def test_crop_moves_by_at_most_an_eighth(images):
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    moves = set()
    for image, cut in zip(padded, augment(images, ("crop",), 0), strict=True):
        fits = [
            (y, x)
            for y in range(5)
            for x in range(5)
            if torch.allclose(image[:, y : y + 16, x : x + 17], cut, atol=1e-5)
        ]
        assert len(fits) == 1
        moves.add(fits[0])
    assert len(moves) > 15
    assert {y for y, _ in moves} == {x for _, x in moves} == set(range(5))


def test_erase_blackens_one_rectangle(images):
    erased = augment(images, ("erase",), 0)
    touched = 0
    for before, after in zip(images, erased, strict=True):
        gone = (after == 0).all(0)
        assert torch.equal(after[:, ~gone], before[:, ~gone])
        rows, columns = gone.any(1), gone.any(0)
        assert torch.equal(gone, rows[:, None] & columns[None])
        assert gone.float().mean() < 0.25
        touched += bool(gone.any())
    assert 16 <= touched <= 48


def test_rotate_keeps_the_middle_and_turns_little():
    bar = torch.zeros(32, 1, 33, 33)
    bar[..., 16] = 1
    turned = augment(bar, ("rotate",), 0)
    assert torch.allclose(turned[:, 0, 16, 16], torch.ones(32), atol=1e-3)
    tops = turned[:, 0, 1].argmax(-1) - 16
    assert tops.abs().max() <= 5  # 15 rows above the middle, tan 15° = 0.27
    assert tops.min() < -1
    assert tops.max() > 1


def test_a_task_names_what_there_is(images):
    names = ImagesTask(augment=NAMES).augment
    assert augment(images, names, 0).shape == images.shape


def test_a_missing_library_is_named(images, monkeypatch):
    monkeypatch.setitem(sys.modules, "kornia", None)
    with pytest.raises(ValueError, match=r"pip install 'twofold\[vision\]'"):
        augment(images, ("flip",), 0)
