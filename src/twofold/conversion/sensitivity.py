"""What sharing in one layer costs the whole model, measured layer by layer, so that layers can be weighed by it.

A layer that loses a tenth of its keys and values may cost much or nothing. The measure is the divergence of the model's
predictions where that layer alone is made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from twofold.conversion.affine import biases_apart
from twofold.evaluation.heldout import evaluation_mode
from twofold.explain.sharing import Rows
from twofold.explain.sharing_places import places_of, replaced

TOKENS = 512
"""Tokens that divergences are taken on: their order over layers is wanted, and no exact number."""
LEAST = 1e-3
"""Of the mean over layers: no layer is worth nothing because a few tokens say so."""


@torch.no_grad()
def sensitivities(
    model: PreTrainedModel,
    remade: Sequence[Rows],
    ids_BT: Tensor,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[float, ...]:
    """For each layer KL(p ‖ p') per token in nats, p' with the layer's keys and values by its `remade` maps, which have
    biases as a last column where the layer's own have biases.

    On the first `TOKENS` tokens of ids [N, T]. At least `LEAST` of the mean. The model's weights are the same bits
    afterwards. `progress` is called with what is done, layers done, and layers in all.

    Raises ValueError where a layer's keys and values are not made by a matrix each.
    """
    ids_1T = ids_BT.flatten()[: min(TOKENS, ids_BT.shape[1])][None]
    found = []
    with evaluation_mode(model):
        own_TV = _log_chances(model, ids_1T)
        for layer, rows in enumerate(remade):
            places = places_of(model, layer)
            if isinstance(places, str):
                raise ValueError(f"layer {layer} cannot be weighed: {places}")
            biased = places.rows.key_bias_R is not None
            with replaced(places, biases_apart(rows) if biased else rows):
                made_TV = _log_chances(model, ids_1T)
            found.append(float(F.kl_div(made_TV, own_TV, log_target=True, reduction="batchmean")))
            if progress is not None:
                progress("weighing", layer + 1, len(remade))
    least = LEAST * sum(found) / len(found)
    return tuple(max(one, least) for one in found)


def _log_chances(model: PreTrainedModel, ids_1T: Tensor) -> Tensor:
    return model(ids_1T, use_cache=False).logits[0].float().log_softmax(-1)
