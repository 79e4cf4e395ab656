"""Decoder blocks in two styles: the paper's (LayerNorm, GELU, biases) and today's (RMSNorm, SwiGLU, none)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from twofold.attention.decoding import DecodeMask
from twofold.attention.latent import projections
from twofold.attention.layer import Attention, Place
from twofold.attention.projections import Projections
from twofold.attention.recurrent import RecurrentAttention, TokenMask
from twofold.attention.rotary import Rotation
from twofold.attention.scores import Scoring
from twofold.cache.kept import KeptRows
from twofold.models.architecture import Architecture
from twofold.models.configuration import TwofoldConfig


def norm(architecture: Architecture) -> nn.Module:
    """The block style's normalisation over the model width."""
    style = nn.LayerNorm if architecture.block == "paper" else nn.RMSNorm
    return style(architecture.width, eps=architecture.norm_epsilon)


ACTIVATED: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}
"""What `PlainMLP` has between its matrices, by the architecture's name for it."""


class PlainMLP(nn.Module):
    """W₂ f(W₁ x), with biases; `activation` names f, see `ACTIVATED`."""

    def __init__(self, width: int, hidden: int, activation: str = "gelu") -> None:
        super().__init__()
        self.activation = activation
        self.up_proj = nn.Linear(width, hidden)
        self.down_proj = nn.Linear(hidden, width)

    def forward(self, x_BTM: Tensor) -> Tensor:
        """[B, T, M] to [B, T, M]."""
        return self.down_proj(ACTIVATED[self.activation](self.up_proj(x_BTM)))


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


def mlp(architecture: Architecture) -> nn.Module:
    """The block style's MLP."""
    if architecture.block == "paper":
        return PlainMLP(architecture.width, architecture.mlp, architecture.activation)
    return SwigluMLP(architecture.width, architecture.mlp)


def dropout(architecture: Architecture) -> nn.Module:
    """Dropout on what a block adds; nothing where there is none, which takes less time."""
    return nn.Dropout(architecture.dropout) if architecture.dropout else nn.Identity()


class DecoderBlock(GradientCheckpointingLayer):
    """Pre-norm block: x + attention(norm(x)), then x + mlp(norm(x)), with dropout on what is added.

    `seam`: the projections of another block that this one uses; None for its own.
    """

    def __init__(self, config: TwofoldConfig, layer: int, seam: Projections | None = None) -> None:
        super().__init__()
        sizes = config.architecture
        self.attention_norm = norm(sizes)
        self.attention = attention(config, layer, seam)
        self.mlp_norm = norm(sizes)
        self.mlp = mlp(sizes)
        self.dropout = dropout(sizes)

    def forward(
        self,
        x_BTM: Tensor,
        rotation: Rotation | None,
        mask: Tensor | DecodeMask | TokenMask | None,
        cache: Cache | None,
        row_rotation: Rotation | None = None,
        borrowed: KeptRows | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, KeptRows | None]:
        """[B, T, M] to [B, T, M], and its rows where others read them; arguments as in `Attention`."""
        normed_BTM = self.attention_norm(x_BTM)
        attended = self.attention(normed_BTM, rotation, mask, cache, row_rotation, borrowed, **kwargs)
        x_BTM = x_BTM + self.dropout(attended.output_BTM)
        lent = attended.rows if self.attention.place.lends else None
        return x_BTM + self.dropout(self.mlp(self.mlp_norm(x_BTM))), lent


def attention(config: TwofoldConfig, layer: int, seam: Projections | None = None) -> Attention:
    """The attention of one decoder layer, with projections of its own or another layer's."""
    sizes = config.architecture
    owners = sizes.row_owners
    borrows, lends = owners[layer] != layer, owners.count(layer) > 1
    place = Place(sorted(set(owners)).index(owners[layer]), borrows, lends)
    made = seam or projections(sizes.at(layer).variant, sizes.layer_sizes(layer), fused=config.fused_projections)
    scoring = Scoring(sizes.scale_exponent, sizes.softcap)
    layer_class = RecurrentAttention if sizes.is_recurrent else Attention
    return layer_class(made, config, place=place, scoring=scoring, owns_projections=seam is None)
