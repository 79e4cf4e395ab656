"""Attention maps as numbers: where a position looks, and whether it is looked at in turn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from twofold.evaluation.attention_entropy import eager_attention
from twofold.evaluation.heldout import evaluation_mode
from twofold.tasks.batches import batches
from twofold.tasks.task import Examples, Form


@dataclass(frozen=True)
class AttentionMaps:
    """The mean attention over examples, [layers, H, T, T], and `symmetry` [layers, H].

    The symmetry of a map A is ⟨A, Aᵀ⟩ / ⟨A, A⟩: 1 for a symmetric one, and 0 where nobody looks back. It is taken of
    each example's map and averaged.
    """

    mean: NDArray[np.float64]
    symmetry: NDArray[np.float64]


def attention_maps(model: PreTrainedModel, form: Form, examples: Examples, batch_size: int = 64) -> AttentionMaps:
    """The maps of every layer and head over examples of one length."""
    mean: Tensor | float = 0.0
    symmetry: Tensor | float = 0.0
    with eager_attention(model), evaluation_mode(model), torch.no_grad():
        for _, inputs in batches(form, examples, batch_size):
            wanted = {name: value.to(model.device) for name, value in inputs.items() if "labels" not in name}
            maps = torch.stack(model(**wanted, output_attentions=True).attentions).double()  # layers, B, H, T, T
            mean = mean + maps.sum(1)
            back = (maps * maps.mT).sum((-1, -2)) / maps.square().sum((-1, -2))
            symmetry = symmetry + back.sum(1)
    assert isinstance(mean, Tensor)
    assert isinstance(symmetry, Tensor)
    return AttentionMaps(mean.cpu().numpy() / len(examples), symmetry.cpu().numpy() / len(examples))


def measures(maps: AttentionMaps, answers: NDArray[np.int64] | None) -> dict[str, float]:
    """Numbers of the maps: `symmetry` and `diagonal` (the mass on the own position), means over layers and heads.

    Where `answers` [T] tell each position's answering one: `answer`, the mass on it in the head that has most, and
    `answer_near`, with its two neighbours, of the same head.
    """
    length = maps.mean.shape[-1]
    own = np.arange(length)
    found = {"symmetry": float(maps.symmetry.mean()), "diagonal": float(maps.mean[..., own, own].mean())}
    if answers is not None:
        on_it = maps.mean[..., own, answers].mean(-1)
        head = np.unravel_index(on_it.argmax(), on_it.shape)
        near = np.abs(own[None, :] - answers[:, None]) <= 1
        found["answer"] = float(on_it[head])
        found["answer_near"] = float(maps.mean[head][near].sum() / length)
    return found
