"""Whether a converted model computes what the original does, beside what the original's own rounding is."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from twofold.folding.parity import implementation

SEQUENCES, TOKENS = 2, 64
FAULT = 1e-4
"""Of the largest logit: rounding does not reach it in float32, and an exchanged matrix passes it by far."""


@dataclass(frozen=True)
class Check:
    """Two models on random tokens, in float32, or in float64 where the original is.

    Differences are the largest of any logit: between the two, and the original's own, SDPA against eager attention.
    """

    sequences: int
    tokens: int
    largest_logit: float
    max_logit_difference: float
    own_difference: float

    @property
    def is_within(self) -> bool:
        """Whether the difference is at most twice the original's own."""
        return self.max_logit_difference <= 2 * self.own_difference

    @property
    def is_fault(self) -> bool:
        """Whether no rounding explains the difference."""
        return not (self.is_within or self.max_logit_difference <= FAULT * self.largest_logit)

    def as_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self) | {"within_twice_own": self.is_within}


def compare(original: PreTrainedModel, made: PreTrainedModel, seed: int = 0) -> Check:
    """Logits of both on random tokens, in evaluation mode; neither changes."""
    config = original.config
    tokens = min(TOKENS, config.max_position_embeddings)
    generator = torch.Generator().manual_seed(seed)
    ids_BT = torch.randint(config.vocab_size, (SEQUENCES, tokens), generator=generator)
    first, second = _exact(original), _exact(made)
    with implementation(first, "sdpa"):
        logits_BTV = _logits(first, ids_BT)
    with implementation(first, "eager"):
        eager_BTV = _logits(first, ids_BT)
    return Check(
        sequences=SEQUENCES,
        tokens=tokens,
        largest_logit=float(logits_BTV.abs().max()),
        max_logit_difference=_largest(logits_BTV, _logits(second, ids_BT)),
        own_difference=_largest(logits_BTV, eager_BTV),
    )


@torch.no_grad()
def _logits(model: PreTrainedModel, ids_BT: Tensor) -> Tensor:
    logits_BTV: Tensor = model(ids_BT, use_cache=False).logits.double()
    return logits_BTV


def _largest(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def _exact(model: PreTrainedModel) -> PreTrainedModel:
    """The model, or a copy in float32 of one that computes in fewer bits."""
    if model.dtype in (torch.float32, torch.float64) and not model.training:
        return model
    made: PreTrainedModel = copy.deepcopy(model).eval()
    return made if made.dtype == torch.float64 else made.float()
