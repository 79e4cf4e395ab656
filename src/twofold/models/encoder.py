"""The encoder: a stack in which every position sees every other, as ordinary Hugging Face models.

It reads tokens, sets of feature vectors or the patches of images, and answers for each position, for the whole input,
or with one of its positions. Here the variants with `+` have their place, whose term on the scores no causal decoder
takes.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)
from transformers.loss.loss_utils import fixed_cross_entropy
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import (
    BaseModelOutput,
    MultipleChoiceModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from twofold.attention.layer import Attention
from twofold.attention.position_term import ScoreTerm, sinusoid
from twofold.attention.rotary import Rotation, rotation
from twofold.attention.treatments import turned_on_read
from twofold.models import positions
from twofold.models.encoder_block import EncoderBlock
from twofold.models.encoder_configuration import TwofoldEncoderConfig
from twofold.models.encoder_inputs import ARGUMENTS, FeatureEmbedding, PatchEmbedding, only_input

WITH_TERMS = ("eager", "sdpa")
"""Attention implementations that take a float mask, which a term on the scores needs."""


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

    def __init__(self, config: TwofoldEncoderConfig) -> None:
        super().__init__(config)
        self.main_input_name = ARGUMENTS[config.reads]

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
        self.embed_tokens = nn.Embedding(config.vocab_size, width) if config.reads == "tokens" else None
        self.embed_features = FeatureEmbedding(config.feature_dims, width) if config.reads == "features" else None
        self.embed_patches = PatchEmbedding(config) if config.reads == "images" else None
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
        features: Tensor | None = None,
        pixel_values: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """One input to hidden states [B, T, M]: token ids [B, T], features [B, T, F], images [B, C, height, width],
        whose T patches come row by row, or embeddings [B, T, M].

        `attention_mask` [B, T], 0 for padding, which nobody sees; outputs there mean nothing. `position_ids` [B, T];
        by default they count what is not padding, so that a padded sequence gives what it gives alone.
        """
        self._require_computable(kwargs.get("output_attentions") or self.config.output_attentions)
        given = {"input_ids": input_ids, "features": features, "pixel_values": pixel_values}
        x_BTM = self._embedded(*only_input(self.config, {**given, "inputs_embeds": inputs_embeds}))
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

    def _embedded(self, name: str, value: Tensor) -> Tensor:
        embeddings = {
            "input_ids": self.embed_tokens,
            "features": self.embed_features,
            "pixel_values": self.embed_patches,
        }
        embed = embeddings.get(name)
        return value if embed is None else embed(value)

    def _rotation(self, positions_BT: Tensor, dtype: torch.dtype) -> Rotation | None:
        dims = self.config.rotated_dims
        return rotation(positions_BT, dims, self.config.rope_theta, dtype) if dims else None

    def _require_computable(self, weights: bool) -> None:
        implementation = self.config._attn_implementation or "eager"
        if weights and implementation != "eager":
            raise ValueError(
                f"attn_implementation {implementation!r} gives no attention weights: set it to eager "
                "(model.set_attn_implementation)"
            )
        if self.layers[0].position_term is not None and implementation not in WITH_TERMS:
            raise ValueError(
                f"attn_implementation {implementation!r} takes no float mask, which the term of "
                f"{self.config.variant} needs: use {' or '.join(WITH_TERMS)}"
            )


class EncoderWithHead(TwofoldEncoderPreTrainedModel):
    """The encoder, and the source's head for each vector that it is given: W₂ ReLU(LayerNorm(W₁ x))."""

    output_type: type[Any]

    def __init__(self, config: TwofoldEncoderConfig) -> None:
        super().__init__(config)
        self.model = TwofoldEncoder(config)
        self.classifier = nn.Sequential(
            nn.Linear(config.hidden_size, config.hidden_size),
            nn.LayerNorm(config.hidden_size, eps=config.norm_eps),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.hidden_size, self.outputs),
        )
        self.post_init()

    @property
    def outputs(self) -> int:
        """Numbers that the head gives for a vector."""
        return self.config.num_labels

    @abstractmethod
    def logits(self, x_BTM: Tensor, seen_BT: Tensor | None) -> Tensor:
        """Logits of what the labels choose from in the last dim; `seen_BT` is False at padding, None without any."""

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        features: Tensor | None = None,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """As `TwofoldEncoder.forward`, with `logits`, and where `labels` are given, the `loss`.

        The loss is the mean cross-entropy in nats over labels that are not −100.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            features=features,
            pixel_values=pixel_values,
            **kwargs,
        )
        seen_BT = attention_mask.bool() if attention_mask is not None and attention_mask.ndim == 2 else None
        logits = self.logits(outputs.last_hidden_state, seen_BT)
        loss = None
        if labels is not None:
            loss = fixed_cross_entropy(logits.flatten(0, -2).float(), labels.flatten().to(logits.device), **kwargs)
        return self.output_type(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class TwofoldForTokenClassification(EncoderWithHead):
    """One of `num_labels` classes for each position, token, member of a set or patch: labels [B, T]."""

    output_type = TokenClassifierOutput

    def logits(self, x_BTM: Tensor, seen_BT: Tensor | None) -> Tensor:
        """[B, T, M] to [B, T, classes]."""
        return self.classifier(x_BTM)


class TwofoldForSequenceClassification(EncoderWithHead):
    """One of `num_labels` classes for the whole input, text, set or image: labels [B].

    The head reads the mean of the positions that are not padding.
    """

    output_type = SequenceClassifierOutput

    def logits(self, x_BTM: Tensor, seen_BT: Tensor | None) -> Tensor:
        """[B, T, M] to [B, classes]."""
        if seen_BT is None:
            return self.classifier(x_BTM.mean(dim=1))
        sum_BM = (x_BTM * seen_BT[..., None]).sum(dim=1)
        return self.classifier(sum_BM / seen_BT.sum(dim=1, keepdim=True).clamp(min=1))


class TwofoldForMemberChoice(EncoderWithHead):
    """Which position is meant, such as the odd member of a set: labels [B] count positions. Padding is never it."""

    output_type = MultipleChoiceModelOutput

    @property
    def outputs(self) -> int:
        """One number, which competes with those of the other positions."""
        return 1

    def logits(self, x_BTM: Tensor, seen_BT: Tensor | None) -> Tensor:
        """[B, T, M] to [B, T]."""
        logits_BT = self.classifier(x_BTM).squeeze(-1)
        return logits_BT if seen_BT is None else logits_BT.masked_fill(~seen_BT, torch.finfo(logits_BT.dtype).min)


# Importing this module is what makes the Auto classes know the models.
AutoConfig.register(TwofoldEncoderConfig.model_type, TwofoldEncoderConfig)
AutoModel.register(TwofoldEncoderConfig, TwofoldEncoder)
AutoModelForTokenClassification.register(TwofoldEncoderConfig, TwofoldForTokenClassification)
AutoModelForSequenceClassification.register(TwofoldEncoderConfig, TwofoldForSequenceClassification)
AutoModelForImageClassification.register(TwofoldEncoderConfig, TwofoldForSequenceClassification)
