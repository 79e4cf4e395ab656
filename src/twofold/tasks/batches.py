"""Examples as a model takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from twofold.tasks.task import Examples, Form

Batch = dict[str, Tensor]


def batch(form: Form, examples: Examples, indices: Sequence[int] | slice) -> Batch:
    """Some examples as the keyword arguments of a model.

    `input_ids` [B, T] (with `attention_mask` where padding exists), `features` [B, T, F], or `pixel_values`
    [B, C, height, width] between 0 and 1; and `labels`, of a decoder `shift_labels`.
    """
    inputs = torch.from_numpy(examples.inputs[indices])
    labels = torch.from_numpy(examples.labels[indices])
    if form.reads == "images":
        return {"pixel_values": inputs.float() / 255, "labels": labels}
    if form.reads == "features":
        return {"features": inputs.float(), "labels": labels}
    if form.causal:
        return {"input_ids": inputs, "shift_labels": labels}
    mask = {} if form.padding is None else {"attention_mask": (inputs != form.padding).long()}
    return {"input_ids": inputs, **mask, "labels": labels}


def batches(form: Form, examples: Examples, size: int) -> Iterator[tuple[slice, Batch]]:
    """All examples in order, `size` at a time, with their places."""
    for start in range(0, len(examples), size):
        places = slice(start, min(start + size, len(examples)))
        yield places, batch(form, examples, places)


def some(examples: Examples, count: int) -> Examples:
    """`count` examples, always the same, from all over: sources may be in the order of their classes. All where there
    are no more.
    """
    if count >= len(examples):
        return examples
    chosen = np.random.default_rng(0).permutation(len(examples))[:count]
    parts = None if examples.parts is None else examples.parts[chosen]
    return Examples(examples.inputs[chosen], examples.labels[chosen], parts)
