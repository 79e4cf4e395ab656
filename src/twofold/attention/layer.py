"""The attention layer: queries and rows from the seam, scores over the rows, output through the seam."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache

from twofold.attention.decoding import DecodeMask, decode
from twofold.attention.projections import Projections
from twofold.attention.rotary import Rotation
from twofold.attention.scores import attend, keys_and_values


class Attention(nn.Module):
    """Self-attention of one block. The same code runs with and without a cache.

    `config` is the transformers configuration that names the attention implementation, which may change later.
    """

    def __init__(self, projections: Projections, config: PreTrainedConfig, *, layer_index: int, heads: int) -> None:
        super().__init__()
        self.projections = projections
        self.config = config
        self.layer_index = layer_index
        variant = projections.variant
        self.layout = variant.row_layout(projections.head_dim)
        self.num_key_value_groups = heads // variant.kv_heads_for(heads)
        self.is_causal = True

    def forward(
        self,
        x_BTM: Tensor,
        rotation: Rotation | None = None,
        mask: Tensor | DecodeMask | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """[B, T, M] to [B, T, M], and the attention weights where the implementation gives them.

        `cache` appends this layer's rows and hands back all of them; `mask` as in `scores.attend`, or that of a decode
        step, which reads the rows as the cache keeps them.
        """
        query_BTHD, rows_BTGW = self.projections(x_BTM, rotation)
        query_BHTD, rows_BGSW = query_BTHD.transpose(1, 2), rows_BTGW.transpose(1, 2)
        if isinstance(mask, DecodeMask):
            assert cache is not None, "a decode step reads a cache"
            kept = cache.layers[self.layer_index].append(rows_BGSW)
            read_BTHD = decode(query_BHTD, kept, self.layout, mask)
            return self.projections.output(read_BTHD, rotation), None
        if cache is not None:
            rows_BGSW, _ = cache.update(rows_BGSW, None, self.layer_index)
        key_BGSD, value_BGSD = keys_and_values(self.layout, rows_BGSW)
        implementation = self.config._attn_implementation or "eager"
        read_BTHD, weights = attend(self, query_BHTD, key_BGSD, value_BGSD, mask, implementation, **kwargs)
        return self.projections.output(read_BTHD, rotation), weights
