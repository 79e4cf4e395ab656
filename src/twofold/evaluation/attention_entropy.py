"""How sharply a trained model attends: the entropy of its softmax on held-out text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from twofold.data.corpus import Document
from twofold.data.packing import Packing, cuts, item
from twofold.data.tokenizer import BYTES, Tokenizer
from twofold.data.tokens import tokenise
from twofold.evaluation.heldout import evaluation_mode

if TYPE_CHECKING:
    from twofold.attention.layer import Attended
    from twofold.models.decoder import TwofoldForCausalLM

WINDOWS = 8
SATURATED = 0.99


@dataclass(frozen=True)
class Sharpness:
    """Means over heads and query positions: `entropy` in nats, `relative_entropy` as a share of the largest possible,
    and `saturated`, the share of them that give one position more than `SATURATED` of the weight.
    """

    entropy: float
    relative_entropy: float
    saturated: float


@dataclass(frozen=True)
class AttentionEntropy:
    """The sharpness of all layers together and of each; None for a layer that has nothing to choose between."""

    overall: Sharpness
    layers: tuple[Sharpness | None, ...]


def attention_entropy(
    model: TwofoldForCausalLM,
    documents: Sequence[Document],
    context: int,
    *,
    windows: int = WINDOWS,
    packing: Packing = "packed",
    tokenizer: Tokenizer = BYTES,
) -> AttentionEntropy | None:
    """The entropy −Σ w log w of each query position's weights w, and its ratio to log n of the n that it could weigh.

    Averaged over layers, heads and the query positions with n ≥ 2 of up to `windows` windows of `context` tokens, taken
    at even distances from the held-out `documents`. n counts the positions that are visible (of a sliding window no
    more than it holds) and, where there are sinks, the sink, whose weight is part of w. Training that drives this
    entropy to zero becomes unstable, "entropy collapse" (Zhai et al., arXiv 2303.06296). Padding of the packing
    `padded` counts as it does in the loss.

    The weights are those of the eager path, one window and one layer at a time. None for a model without softmax
    (a linear recurrence), and where no position sees two. Raises ValueError if there is no text.
    """
    sizes = model.config.architecture
    if sizes.is_recurrent:
        return None
    cut = cuts(packing, tokenise(documents, tokenizer), context)
    if not len(cut):
        raise ValueError("Nothing to attend to: there is no held-out document.")
    totals = torch.zeros(sizes.layers, 4, dtype=torch.float64)
    chosen = np.unique(np.linspace(0, len(cut) - 1, windows).round().astype(int))
    with evaluation_mode(model), eager_attention(model), torch.no_grad():
        for window in chosen:
            items = item(packing, cut.tokens(int(window))[None], tokenizer.end)
            del items["shift_labels"]
            visible_T = items.get("position_ids", torch.arange(items["input_ids"].shape[1])[None])[0] + 1
            with _watched(model, visible_T, totals):
                model(**{name: tensor.to(model.device) for name, tensor in items.items()}, use_cache=False)
    overall = _sharpness(totals.sum(0))
    if overall is None:
        return None
    return AttentionEntropy(overall, tuple(_sharpness(of_layer) for of_layer in totals))


@contextmanager
def _watched(model: TwofoldForCausalLM, visible_T: Tensor, totals: Tensor) -> Iterator[None]:
    """Add what each layer's weights tell to its row of `totals`, and drop them before the next layer makes its own."""
    sizes = model.config.architecture

    def hook(layer: int) -> Any:
        reach_T = visible_T if sizes.windows[layer] is None else visible_T.clamp(max=sizes.windows[layer])

        def tell(module: torch.nn.Module, inputs: Any, attended: Attended) -> None:
            assert attended.weights is not None, "the eager path gives its weights"
            totals[layer] += tally(attended.weights[0], reach_T + sizes.sinks, has_sink=sizes.sinks)

        return tell

    handles = [
        block.attention.register_forward_hook(hook(layer))  # type: ignore[union-attr]
        for layer, block in enumerate(model.model.layers)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def tally(weights_HTS: Tensor, choices_T: Tensor, *, has_sink: bool = False) -> Tensor:
    """Of the query positions with at least 2 `choices_T`: summed entropy (nats), summed ratio to log(choices), how many
    are saturated, and how many there are; float64 [4].

    `weights_HTS` sum to 1 over S, or with a sink to less: the rest is the sink's.
    """
    counted_T = choices_T >= 2
    largest_T = choices_T[counted_T].double().log().to(weights_HTS.device)
    total = weights_HTS.new_zeros(4, dtype=torch.float64)
    for weights_TS in weights_HTS[:, counted_T.to(weights_HTS.device)]:
        exact_TS = weights_TS.double()
        if has_sink:
            exact_TS = torch.cat([exact_TS, (1 - exact_TS.sum(-1, keepdim=True)).clamp(min=0)], dim=-1)
        entropy_T = torch.special.entr(exact_TS).sum(-1)
        saturated = (exact_TS > SATURATED).any(-1).sum()
        count = torch.full_like(saturated, len(entropy_T))
        total += torch.stack([entropy_T.sum(), (entropy_T / largest_T).sum(), saturated.double(), count.double()])
    return total.cpu()


def _sharpness(totals: Tensor) -> Sharpness | None:
    *sums, count = totals.tolist()
    return Sharpness(*(value / count for value in sums)) if count else None


@contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """The path that gives weights, while the block lasts; then the model has its own again."""
    usual = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(usual)
