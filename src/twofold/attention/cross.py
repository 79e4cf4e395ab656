"""Cross-attention: queries from a decoder, rows from an encoder's output, the memory (arXiv 1706.03762, section 3.2.3).

A memory's rows are made once and then read at every step, so that what is shared is saved where it counts most: with
K=V a memory of S tokens keeps S·G·D numbers per layer, and QKV twice as many. Rows have no positions of their own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from twofold.attention.layer import Attended
from twofold.attention.projections import Projections
from twofold.attention.scores import Scoring, attend, keys_and_values
from twofold.cache.kept import KeptRows
from twofold.cache.layer import RowLayer
from twofold.kernels.decode import decode_attention
from twofold.variants.choices import PositionTerm, Recurrence
from twofold.variants.tensors import LayerSizes
from twofold.variants.variant import Variant


class MemorySpan(NamedTuple):
    """What few queries see of a memory: of sequence b the rows from `starts_B` to `lengths_B` (int64), or all.

    `tokens` are those of the mask that said so, where there was one.
    """

    starts_B: Tensor | None = None  # noqa: N815
    lengths_B: Tensor | None = None  # noqa: N815
    tokens: int | None = None

    def check(self, rows: KeptRows) -> None:
        """Raise ValueError for rows of another number of tokens than the mask had that this comes from."""
        if self.tokens is not None and self.tokens != rows.heads_BGSW.shape[2]:
            raise _another_length(self.tokens, rows)


class CrossAttention(nn.Module):
    """Attention of decoder positions over all rows of a memory; no rotary.

    It makes its own projections of `sizes`, whose rotary dims do not count here. `config` names the attention
    implementation, as in `Attention`. Raises ValueError for variants that have no meaning here.
    """

    def __init__(
        self, variant: Variant, sizes: LayerSizes, config: PreTrainedConfig, *, scoring: Scoring | None = None
    ) -> None:
        super().__init__()
        _require_meaning(variant)
        self.projections = Projections(variant, replace(sizes, rotary_dims=0, borrows=False))
        self.config = config
        self.scoring = scoring or Scoring()
        self.is_causal = False
        self.layout = self.projections.layout
        self.num_key_value_groups = sizes.heads // self.projections.score_heads
        self.scale = self.scoring.scale(self.projections.key_dim)

    def rows(self, memory_BSM: Tensor | None, layer: RowLayer | None = None) -> KeptRows:
        """The rows of a memory [B, S, M]; with a `layer` they are made and kept there once, and then read from there.

        Once there are rows `memory_BSM` may be None, and is not read: reset the layer for another memory. Raises
        ValueError for no memory where rows have to be made, and for one of another shape than that of the rows.
        """
        if layer is not None and layer.get_seq_length() > 0:
            kept = layer.kept()
            _check_same_shape(memory_BSM, kept)
            return kept
        if memory_BSM is None:
            raise ValueError("no rows of a memory are kept yet: give the encoder's output at the first step")
        if memory_BSM.ndim != 3 or memory_BSM.shape[2] != self.projections.sizes.width:
            raise ValueError(
                f"a memory must be [B, S, {self.projections.sizes.width}], as wide as the decoder, "
                f"not {list(memory_BSM.shape)}"
            )
        heads_BGSW = self.projections.rows_of(memory_BSM)[0].transpose(1, 2)
        return KeptRows(heads_BGSW) if layer is None else layer.append(heads_BGSW)

    def forward(self, x_BTM: Tensor, rows: KeptRows, sight: Tensor | MemorySpan | None = None) -> Attended:
        """[B, T, M] and the rows of a memory to [B, T, M], the weights where they are made, and these rows.

        `sight` is None for all rows, a mask [B, 1, T, S] as in `scores.attend`, or a span of rows for a decode kernel.
        """
        query_BHTD = self.projections(x_BTM, None, borrows=True).query_BTHD.transpose(1, 2)
        if len(x_BTM) != len(rows.heads_BGSW):
            raise ValueError(f"there are {len(x_BTM)} sequences and memories of {len(rows.heads_BGSW)}: give one each")
        if isinstance(sight, MemorySpan):
            sight.check(rows)
            read_BTHD, weights = self._read(query_BHTD, rows, sight), None
        else:
            if sight is not None and sight.shape[-1] != rows.heads_BGSW.shape[2]:
                raise _another_length(sight.shape[-1], rows)
            key_BGSD, value_BGSD = keys_and_values(self.layout, KeptRows(*rows.to(query_BHTD.dtype)))
            read_BTHD, weights = attend(
                self,
                query_BHTD,
                key_BGSD,
                value_BGSD,
                sight,
                self.config._attn_implementation or "eager",
                scale=self.scale,
                softcap=self.scoring.softcap,
                sinks_H=self.projections.sinks,
            )
        return Attended(self.projections.output(read_BTHD, None), weights, rows)

    def _read(self, query_BHTD: Tensor, rows: KeptRows, span: MemorySpan) -> Tensor:
        """[B, T, H, D]. To the kernel, positions are causal among themselves and heads are not: T go as more heads."""
        assert self.projections.sinks is None, "kernels have no sinks"
        read_BN1D = decode_attention(
            query_BHTD.flatten(1, 2).unsqueeze(2),
            rows.heads_BGSW,
            key=self.layout.key,
            value=self.layout.value,
            scale=self.scale,
            softcap=self.scoring.softcap,
            starts_B=span.starts_B,
            lengths_B=span.lengths_B,
            scales_BGS=rows.scales_BGS,
        )
        return read_BN1D.unflatten(1, query_BHTD.shape[1:3]).squeeze(3).transpose(1, 2)


def _another_length(tokens: int, rows: KeptRows) -> ValueError:
    return ValueError(
        f"the mask covers {tokens} tokens, and the memory has {rows.heads_BGSW.shape[2]}: give one for all"
    )


def memory_span(real_BS: Tensor | None) -> MemorySpan | None:
    """The span of a boolean mask that is False for padding, on whichever side; None where padding lies between."""
    if real_BS is None:
        return MemorySpan()
    if bool(real_BS.all()):
        return MemorySpan(tokens=real_BS.shape[1])
    starts_B = real_BS.int().argmax(dim=1)
    lengths_B = starts_B + real_BS.sum(dim=1)
    at_S = torch.arange(real_BS.shape[1])
    contiguous_BS = (at_S >= starts_B[:, None]) & (at_S < lengths_B[:, None])
    return MemorySpan(starts_B, lengths_B, real_BS.shape[1]) if torch.equal(real_BS, contiguous_BS) else None


def _require_meaning(variant: Variant) -> None:
    if variant.needs_rotary_part:
        raise ValueError(f"{variant} needs rotary positions, and a memory's rows have none: choose another variant")
    if variant.recurrence is not Recurrence.NONE:
        raise ValueError(f"{variant} keeps a state, and cross-attention reads rows: choose another variant")
    if variant.position_term is not PositionTerm.NONE:
        term = variant.position_term.value
        raise ValueError(f"{variant}: the {term} term relates positions of one sequence: drop the {term}")


def _check_same_shape(memory_BSM: Tensor | None, kept: KeptRows) -> None:
    batch, _, tokens, _ = kept.heads_BGSW.shape
    if memory_BSM is not None and memory_BSM.shape[:2] != (batch, tokens):
        raise ValueError(
            f"rows of a memory of {batch} sequences and {tokens} tokens are kept, and this one has "
            f"{memory_BSM.shape[0]} and {memory_BSM.shape[1]}: reset the cache for another memory"
        )
