"""Sequences of digits: each answer by its law, and nothing in two splits."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from task_splits import check_splits, rows
from twofold.tasks.distinct import distinct_rows, distinct_tokens
from twofold.tasks.sequences import SequenceTask
from twofold.tasks.task import Head

NAMES = get_args(SequenceTask.model_fields["task"].annotation)


def small(task: str, **settings) -> SequenceTask:
    return SequenceTask(**{"task": task, "length": 14, "training": 83, "validation": 13, "test": 17, **settings})


def test_there_are_five():
    assert set(NAMES) == {"reverse", "sort", "subtract", "swap", "copy"}


@settings(max_examples=30, deadline=None)
@given(
    task=st.sampled_from(NAMES),
    half=st.integers(3, 13),
    digits=st.integers(3, 23),
    seed=st.integers(0, 10**6),
)
def test_each_answer_follows_its_law(task, half, digits, seed):
    spec = small(task, length=2 * half, digits=digits, data_seed=seed)
    splits = spec.load()
    check_splits(spec, splits)
    for examples in (splits.training, splits.validation, splits.test):
        for sequence, answer in zip(examples.inputs.tolist(), examples.labels.tolist(), strict=True):
            expected = {
                "reverse": list(reversed(sequence)),
                "sort": sorted(sequence),
                "subtract": [digits - 1 - digit for digit in sequence],
                "swap": sequence[half:] + sequence[:half],
                "copy": sequence,
            }
            assert answer == expected[task]


@pytest.mark.parametrize("task", NAMES)
def test_where_the_answer_stands(task):
    spec = small(task)
    examples = spec.load().training
    if task == "sort":
        assert spec.answer_positions is None
        return
    found = examples.inputs[:, spec.answer_positions]
    np.testing.assert_array_equal(examples.labels, spec.digits - 1 - found if task == "subtract" else found)


@pytest.mark.parametrize("task", NAMES)
def test_answering_twice(task):
    spec = small(task)
    inputs = spec.load().training.inputs
    once = spec.answer(inputs)
    back = once if task == "sort" else inputs  # the others undo themselves
    np.testing.assert_array_equal(spec.answer(once), back)


def test_the_five_ask_about_the_same_sequences():
    first, *others = (rows(small(task).load()) for task in NAMES)
    assert all(other == first for other in others)


@pytest.mark.parametrize("task", NAMES)
def test_the_seed_decides(task):
    assert small(task).load().fingerprint == small(task).load().fingerprint
    assert small(task).load().fingerprint != small(task, data_seed=1).load().fingerprint


def test_the_answer_has_a_place_in_the_fingerprint():
    assert len({small(task).load().fingerprint for task in NAMES}) == len(NAMES)


def test_digits_are_equally_frequent():
    task = small("copy", length=31, digits=7, training=5003)
    counts = np.bincount(task.load().training.inputs.ravel(), minlength=7)
    expected = counts.sum() / 7
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)
    assert task.form.head is Head.POSITIONS


@pytest.mark.parametrize("length", [5, 6, 9])
def test_all_there_are_can_be_asked_for(length):
    """Two digits: 2^length sequences; nearly or just all of them, each once."""
    spec = small("reverse", digits=2, length=length, training=2**length - 5, validation=2, test=3)
    splits = spec.load()
    check_splits(spec, splits)
    assert len(splits.training) == 2**length - 5


def test_more_than_there_are_is_refused():
    with pytest.raises(ValueError, match=r"only 3\^4 = 81 sequences, and 82 different"):
        small("copy", digits=3, length=4, training=80, validation=1, test=1)


def test_halves_need_an_even_length():
    with pytest.raises(ValueError, match="a length of 7"):
        small("swap", length=7)
    assert small("reverse", length=7).form.length == 7


def test_when_the_baseline_has_solved_it():
    assert {task: small(task).solved for task in NAMES} == {
        "reverse": 0.99,
        "sort": 0.97,
        "subtract": 0.99,
        "swap": 0.99,
        "copy": 0.99,
    }
    assert small("sort", solved=None).solved is None
    assert small("sort", solved=0.5).solved == 0.5
    again = SequenceTask.model_validate(small("sort", solved=None).model_dump())
    assert again == small("sort", solved=None)


def test_an_unknown_task_is_one_error():
    with pytest.raises(ValueError, match="1 validation error"):
        small("rotate")


@settings(max_examples=40, deadline=None)
@given(among=st.integers(1, 41), data=st.data())
def test_chosen_tokens_differ(among, data):
    count = data.draw(st.integers(1, among))
    chosen = distinct_tokens(np.random.default_rng(among), 29, count, among)
    assert chosen.shape == (29, count)
    assert all(len(set(row)) == count and set(row) <= set(range(among)) for row in chosen.tolist())


def test_all_ordered_choices_are_equally_likely():
    chosen = distinct_tokens(np.random.default_rng(3), 24_000, 3, 4)
    codes, counts = np.unique(chosen @ [16, 4, 1], return_counts=True)
    assert len(codes) == 24  # 4·3·2
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000)


def test_distinct_rows_give_up_where_there_are_no_more():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"9 different examples were asked for.*first 8:"):
        distinct_rows(lambda count: rng.integers(0, 2, size=(count, 3)), 9)
    assert len({tuple(row) for row in distinct_rows(lambda count: rng.integers(0, 2, size=(count, 3)), 8)}) == 8
