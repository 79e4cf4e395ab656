"""GPT-2's attention over its input: query, key and value are thirds of one `Conv1D` (x @ weight + bias)."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from twofold.folding.forms import Fold
from twofold.folding.inputs import FORMS as FORMS
from twofold.folding.inputs import Matrices, Parts, attend_inputs, is_plain, is_read_alone, obstacle, plan_inputs
from twofold.folding.inputs import stored_once as stored_once


class FoldedGPT2:
    """Forward of `GPT2Attention` over rows."""

    def forward(
        self: Any,
        hidden_states: Tensor,
        cache: Any = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        output_attentions: bool | None = False,
        **named: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the stock layer's; without a cache it is the stock layer's."""
        if cache is None:
            return super().forward(hidden_states, attention_mask=attention_mask, **named)  # type: ignore[misc]
        read_BTM, weights = attend_inputs(
            self, hidden_states, cache, attention_mask, _parts(self, hidden_states), named
        )
        return self.resid_dropout(self.c_proj(read_BTM)), weights


def plan_layer(model: PreTrainedModel, module: Any, name: str, form: str, facts: dict[str, Any]) -> Fold | None:
    """How a `GPT2Attention` folds; None for one across to an encoder, whose keys and values are made once."""
    if module.is_cross_attention:
        return None
    return plan_inputs(module, name, form, facts, FoldedGPT2, module.num_heads, module.embed_dim)


def weights_obstacle(module: Any, form: str) -> str | None:
    """Why this module's weights do not allow the form."""
    return obstacle(module, ("c_attn",), (Conv1D,))


def _parts(module: Any, x_BTM: Tensor) -> Parts:
    width, heads = module.embed_dim, (module.num_heads, module.head_dim)
    made = module.c_attn
    matrices = None
    if is_plain(made, (Conv1D,)) and is_read_alone(made):
        weight_NM, bias_N = made.weight.t(), made.bias
        query_BTM = F.linear(x_BTM, weight_NM[:width], bias_N[:width])
        _, key_HDM, value_HDM = weight_NM.unflatten(0, (3, *heads))
        matrices = Matrices(key_HDM, value_HDM, bias_N[2 * width :].unflatten(0, heads))
    else:
        query_BTM = made(x_BTM)[..., :width]

    def states(rows_BSM: Tensor) -> tuple[Tensor, Tensor]:
        if matrices is None:
            both_BSN = made(rows_BSM.contiguous())[..., width:]  # it makes a view of them
        else:
            both_BSN = F.linear(rows_BSM, weight_NM[width:], bias_N[width:])
        key_BSM, value_BSM = both_BSN.split(width, dim=-1)
        return tuple(one.unflatten(-1, heads).transpose(1, 2) for one in (key_BSM, value_BSM))

    eager = module.config._attn_implementation == "eager"
    return Parts(
        query_BTM.unflatten(-1, heads).transpose(1, 2),
        module.scaling,
        matrices,
        states,
        module.attn_dropout.p,
        module._upcast_and_reordered_attn if eager and module.reorder_and_upcast_attn else None,
    )
