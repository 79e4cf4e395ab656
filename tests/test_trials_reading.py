"""Examples of tasks, as a model that was trained on one reads them."""

import numpy as np
import pytest

from tiny_trials import REVERSE, make, spec
from twofold.explain.activations import run
from twofold.explain.load import open_model
from twofold.tasks.sequences import SequenceTask
from twofold.trials.reading import given, task_text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run on a task. Read only."""
    out = tmp_path_factory.mktemp("study")
    make(spec(variants=["Q=K +"], seeds=[0], steps=3, looks=1), out)
    return next(out.glob("reverse/runs/*"))


@pytest.mark.parametrize("below", ["", "/model"])
def test_a_runs_record_says_which_task_and_the_model_reads_its_examples(folder, below):
    found = task_text(f"{folder}{below}", tokens=40)
    splits = SequenceTask.model_validate(REVERSE).load()
    assert np.array_equal(found.ids_NT, splits.validation.inputs[:5])
    assert (found.task, found.fingerprint) == ("reverse", splits.fingerprint)
    read = given(found)
    assert (read.read.tokens, read.read.window, len(read.read.pieces)) == (35, 7, 7)
    assert "".join(read.read.pieces).split() == [str(token) for token in found.ids_NT[0]]
    layers = list(run(open_model(f"{folder}{below}", exact=True).model, read.ids_BT))
    assert [one.scored.maps_BHTT.shape for one in layers] == [(5, 2, 7, 7)] * 2


def test_another_task_of_the_kind_has_the_same_sizes_and_a_few_tokens_are_one_example(folder):
    found = task_text(str(folder), tokens=3, task="sort")
    assert found.ids_NT.shape == (1, 7)
    assert found.task == "sort"


def test_a_task_by_name_needs_no_run(tmp_path):
    assert task_text(str(tmp_path), tokens=100, task="copy").ids_NT.shape == (3, 32)


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (None, "no run on a task"),
        ("revers", "no task 'revers'"),
        ("anomaly", "read as features"),
        ("files", "files cannot be made by its name alone"),
        ("roles", "unequal lengths"),
    ],
)
def test_what_has_no_examples_of_tokens_is_refused(tmp_path, task, reason):
    with pytest.raises(ValueError, match=reason):
        task_text(str(tmp_path), tokens=9, task=task)
