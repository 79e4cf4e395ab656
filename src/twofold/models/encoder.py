"""The encoder: a stack in which every position sees every other, an ordinary Hugging Face model.

It holds what the synthetic tasks of arXiv 2606.04032 need: tokens or given embeddings, positions, blocks, and a head
for each token. Here the variants with `+` have their place, whose term on the scores no causal decoder takes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForTokenClassification, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, TokenClassifierOutput
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from twofold.attention.latent import projections
from twofold.attention.layer import Attention
from twofold.attention.position_term import ScoreTerm, position_term, sinusoid
from twofold.attention.rotary import Rotation, rotation
from twofold.attention.treatments import turned_on_read
from twofold.models import positions
from twofold.models.encoder_configuration import TwofoldEncoderConfig

WITH_TERMS = ("eager", "sdpa")
"""Attention implementations that take a float mask, which a term on the scores needs."""


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


class TwofoldEncoderPreTrainedModel(PreTrainedModel):
    """What transformers needs to know of every Twofold encoder."""

    config_class = TwofoldEncoderConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ("EncoderBlock",)
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_record_outputs = {"hidden_states": EncoderBlock, "attentions": Attention}  # noqa: RUF012 (read-only there)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, ScoreTerm):
            module.reset()
        else:
            super()._init_weights(module)


class TwofoldEncoder(TwofoldEncoderPreTrainedModel):
    """Embeddings, positions and blocks, and with pre-norm blocks a last norm."""

    def __init__(self, config: TwofoldEncoderConfig) -> None:
        super().__init__(config)
        width, learned = config.hidden_size, config.positions == "learned"
        self.embed_tokens = nn.Embedding(config.vocab_size, width) if config.vocab_size else None
        self.embed_positions = nn.Embedding(config.max_position_embeddings, width) if learned else None
        self.layers = nn.ModuleList(EncoderBlock(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(width, eps=config.norm_eps) if config.norm_order == "pre" else nn.Identity()
        self.post_init()

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Token ids [B, T], or embeddings [B, T, M], to hidden states [B, T, M].

        `attention_mask` [B, T], 0 for padding, which nobody sees; outputs there mean nothing. `position_ids` [B, T];
        by default they count what is not padding, so that a padded sequence gives what it gives alone.
        """
        self._require_terms_computable()
        x_BTM = self._embedded(input_ids, inputs_embeds)
        if position_ids is None:
            position_ids = positions.counted(x_BTM, attention_mask)
        if self.embed_positions is not None:
            x_BTM = x_BTM + positions.looked_up(self.embed_positions, position_ids)
        elif self.config.positions == "sinusoidal":
            width = self.config.hidden_size
            x_BTM = x_BTM + sinusoid(position_ids, width, period=width).to(x_BTM.dtype)
        mask = create_bidirectional_mask(self.config, x_BTM, attention_mask)
        by = self._rotation(position_ids, x_BTM.dtype)
        row_rotation = by if turned_on_read(self.config.parsed_variant) else None
        for layer in self.layers:
            x_BTM = layer(x_BTM, position_ids, by, mask, row_rotation, **kwargs)
        return BaseModelOutput(last_hidden_state=self.norm(x_BTM))

    def _embedded(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        if inputs_embeds is not None:
            return inputs_embeds
        if self.embed_tokens is None:
            raise ValueError("this encoder has no token embedding (vocab_size 0): give inputs_embeds")
        return self.embed_tokens(input_ids)

    def _rotation(self, positions_BT: Tensor, dtype: torch.dtype) -> Rotation | None:
        dims = self.config.rotated_dims
        return rotation(positions_BT, dims, self.config.rope_theta, dtype) if dims else None

    def _require_terms_computable(self) -> None:
        implementation = self.config._attn_implementation or "eager"
        if self.layers[0].position_term is not None and implementation not in WITH_TERMS:
            raise ValueError(
                f"attn_implementation {implementation!r} takes no float mask, which the term of "
                f"{self.config.variant} needs: use {' or '.join(WITH_TERMS)}"
            )


class TwofoldForTokenClassification(TwofoldEncoderPreTrainedModel):
    """The encoder with the source's head: for each position W₂ ReLU(LayerNorm(W₁ x)), to `num_labels` classes."""

    def __init__(self, config: TwofoldEncoderConfig) -> None:
        super().__init__(config)
        self.model = TwofoldEncoder(config)
        self.classifier = nn.Sequential(
            nn.Linear(config.hidden_size, config.hidden_size),
            nn.LayerNorm(config.hidden_size, eps=config.norm_eps),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.hidden_size, config.num_labels),
        )
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> TokenClassifierOutput:
        """As `TwofoldEncoder.forward`, with logits [B, T, classes] and, where `labels` [B, T] are given, the loss.

        The loss is the mean cross-entropy in nats over positions whose label is not −100.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        logits = self.classifier(outputs.last_hidden_state)
        loss = None if labels is None else self.loss_function(logits, labels, self.config, **kwargs)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


# Importing this module is what makes the Auto classes know the models.
AutoConfig.register(TwofoldEncoderConfig.model_type, TwofoldEncoderConfig)
AutoModel.register(TwofoldEncoderConfig, TwofoldEncoder)
AutoModelForTokenClassification.register(TwofoldEncoderConfig, TwofoldForTokenClassification)
