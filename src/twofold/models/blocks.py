"""Decoder blocks in two styles: the paper's (LayerNorm, GELU, biases) and today's (RMSNorm, SwiGLU, none)."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from twofold.attention.decoding import DecodeMask
from twofold.attention.layer import Attention
from twofold.attention.projections import Projections
from twofold.attention.rotary import Rotation
from twofold.models.architecture import Architecture
from twofold.models.configuration import TwofoldConfig


def norm(architecture: Architecture) -> nn.Module:
    """The block style's normalisation over the model width."""
    style = nn.LayerNorm if architecture.block == "paper" else nn.RMSNorm
    return style(architecture.width, eps=architecture.norm_epsilon)


class GeluMLP(nn.Module):
    """W₂ GELU(W₁ x), with biases."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear(width, hidden)
        self.down_proj = nn.Linear(hidden, width)

    def forward(self, x_BTM: Tensor) -> Tensor:
        """[B, T, M] to [B, T, M]."""
        return self.down_proj(F.gelu(self.up_proj(x_BTM)))


class SwigluMLP(nn.Module):
    """W₃ (SiLU(W₁ x) ⊙ W₂ x), Shazeer 2020, arXiv 2002.05202; no biases."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x_BTM: Tensor) -> Tensor:
        """[B, T, M] to [B, T, M]."""
        return self.down_proj(F.silu(self.gate_proj(x_BTM)) * self.up_proj(x_BTM))


class DecoderBlock(GradientCheckpointingLayer):
    """Pre-norm block: x + attention(norm(x)), then x + mlp(norm(x)), with dropout on what is added."""

    def __init__(self, config: TwofoldConfig, layer_index: int) -> None:
        super().__init__()
        sizes = config.architecture
        projections = Projections(
            sizes.variant,
            width=sizes.width,
            heads=sizes.heads,
            head_dim=sizes.head_dim,
            bias=sizes.biases,
            fused=config.fused_projections,
        )
        self.attention_norm = norm(sizes)
        self.attention = Attention(projections, config, layer_index=layer_index, heads=sizes.heads)
        self.mlp_norm = norm(sizes)
        self.mlp = (GeluMLP if sizes.block == "paper" else SwigluMLP)(sizes.width, sizes.mlp)
        self.dropout = nn.Dropout(sizes.dropout) if sizes.dropout else nn.Identity()

    def forward(
        self,
        x_BTM: Tensor,
        rotation: Rotation | None,
        mask: Tensor | DecodeMask | None,
        cache: Cache | None,
        **kwargs: Any,
    ) -> Tensor:
        """[B, T, M] to [B, T, M]; arguments as in `Attention`."""
        read_BTM, _ = self.attention(self.attention_norm(x_BTM), rotation, mask, cache, **kwargs)
        x_BTM = x_BTM + self.dropout(read_BTM)
        return x_BTM + self.dropout(self.mlp(self.mlp_norm(x_BTM)))
