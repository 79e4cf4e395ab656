"""Recall and induction: every answer is found by looking back, and whatever cannot be found is not asked."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from task_splits import check_splits
from twofold.tasks.recall import FILLER, InductionTask, RecallTask
from twofold.tasks.task import IGNORED, Head

SMALL = {"training": 61, "validation": 17, "test": 29}


def small_recall(**settings) -> RecallTask:
    return RecallTask(**{"pairs": (3, 5), "length": 23, "vocabulary": 34, **SMALL, **settings})


def asked_once(**settings) -> RecallTask:
    return small_recall(questions="once", **settings)


def small_induction(**settings) -> InductionTask:
    return InductionTask(**{"length": 23, "vocabulary": 31, **SMALL, **settings})


@settings(max_examples=25, deadline=None)
@given(
    pairs=st.lists(st.integers(2, 7), min_size=1, max_size=3, unique=True).map(sorted),
    room=st.integers(0, 9),
    more_keys=st.integers(3, 9),
    questions=st.sampled_from(["once", "throughout"]),
    seed=st.integers(0, 10**6),
)
def test_a_dictionary_of_what_came_before_recalls_everything(pairs, room, more_keys, questions, seed):
    spec = small_recall(
        pairs=pairs,
        length=3 * pairs[-1] + room,
        vocabulary=2 * (pairs[-1] + 1 + more_keys),
        questions=questions,
        data_seed=seed,
    )
    splits = spec.load()
    check_splits(spec, splits)
    for examples in (splits.training, splits.validation, splits.test):
        for tokens, labels, part in zip(
            examples.inputs.tolist(), examples.labels.tolist(), examples.parts.tolist(), strict=True
        ):
            assert labels == recalled(tokens, pairs[part], spec.vocabulary)


def recalled(tokens: list[int], pairs: int, vocabulary: int) -> list[int]:
    """The labels that a dictionary of the pairs gives, once the example is found to be well formed."""
    keys, values = tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2]
    memory = dict(zip(keys, values, strict=True))
    assert len(memory) == len(set(values)) == pairs
    assert all(FILLER < key < vocabulary // 2 <= value for key, value in memory.items())
    rest = tokens[2 * pairs :]
    asked = [rest.count(key) for key in keys]
    assert sum(asked) == sum(token != FILLER for token in rest)  # nothing else stands there
    assert min(asked) >= 1
    assert max(asked) - min(asked) <= 1
    assert sum(asked) in (pairs, len(rest))  # once each, or throughout
    return [IGNORED] * (2 * pairs) + [memory.get(token, IGNORED) for token in rest]


def test_induction_asks_for_the_next_token():
    examples = small_induction().load().training
    asked = examples.labels[:, :-1] != IGNORED
    np.testing.assert_array_equal(examples.labels[:, :-1][asked], examples.inputs[:, 1:][asked])


def test_both_are_for_decoders():
    assert small_recall().form.head is small_induction().form.head is Head.NEXT


def test_numbers_of_pairs_are_equally_frequent_and_named():
    spec = small_recall(pairs=(1, 3, 5), training=62)
    splits = spec.load()
    assert splits.part_names == ("1 pair", "3 pairs", "5 pairs")
    assert spec.deciding_part == "1 pair"
    for examples in (splits.training, splits.validation, splits.test):
        counts = np.bincount(examples.parts, minlength=3)
        assert counts.max() - counts.min() <= 1


def test_parts_are_mixed():
    parts = small_recall(training=1000).load().training.parts
    assert 400 < np.count_nonzero(parts[1:] != parts[:-1]) < 600


def test_questions_stand_at_every_place():
    """Of the places after the pairs, each is taken equally often."""
    spec = asked_once(pairs=(3,), length=16, training=2000)
    asked = np.count_nonzero(spec.load().training.labels != IGNORED, axis=0)
    assert asked[:6].sum() == 0
    expected = 3 * 2000 / 10
    assert np.abs(asked[6:] - expected).max() < 5 * np.sqrt(expected)


def test_the_order_of_questions_tells_nothing():
    examples = asked_once(pairs=(2,), length=6, training=2000).load().training
    in_order = np.mean(examples.inputs[:, 0] == examples.inputs[:, 4])
    assert 0.45 < in_order < 0.55


def test_length_follows_from_the_most_pairs():
    assert small_recall(pairs=(2, 7), length=None).form.length == 28
    assert RecallTask().form.length == 32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pairs": (5, 3)}, "ascending"),
        ({"pairs": (3, 3)}, "ascending"),
        ({"pairs": (0, 3)}, "from 1 on"),
        ({"pairs": ()}, "1 validation error"),
        ({"vocabulary": 35}, "make 35 even"),
        ({"pairs": (3, 17), "length": None}, "has 16 keys, and 17 pairs.*36 or more"),
        ({"length": 14}, "take 15 tokens, and length is 14"),
        ({"test": 1}, "2 numbers of pairs.*not 1"),
    ],
)
def test_what_cannot_be_asked_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        small_recall(**settings)


def test_too_few_different_examples_are_refused():
    spec = asked_once(pairs=(1,), length=4, vocabulary=4)  # one key and two values
    with pytest.raises(ValueError, match="107 different examples"):
        spec.load()


@settings(max_examples=25, deadline=None)
@given(length=st.integers(8, 41), more=st.integers(7, 15), seed=st.integers(0, 10**6))
def test_induction_is_what_followed_last_time(length, more, seed):
    spec = small_induction(length=length, vocabulary=length // 2 + more, data_seed=seed)
    splits = spec.load()
    check_splits(spec, splits)
    for examples in (splits.training, splits.validation, splits.test):
        for tokens, labels in zip(examples.inputs.tolist(), examples.labels.tolist(), strict=True):
            assert labels == [followed(tokens[: t + 1]) for t in range(length)]


def followed(tokens: list[int]) -> int:
    """The token after the latest earlier occurrence of the last one, or `IGNORED` where there is none."""
    *before, last = tokens
    if last not in before:
        return IGNORED
    return tokens[len(before) - before[::-1].index(last)]


def test_induction_has_no_one_distance():
    """No fixed distance gives the answers: periods differ, and each is equally frequent."""
    spec = small_induction(length=29, training=3000)
    starts = (spec.load().training.labels != IGNORED).argmax(axis=1)
    periods, counts = np.unique(starts, return_counts=True)
    assert periods.tolist() == list(range(7, 15))
    assert np.abs(counts - 375).max() < 5 * np.sqrt(375)


def test_induction_needs_enough_tokens():
    with pytest.raises(ValueError, match=r"Half of 23.*has 10: make it 11 or more"):
        small_induction(vocabulary=10)


@pytest.mark.parametrize("make", [small_recall, small_induction])
def test_the_seed_decides(make):
    assert make().load().fingerprint == make().load().fingerprint
    assert make().load().fingerprint != make(data_seed=1).load().fingerprint
