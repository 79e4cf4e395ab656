"""A decoder block that also reads an encoder's output: self-attention, cross-attention, MLP, each after a norm."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from twofold.attention.cross import CrossAttention, MemorySpan
from twofold.attention.decoding import DecodeMask
from twofold.attention.rotary import Rotation
from twofold.attention.scores import Scoring
from twofold.cache.memory_cache import MemoryCache
from twofold.cache.row_cache import RowCache
from twofold.models.architecture import Architecture
from twofold.models.blocks import attention, dropout, mlp, norm
from twofold.models.configuration import TwofoldConfig
from twofold.variants.layout import RowLayout


class CrossDecoderBlock(GradientCheckpointingLayer):
    """x + attention(norm(x)), then x + cross-attention(norm(x), memory), then x + mlp(norm(x)); dropout on each sum.

    Both attentions have the configuration's variant, heads and scoring. Raises ValueError for variants that cannot
    read a memory, and for those that share something between layers.
    """

    def __init__(self, config: TwofoldConfig, layer: int) -> None:
        super().__init__()
        sizes = config.architecture
        _require_layers_apart(sizes)
        self.layer = layer
        self.attention_norm = norm(sizes)
        self.attention = attention(config, layer)
        self.cross_norm = norm(sizes)
        scoring = Scoring(sizes.scale_exponent, sizes.softcap)
        self.cross_attention = CrossAttention(sizes.variant, sizes.layer_sizes(layer), config, scoring=scoring)
        self.mlp_norm = norm(sizes)
        self.mlp = mlp(sizes)
        self.dropout = dropout(sizes)

    def forward(
        self,
        x_BTM: Tensor,
        memory_BSM: Tensor | None,
        rotation: Rotation | None,
        mask: Tensor | DecodeMask | None,
        sight: Tensor | MemorySpan | None = None,
        cache: MemoryCache | None = None,
        row_rotation: Rotation | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """[B, T, M] and a memory [B, S, M] to [B, T, M].

        `rotation`, `mask` and `row_rotation` are the self-attention's, as in `Attention`, and `sight` is what
        `sights.memory_sight` makes. The memory may be None once its rows are in the cache.
        """
        own = None if cache is None else cache.own
        attended = self.attention(self.attention_norm(x_BTM), rotation, mask, own, row_rotation, **kwargs)
        x_BTM = x_BTM + self.dropout(attended.output_BTM)
        kept = None if cache is None else cache.memory.layers[self.layer]
        rows = self.cross_attention.rows(memory_BSM, kept)
        x_BTM = x_BTM + self.dropout(self.cross_attention(self.cross_norm(x_BTM), rows, sight).output_BTM)
        return x_BTM + self.dropout(self.mlp(self.mlp_norm(x_BTM)))


def new_memory_cache(
    sizes: Architecture, capacity: int | None = None, memory_capacity: int | None = None, dtype: str | None = None
) -> MemoryCache:
    """An empty cache for `sizes.layers` blocks; capacities in tokens and `dtype` as in `RowCache`."""
    layouts, kv_heads, windows = sizes.cached_rows
    own = RowCache(len(windows), layouts, kv_heads, capacity, dtype=dtype, windows=windows)
    return MemoryCache(own, RowCache(sizes.layers, memory_layout(sizes), sizes.kv_heads, memory_capacity, dtype=dtype))


def memory_layout(sizes: Architecture) -> RowLayout:
    """The row that a layer keeps of each token of a memory."""
    return sizes.variant.row_layout(sizes.head_dim, 0)


def _require_layers_apart(sizes: Architecture) -> None:
    if sizes.variant.row_layers > 1 or sizes.variant.matrix_layers > 1:
        raise ValueError(
            f"{sizes.variant} shares rows or projections between layers, and blocks with cross-attention each have "
            "their own: leave CLA and tied out"
        )
