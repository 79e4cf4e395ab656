"""One block of the encoder: attention over all positions and an MLP."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from twofold.attention.latent import projections
from twofold.attention.layer import Attention
from twofold.attention.position_term import position_term
from twofold.attention.rotary import Rotation
from twofold.models.encoder_configuration import TwofoldEncoderConfig


class EncoderMLP(nn.Module):
    """W₂ act(W₁ x), with biases."""

    def __init__(self, config: TwofoldEncoderConfig) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size)
        self.act = ACT2FN[config.hidden_act]
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x_BTM: Tensor) -> Tensor:
        """[B, T, M] to [B, T, M]."""
        return self.down_proj(self.act(self.up_proj(x_BTM)))


class EncoderBlock(GradientCheckpointingLayer):
    """Attention, then the MLP, each added to its input, with a norm after that ("post") or before ("pre")."""

    def __init__(self, config: TwofoldEncoderConfig) -> None:
        super().__init__()
        variant = config.parsed_variant
        self.is_pre_norm = config.norm_order == "pre"
        self.attention = Attention(projections(variant, config.layer_sizes), config, is_causal=False)
        self.position_term = position_term(
            variant.position_term, config.num_attention_heads, config.term_channels, per_head=config.term_per_head
        )
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.mlp = EncoderMLP(config)
        self.mlp_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout) if config.dropout else nn.Identity()

    def forward(
        self,
        x_BTM: Tensor,
        positions_BT: Tensor,
        rotation: Rotation | None,
        mask: Tensor | None,
        row_rotation: Rotation | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """[B, T, M] to [B, T, M]; arguments as in `Attention`."""
        terms = None if self.position_term is None else self.position_term(positions_BT)
        given_BTM = self.attention_norm(x_BTM) if self.is_pre_norm else x_BTM
        attended = self.attention(given_BTM, rotation, mask, row_rotation=row_rotation, terms=terms, **kwargs)
        x_BTM = x_BTM + self.dropout(attended.output_BTM)
        if self.is_pre_norm:
            return x_BTM + self.dropout(self.mlp(self.mlp_norm(x_BTM)))
        x_BTM = self.attention_norm(x_BTM)
        return self.mlp_norm(x_BTM + self.dropout(self.mlp(x_BTM)))
