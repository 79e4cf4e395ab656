"""What a step of decoding, and a prefill, of a published model move and compute, as `decoding` has it for our own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twofold.analysis.published import CacheLayer, Kept, PublishedCache
from twofold.analysis.published_fields import Fields
from twofold.analysis.roofline import Work
from twofold.variants.layout import item_bytes

if TYPE_CHECKING:
    from torch.nn import Module

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_PICKED = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_top_k", "moe_topk")
_OF_EXPERTS = re.compile(r"(^|\.)experts(\.|$)")


@dataclass(frozen=True)
class PublishedWeights:
    """Parameters of a model: `total`, those that a step only `looked_up` in, and those of routed `experts`.

    Each token uses `picked` of `expert_count` experts. `head` is the matrix that makes logits.
    """

    total: int
    looked_up: int = 0
    head: int = 0
    experts: int = 0
    expert_count: int = 1
    picked: int = 1

    @property
    def used(self) -> float:
        """Parameters that one token is multiplied with."""
        return self.total - self.looked_up - self.experts * (1 - self.picked / self.expert_count)

    def read(self, batch: int) -> float:
        """Parameters that a step of `batch` tokens reads: of the experts those that some token picks.

        Where all experts are picked alike, that is the share 1 − (1 − picked / count)^batch of them.
        """
        idle = (1 - self.picked / self.expert_count) ** batch
        return self.total - self.looked_up - self.experts * idle


def weights_of(model: Module) -> PublishedWeights:
    """The weights of a transformers model, with storage or without."""
    config: Any = model.config
    fields = Fields(config.get_text_config(decoder=True))
    expert_count, picked = fields.count(*_EXPERTS) or 1, fields.count(*_PICKED)
    named = {name: parameter.numel() for name, parameter in model.named_parameters()}
    experts = sum(size for name, size in named.items() if _OF_EXPERTS.search(name)) if picked else 0
    table: Any = model.get_input_embeddings()  # type: ignore[operator]
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    tied = head is not None and head.weight is table.weight
    return PublishedWeights(
        total=sum(named.values()),
        looked_up=0 if tied else table.weight.numel(),
        head=0 if head is None else head.weight.numel(),
        experts=experts,
        expert_count=expert_count if experts else 1,
        picked=min(picked or 1, expert_count) if experts else 1,
    )


def published_decode_work(
    cache: PublishedCache,
    weights: PublishedWeights,
    context: int,
    dtype: str,
    batch: int = 1,
    *,
    stored: bool = False,
) -> Work:
    """One step of `batch` sequences that hold `context` tokens each, as `decoding.decode_work`.

    Every row that the mathematics needs is read once by each layer that sees it, also where sparse attention would read
    fewer; with `stored`, every row that transformers stores. Each parameter is one multiply-accumulate per token.
    """
    rows = attention = 0
    for layer in cache.layers:
        seen = _seen(cache, layer)
        read = _seen(cache, layer, stored=True) if stored else seen
        rows += sum(kept.bytes(context, dtype, batch) * (2 if kept.is_state else 1) for kept in read)
        attention += sum(_macs(kept, layer, context) for kept in seen)
    return Work(
        weight_bytes=round(weights.read(batch) * item_bytes(dtype)),
        row_bytes=rows,
        macs=batch * round(weights.used + attention),
    )


def published_prefill_work(
    cache: PublishedCache, weights: PublishedWeights, context: int, dtype: str, batch: int = 1
) -> Work:
    """The pass over `batch` prompts of `context` tokens that fills the cache, as `decoding.prefill_work`.

    Keys and values are counted at their own widths, for every query head.
    """
    attention = sum(
        context * kept.rows(context) * layer.heads * (layer.key_dim + layer.value_dim)
        for layer in cache.layers
        for kept in _seen(cache, layer)
        if not kept.is_state
    )
    matrices = context * (weights.used - weights.head) + weights.head
    return Work(
        weight_bytes=round(weights.read(batch * context) * item_bytes(dtype)),
        row_bytes=cache.needed_bytes(context, dtype, batch),
        macs=batch * round(matrices + attention),
    )


def _seen(cache: PublishedCache, layer: CacheLayer, *, stored: bool = False) -> tuple[Kept, ...]:
    """The rows that a layer reads: its own, or those of the layer whose rows it reuses."""
    owner = layer if layer.owner is None else cache.layers[layer.owner]
    return owner.stored if stored and owner.stored is not None else owner.needed


def _macs(kept: Kept, layer: CacheLayer, context: int) -> int:
    """Of one token: H·(key + value) for each row, and two for each number of a state."""
    if kept.is_state:
        return 2 * kept.numbers
    return kept.rows(context) * layer.heads * (kept.layout.key_dim + kept.layout.value.width)
