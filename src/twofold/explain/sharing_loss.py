"""What sharing keys and values costs in one layer at a time: foretold from weights and inputs, and measured.

Maps are fitted on the first half of a text and losses are taken on the second, so that no token serves for both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from twofold.evaluation.heldout import evaluation_mode
from twofold.explain.sharing import Rows, inputs_of, joint, plain_inputs, value_from_key
from twofold.explain.sharing_places import Places, places_of, replaced
from twofold.explain.weights import OWN

Measures = dict[str, float | list[float]]
ENCODER = OWN[1]


class Halves(NamedTuple):
    """Windows of token ids: what maps are fitted on, and what is scored; [B, T] each, with no token in common."""

    fitted_BT: Tensor  # noqa: N815
    scored_BT: Tensor  # noqa: N815

    def fitted(self, x_BTM: Tensor) -> Tensor:
        """[N, M]: what a layer is given for the fitted tokens, of what it is given when all windows are read."""
        windows, length = self.fitted_BT.shape
        return x_BTM[:windows, :length].flatten(0, 1)


def halves(ids_BT: Tensor) -> Halves:
    """The first ⌊B / 2⌋ windows and the others; of one window the first ⌊T / 2⌋ tokens and the others."""
    if len(ids_BT) > 1:
        return Halves(*ids_BT.tensor_split([len(ids_BT) // 2]))
    return Halves(*ids_BT.tensor_split([ids_BT.shape[1] // 2], dim=1))


def require_losses(model: PreTrainedModel, parts: Halves) -> None:
    """ValueError for a model that predicts no next token, and for a text that leaves none to score."""
    if model.config.model_type == ENCODER or model.get_output_embeddings() is None:
        raise ValueError("the model predicts no next token, so that sharing has no loss: leave --sharing out")
    if parts.scored_BT.shape[1] < 2:
        raise ValueError(
            f"{parts.scored_BT.shape[1]} token is left to score sharing on, and its first never: give more text"
        )


def foretold_by_weights(model: PreTrainedModel, layer: int) -> Measures:
    """`dims`, the n = G·D that `joint` shares, and what each method loses where nothing is known of its input.

    Empty where keys and values are not made by a matrix each.
    """
    places = places_of(model, layer)
    if isinstance(places, str):
        return {}
    inputs = plain_inputs(places.rows.key_RM.shape[1])
    made, mapped = joint(places.rows, inputs, places.dims), value_from_key(places.rows, inputs, places.kv_heads)
    lost = {"joint_predicted_weights": made.lost, "value_from_key_predicted_weights": mapped.lost}
    return {"dims": float(places.dims), **lost}


def foretold_by_inputs(model: PreTrainedModel, layer: int, x_NM: Tensor) -> tuple[Measures, dict[str, Rows]]:
    """What each method loses on these inputs (`_predicted`; of values from keys by head as well), and the maps that it
    makes, in the layer's dtype.

    NaN and no maps where the inputs are no more than the dims that are fitted, since nothing is lost then. Empty where
    keys and values are not made by a matrix each.
    """
    places = places_of(model, layer)
    if isinstance(places, str):
        return {}, {}
    inputs, fitted = inputs_of(x_NM), len(x_NM)
    found: Measures = {"joint_predicted": math.nan, "value_from_key_predicted": math.nan}
    made: dict[str, Rows] = {}
    if fitted > places.dims:
        shared = joint(places.rows, inputs, places.dims)
        found["joint_predicted"], made["joint"] = shared.lost, _like(places.rows, shared.rows(places.rows))
    if fitted > places.dims // places.kv_heads:
        mapped = value_from_key(places.rows, inputs, places.kv_heads)
        found |= {"value_from_key_predicted": mapped.lost, "value_from_key_predicted_heads": mapped.lost_G.tolist()}
        made["value_from_key"] = _like(places.rows, mapped.rows(places.rows))
    return found, made


def _like(own: Rows, made: Rows) -> Rows:
    """In the dtype of the layer's own."""
    return Rows(*(None if one is None else one.to(own.key_RM.dtype) for one in made))  # type: ignore[arg-type]


def text_loss(model: PreTrainedModel, ids_BT: Tensor) -> float:
    """Nats per token of a causal language model on each window's tokens but its first; one window at a time."""
    nats = 0.0
    with evaluation_mode(model), torch.no_grad():
        for window_1T in ids_BT.to(model.device).split(1):
            logits_TV = model(input_ids=window_1T, use_cache=False).logits[0, :-1]
            dtype = torch.promote_types(logits_TV.dtype, torch.float32)
            nats += float(F.cross_entropy(logits_TV.to(dtype), window_1T[0, 1:], reduction="sum"))
    return nats / ids_BT[:, 1:].numel()


def own_loss(model: PreTrainedModel, parts: Halves) -> float:
    """The model's own `text_loss` on the scored half. ValueError where it is not finite: nothing can be added to it."""
    loss = text_loss(model, parts.scored_BT)
    if not math.isfinite(loss):
        raise ValueError(
            f"the model's loss on the text is {loss}, so that sharing adds nothing to it: its weights hold NaN, or its "
            "logits overflow; leave --sharing out"
        )
    return loss


def measured(
    model: PreTrainedModel,
    fitted: Mapping[int, Mapping[str, Rows]],
    scored_BT: Tensor,
    baseline: float,
    progress: Callable[[int, int], None],
) -> dict[int, Measures]:
    """By layer what each method's maps of that layer alone add to `baseline`, the model's own loss.

    `joint_loss` and `value_from_key_loss` in nats per token, and `_perplexity_ratio`, the exponential of that. Weights
    are as they were afterwards, also where it was interrupted.
    """
    total = sum(map(len, fitted.values()))
    done, found = 0, {}
    for layer, methods in fitted.items():
        if not methods:
            continue
        places = places_of(model, layer)
        assert isinstance(places, Places)
        found[layer] = Measures()
        for method, rows in methods.items():
            progress(done, total)
            done += 1
            with replaced(places, rows):
                added = text_loss(model, scored_BT) - baseline
            found[layer] |= {f"{method}_loss": added, f"{method}_perplexity_ratio": math.exp(min(added, 700.0))}
    return found
