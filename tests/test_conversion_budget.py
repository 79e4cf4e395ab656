"""Dims per layer under one total: the best there is, by trying all; never worse than equal parts."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.conversion.budget import allocate, select

LOSS = st.floats(0, 7, allow_subnormal=False)


def loss_of(losses, dims, step, limit):
    return math.fsum(0.0 if n == limit else layer[n // step] for layer, n in zip(losses, dims, strict=True))


def best_of_all(losses, total, step, limit):
    choices = [*range(step, limit, step), limit]
    sums = [
        (loss_of(losses, dims, step, limit), sum(dims))
        for dims in itertools.product(choices, repeat=len(losses))
        if sum(dims) <= total
    ]
    return min(sums)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_no_other_choice_loses_less(data):
    """Any losses, convex or not, and steps that the limit is no multiple of."""
    step = data.draw(st.integers(1, 5))
    limit = data.draw(st.integers(step, 5 * step))
    needed = -(-limit // step)
    layers = data.draw(st.integers(1, 4))
    losses = data.draw(st.lists(st.lists(LOSS, min_size=needed, max_size=needed + 1), min_size=layers, max_size=layers))
    total = data.draw(st.integers(layers * step, layers * limit + 3))
    dims = allocate(losses, total, step, limit)
    assert len(dims) == layers
    assert sum(dims) <= total
    assert all(n == limit or (0 < n < limit and n % step == 0) for n in dims)
    assert loss_of(losses, dims, step, limit) == pytest.approx(best_of_all(losses, total, step, limit)[0], abs=1e-12)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(LOSS, min_size=7, max_size=7), min_size=2, max_size=9), st.integers(1, 7))
def test_never_worse_than_equal_parts(drops, part):
    """Losses that fall with the dims, as a spectrum's do."""
    losses = [[math.fsum(sorted(drop)[: 7 - n]) for n in range(8)] for drop in drops]
    dims = allocate(losses, len(losses) * part * 3, 3, 21)
    assert loss_of(losses, dims, 3, 21) <= loss_of(losses, [part * 3] * len(losses), 3, 21) + 1e-12


def test_dims_go_where_they_are_worth_most():
    steep, flat = [9.0, 5.0, 2.0, 0.5], [1.0, 0.9, 0.8, 0.7]
    assert allocate([steep, flat], 32, 8, 32) == (24, 8)
    assert allocate([flat, steep], 32, 8, 32) == (8, 24)
    assert allocate([steep, flat], 40, 8, 32) == (32, 8)
    assert allocate([[10 * loss for loss in flat], steep], 40, 8, 32) == (32, 8)  # as weighted by its caller
    assert allocate([steep, flat], 1000, 8, 32) == (32, 32)
    late = [9.0, 9.0, 9.0, 0.0]  # worth nothing at first: a greedy choice would never begin
    assert allocate([late, steep], 32, 8, 32) == (24, 8)


def test_of_equal_losses_fewer_dims_are_taken():
    known = [1.0, 0.5, 0.0, 0.0]
    assert allocate([known, known], 64, 8, 32) == (16, 16)
    assert allocate([[0.0] * 4] * 3, 96, 8, 32) == (8, 8, 8)


def test_a_limit_beside_the_steps_is_counted_as_it_is():
    dear, cheap = [3.0, 2.0], [3.0, 1.5]
    assert allocate([dear, cheap], 33, 10, 17) == (17, 10)
    assert allocate([cheap, dear], 27, 10, 17) == (10, 17)
    assert allocate([dear, cheap], 26, 10, 17) == (10, 10)
    assert allocate([dear, cheap], 34, 10, 17) == (17, 17)
    assert allocate([[5.0]], 7, 7, 7) == (7,)


def test_it_is_quick_enough_for_a_large_model():
    losses = [[math.exp(-(layer + 1) * n / 900) for n in range(128)] for layer in range(48)]
    dims = allocate(losses, 48 * 1024, 16, 2048)
    assert sum(dims) <= 48 * 1024
    assert loss_of(losses, dims, 16, 2048) < loss_of(losses, [1024] * 48, 16, 2048) * 0.75


@pytest.mark.parametrize(
    ("losses", "total", "step", "limit", "words"),
    [
        ([[1.0, 0.5]] * 3, 23, 8, 16, "23 dims are too few for 3 layers in steps of 8: give at least 24"),
        ([[1.0, 0.5]], 12, 8, 32, "layer 0 needs 4 finite losses"),
        ([[1.0, 0.5], [1.0, math.nan]], 32, 8, 16, "layer 1 needs 2 finite losses"),
        ([], 32, 8, 16, "0 layers"),
        ([[1.0]], 32, 0, 16, "steps of 0"),
        ([[1.0]], 32, 17, 16, "steps of 17 up to 16"),
    ],
)
def test_what_cannot_be_allocated_is_refused(losses, total, step, limit, words):
    with pytest.raises(ValueError, match=words):
        allocate(losses, total, step, limit)


def test_layers_with_the_smallest_losses_are_chosen():
    assert select([0.5, 0.1, 0.9, 0.1, 0.3], 3) == (1, 3, 4)
    assert select([0.5, 0.1, 0.9, 0.1, 0.3], 1) == (1,)
    assert (select([2.0, 1.0], 0), select([2.0, 1.0], 2)) == ((), (0, 1))
    for count in (-1, 3):
        with pytest.raises(ValueError, match=f"{count} of 2 layers"):
            select([1.0, 2.0], count)
    with pytest.raises(ValueError, match="must be numbers"):
        select([1.0, math.nan], 1)
