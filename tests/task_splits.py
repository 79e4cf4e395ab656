"""What holds for the splits of every task."""

import numpy as np

from twofold.tasks.task import IGNORED, Head, Splits, TaskSpec


def check_splits(task: TaskSpec, splits: Splits) -> None:
    """The form is that of the arrays, and no example is in two splits."""
    form = task.form
    assert splits.form == form
    names = len(splits.part_names)
    for examples in (splits.training, splits.validation, splits.test):
        assert examples.inputs.dtype == examples.labels.dtype == np.int64
        assert examples.inputs.shape == (len(examples), form.length)
        assert 0 <= examples.inputs.min() <= examples.inputs.max() < form.vocabulary
        whole = form.head is Head.WHOLE
        assert examples.labels.shape == (len(examples),) if whole else examples.inputs.shape
        asked = examples.labels[examples.labels != IGNORED]
        assert len(asked) > 0
        assert 0 <= asked.min() <= asked.max() < form.classes
        assert (examples.parts is None) == (names == 0)
        if examples.parts is not None:
            assert examples.parts.shape == (len(examples),)
            assert set(examples.parts) <= set(range(names))
    everything = rows(splits)
    assert len(set(everything)) == len(everything)


def rows(splits: Splits) -> list[bytes]:
    """All inputs, one after another."""
    return [row.tobytes() for e in (splits.training, splits.validation, splits.test) for row in e.inputs]
