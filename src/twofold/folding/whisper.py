"""Whisper's decoder: its attention to its own tokens over its input. The key has no bias.

Attention across to the audio stays as it is: its keys and values are made once, and the encoder keeps no cache.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from twofold.folding.forms import Fold
from twofold.folding.inputs import FORMS as FORMS
from twofold.folding.inputs import attend_inputs, plan_inputs
from twofold.folding.inputs import stored_once as stored_once
from twofold.folding.inputs_linear import linear_parts
from twofold.folding.inputs_linear import weights_obstacle as weights_obstacle


class FoldedWhisper:
    """Forward of `WhisperAttention` in the decoder, to its own tokens, over rows."""

    def forward(
        self: Any,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        cache: Any = None,
        attention_mask: Tensor | None = None,
        output_attentions: bool = False,
        **named: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the stock layer's; without a cache it is the stock layer's."""
        named["output_attentions"] = output_attentions
        if cache is None:
            return super().forward(hidden_states, attention_mask=attention_mask, **named)  # type: ignore[misc]
        parts = linear_parts(self, hidden_states)
        read_BTM, weights = attend_inputs(self, hidden_states, cache, attention_mask, parts, named)
        return self.out_proj(read_BTM), weights


def plan_layer(model: PreTrainedModel, module: Any, name: str, form: str, facts: dict[str, Any]) -> Fold | None:
    """How a `WhisperAttention` folds; None for the encoder's, and for those across to it."""
    if not (module.is_decoder and module.is_causal):
        return None
    return plan_inputs(module, name, form, facts, FoldedWhisper, module.num_heads, module.embed_dim)
