"""Who does what to whom: a second reader of the grammar agrees, and a bag of words is exactly at chance."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from task_splits import check_splits
from twofold.tasks.sentences import ADJECTIVES, ADVERBS, CONSTRUCTIONS, NOUNS, VERBS, RolesTask
from twofold.tasks.task import Examples, Head, Splits

DONE = {participle: verb for verb, participle in VERBS.items()}


def small(**settings) -> RolesTask:
    return RolesTask(**{"training": 1402, "validation": 74, "test": 106, **settings})


@pytest.fixture(scope="module")
def splits() -> Splits:
    return small().load()


def everything(splits: Splits) -> list[Examples]:
    return [splits.training, splits.validation, splits.test]


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_splits_are_sound(seed):
    spec = small(data_seed=seed)
    check_splits(spec, spec.load())


def test_each_bag_of_words_has_both_answers_equally_often(splits):
    """So whoever ignores order answers no split better than by tossing a coin."""
    for examples in everything(splits):
        answers = defaultdict(Counter)
        for tokens, label in zip(examples.inputs, examples.labels, strict=True):
            answers[np.sort(tokens).tobytes()][int(label)] += 1
        assert all(counts[0] == counts[1] for counts in answers.values())


def test_twins_follow_each_other(splits):
    for examples in everything(splits):
        first, second = examples.inputs[0::2], examples.inputs[1::2]
        assert (np.count_nonzero(first != second, axis=1) == 2).all()
        assert (examples.labels[0::2] + examples.labels[1::2] == 1).all()
        np.testing.assert_array_equal(examples.parts[0::2], examples.parts[1::2])


def test_a_second_reader_gives_the_same_answers(splits):
    task = small()
    for examples in everything(splits):
        for tokens, label in zip(examples.inputs, examples.labels, strict=True):
            sentence, question = task.decode(tokens).split(" ? ")
            noun, verb = question.split()
            assert label == ((noun, verb) in acts(sentence)), sentence


def acts(sentence: str) -> set[tuple[str, str]]:
    """Each noun with the verb that it does, by the grammar of a simple reader."""
    described = {*ADJECTIVES, *ADVERBS, "the"}
    words = [word for word in sentence.split() if word not in described]
    if words[:2] == ["it", "is"]:
        words = words[2:]
    if "that" not in words:
        return clause(words)
    at = words.index("that")
    head, rest = words[at - 1], words[at + 1 :]
    end = end_of_clause(rest)
    inner, after = rest[:end], rest[end:]
    inner = clause([*inner, head]) if inner[0] in NOUNS else clause([head, *inner], of=head)
    outer = words[:at] + after
    return inner | (clause(outer) if len(outer) > 1 else set())


def end_of_clause(words: list[str]) -> int:
    """How many words a relative clause has: to its verb after a noun, else to its noun."""
    if words[0] in NOUNS:
        return 2
    return 4 if words[0] == "is" else 2


def clause(words: list[str], of: str | None = None) -> set[tuple[str, str]]:
    """Noun and verb of "dog bites man", "man is bitten by dog" or, of a relative clause, "dog bites" and "man"."""
    if "is" in words:
        assert words[1] == "is"
        assert words[3] == "by"
        return {(words[4], DONE[words[2]])}
    first, verb, second = words
    assert of in (None, first)
    assert {first, second} <= set(NOUNS)
    return {(first, verb)}


def test_dog_bites_man(splits):
    task = small()
    assert [task.decode(tokens) for tokens in splits.test.inputs[:2]] == [
        "the dog bites the man ? dog bites",
        "the man bites the dog ? dog bites",
    ]
    assert splits.test.labels[:2].tolist() == [1, 0]


def test_every_word_means_one_thing(splits):
    words = RolesTask.words
    assert len(set(words)) == len(words) == small().form.vocabulary
    used = np.unique(np.concatenate([e.inputs.ravel() for e in everything(splits)]))
    assert used.tolist() == list(range(len(words)))


def test_the_longest_sentence_fits_and_padding_comes_last():
    spec = small(training=20_000)
    inputs = spec.load().training.inputs
    form = spec.form
    assert form.head is Head.WHOLE
    assert form.padding == 0
    padded = inputs == form.padding
    assert (np.diff(padded.astype(int), axis=1) >= 0).all()
    assert padded.sum(axis=1).min() == 0


def test_constructions_are_parts_equally_frequent_in_training():
    splits = small(training=8006).load()
    assert splits.part_names == tuple(CONSTRUCTIONS)
    counts = np.bincount(splits.training.parts[0::2])
    assert np.abs(counts - 4003 / 4).max() < 5 * np.sqrt(4003 / 4)


def test_being_named_first_tells_nothing():
    """Of the two nouns in question, the one named first acts in half of the sentences."""
    texts = [text for texts in CONSTRUCTIONS.values() for text in texts]
    assert sum(text.index("dog") < text.index("man") for text in texts) == len(texts) / 2
    examples = small(training=8006).load().training
    words = np.array(RolesTask.words)
    first_acts = []
    for tokens, label in zip(examples.inputs, examples.labels, strict=True):
        end = int((words[tokens] == "?").argmax())
        swapped = tokens[end + 1]  # the noun of the question; the other one is where the twin has this one
        first_acts.append((int((tokens == swapped).argmax()), label))
    of_base, of_twin = first_acts[0::2], first_acts[1::2]
    earlier = [base[1] if base[0] < twin[0] else twin[1] for base, twin in zip(of_base, of_twin, strict=True)]
    assert abs(np.mean(earlier) - 0.5) < 5 * 0.5 / np.sqrt(len(earlier))


def test_the_seed_decides():
    assert small().load().fingerprint == small().load().fingerprint
    assert small().load().fingerprint != small(data_seed=1).load().fingerprint


def test_twins_need_an_even_number():
    with pytest.raises(ValueError, match="multiple of 2"):
        small(validation=13)
