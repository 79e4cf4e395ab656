"""From a contender to its model. Neither torch nor transformers is loaded before one is made."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from twofold.tasks.task import Form
from twofold.trials.trial import TaskContender

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ENCODER_FIELDS = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "head_dim": "head_dim",
    "mlp": "intermediate_size",
    "positions": "positions",
    "norm": "norm_order",
    "activation": "hidden_act",
    "dropout": "dropout",
    "initial_deviation": "initializer_range",
    "term_channels": "term_channels",
    "term_per_head": "term_per_head",
}
"""A key of `EncoderSizes` → the field of `TwofoldEncoderConfig`."""


def build(contender: TaskContender, form: Form) -> PreTrainedModel:
    """The contender's model for what a task reads and asks, not initialised. ValueError where sizes do not fit."""
    if form.causal:
        from twofold.models.configuration import TwofoldConfig
        from twofold.models.decoder import TwofoldForCausalLM

        ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
        return TwofoldForCausalLM(TwofoldConfig.from_architecture(contender.architecture(form), **ends))
    from twofold.models.encoder_build import encoder_config, encoder_model

    told = {name: value for name, value in asdict(form).items() if name not in ("head", "patch")}
    sizes = {field: contender.sizes[key] for key, field in ENCODER_FIELDS.items()}
    patch = form.patch or contender.sizes["patch"]
    return encoder_model(encoder_config(contender.variant, **told, patch=patch, **sizes), form.head)


def positions(contender: TaskContender, form: Form) -> int:
    """Positions of one example in the model."""
    if form.image is None:
        return form.length
    _, height, width = form.image
    patch = form.patch or contender.sizes["patch"]
    return (height // patch) * (width // patch)
