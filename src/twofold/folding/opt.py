"""OPT's attention over its input, with three linear projections; the query is scaled before the scores are made.

Where `do_layer_norm_before` is off (OPT-350M), the layer's norm comes after attention, and the row is what attention is
given all the same.
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


class FoldedOPT:
    """Forward of `OPTAttention` over rows."""

    def forward(
        self: Any,
        hidden_states: Tensor,
        cache: Any = None,
        attention_mask: Tensor | None = None,
        output_attentions: bool = False,
        **named: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the stock layer's; without a cache it is the stock layer's."""
        if cache is None:
            return super().forward(hidden_states, attention_mask=attention_mask, **named)  # type: ignore[misc]
        parts = linear_parts(self, hidden_states)
        read_BTM, weights = attend_inputs(self, hidden_states, cache, attention_mask, parts, named)
        return self.out_proj(read_BTM), weights


def plan_layer(model: PreTrainedModel, module: Any, name: str, form: str, facts: dict[str, Any]) -> Fold:
    """How an `OPTAttention` folds."""
    return plan_inputs(module, name, form, facts, FoldedOPT, module.num_heads, module.embed_dim)
