"""What is minimised: the student's distance to its teacher, or the cross entropy of the text alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from twofold.healing.divergence import TeacherLogits, token_loss
from twofold.models.decoder import TwofoldForCausalLM


def cross_entropy(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Nats per token that follows, the mean over a batch; logits of a Twofold model are never held all at once."""
    if not isinstance(model, TwofoldForCausalLM):
        logits_BTV = model(**_asked(inputs), use_cache=False).logits
        return F.cross_entropy(logits_BTV.flatten(0, 1).float(), inputs["shift_labels"].flatten())
    hidden_BTM = _read(model, inputs, layers=False)[0]
    return token_loss(hidden_BTM.flatten(0, 1), model.lm_head.weight, inputs["shift_labels"].flatten(), None)


class Distillation:
    """The loss of `HealingSettings`: divergence of the teacher's next token, cross entropy, error of layers' outputs.

    With `layer_loss` w, w · mean over layers and tokens of ‖h_s − h_t‖² / ‖h_t‖² is added, h the output of a layer (of
    the last, after the final norm). Each token is measured by its own teacher's norm: in trained models a few tokens,
    the first above all, have outputs that are larger by orders of magnitude, and would be all that counts in a mean
    over tokens (Sun et al. 2024, "massive activations", arXiv 2402.17762).
    """

    def __init__(
        self, teacher: PreTrainedModel, *, temperature: float = 1.0, layer_loss: float = 0.0, cross_entropy: float = 0.0
    ) -> None:
        self.teacher = teacher.eval()
        self.temperature, self.layer_loss, self.cross_entropy = temperature, layer_loss, cross_entropy

    def __call__(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """The loss of a batch of windows, `input_ids` and `shift_labels` [B, T]."""
        assert isinstance(model, TwofoldForCausalLM)
        layers = bool(self.layer_loss)
        logits, taught = self._taught(inputs, layers)
        hidden_BTM, learnt = _read(model, inputs, layers)
        loss = token_loss(
            hidden_BTM.flatten(0, 1),
            model.lm_head.weight,
            inputs["shift_labels"].flatten(),
            logits,
            temperature=self.temperature,
            cross_entropy=self.cross_entropy,
        )
        return loss + self.layer_loss * layer_error(learnt, taught) if layers else loss

    @torch.no_grad()
    def _taught(self, inputs: dict[str, Tensor], layers: bool) -> tuple[TeacherLogits, Sequence[Tensor]]:
        device = inputs["input_ids"].device
        if self.teacher.device != device:
            self.teacher.to(device)
        if isinstance(self.teacher, TwofoldForCausalLM):
            hidden_BTM, states = _read(self.teacher, inputs, layers)
            return partial(_logits, hidden_BTM.flatten(0, 1), self.teacher.lm_head), states
        # Other families do more to their logits than the head does, as a soft cap.
        made = self.teacher(**_asked(inputs), use_cache=False, output_hidden_states=layers)
        return made.logits.flatten(0, 1).__getitem__, made.hidden_states or ()


def layer_error(learnt: Sequence[Tensor], taught: Sequence[Tensor]) -> Tensor:
    """Mean over layers and tokens of ‖h_s − h_t‖² / ‖h_t‖², of hidden states [B, T, M], as many of both.

    The first, the embeddings, is left out: nothing before it differs.
    """
    errors = [
        ((one - other).square().sum(-1) / other.square().sum(-1)).mean()
        for one, other in zip(learnt[1:], taught[1:], strict=True)
    ]
    return torch.stack(errors).mean()


def require_equal_layers(model: PreTrainedModel, teacher: PreTrainedModel) -> None:
    """Raise ValueError where outputs of layers cannot be compared: they are more, or of another width."""
    for what, name in (("layers", "num_hidden_layers"), ("dims of width", "hidden_size")):
        own, taught = getattr(model.config, name), getattr(teacher.config, name)
        if own != taught:
            raise ValueError(
                f"the model has {own} {what} and its teacher {taught}: outputs of layers can be compared where there "
                "are equally many; leave --layer-loss out"
            )


def _read(model: TwofoldForCausalLM, inputs: dict[str, Tensor], layers: bool) -> tuple[Tensor, Sequence[Tensor]]:
    made = model.model(**_asked(inputs), use_cache=False, output_hidden_states=layers)
    return made.last_hidden_state, made.hidden_states if layers else ()


def _asked(inputs: dict[str, Tensor]) -> dict[str, Any]:
    return {name: tensor for name, tensor in inputs.items() if name not in ("shift_labels", "labels")}


@torch.no_grad()
def _logits(hidden_NM: Tensor, head: nn.Module, places: slice) -> Tensor:
    logits: Tensor = head(hidden_NM[places])
    return logits
