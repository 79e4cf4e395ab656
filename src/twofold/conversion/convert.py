"""Convert a model: transformers' families into Twofold's decoder, and back. No number changes."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging

from twofold.conversion.families import FAMILIES, family_of
from twofold.conversion.fields import config_in, config_out, unmet
from twofold.conversion.names import require_all, require_shapes, tensors_in, tensors_out
from twofold.conversion.source import open_source
from twofold.explain.weights import OWN
from twofold.models.configuration import TwofoldConfig
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.fusing import separate


def convert_in(model: PreTrainedModel | str) -> TwofoldForCausalLM:
    """Twofold's decoder, variant `QKV` with the model's heads, that computes what `model` does.

    `model` is a model with its head, or a folder with safetensors, a .gguf file or a name on the hub. Weights are
    copied, in their dtype. Raises ValueError for families and options that the decoder does not have, with what is
    missing, and for tensors that are missing or unknown, by name.
    """
    if isinstance(model, str):
        model = open_source(model).model
    if model.config.model_type in OWN:
        raise ValueError("the model is one of Twofold's already: convert_out takes it to another family")
    family = family_of(model.config.model_type)
    config = config_in(family, model.config)
    state = tensors_in(
        family.names, model.state_dict(), config.num_hidden_layers, tied=bool(config.tie_word_embeddings)
    )
    return _with_weights(TwofoldForCausalLM, config, state, model)


def convert_out(model: TwofoldForCausalLM, family: str) -> PreTrainedModel:
    """The model of transformers, of that model type, that computes what a Twofold model of variant `QKV` does.

    The inverse of `convert_in`: every tensor comes back with equal bits. What does not change a prediction (dropout
    inside attention) has the family's default or 0. Raises ValueError for what the family does not have.
    """
    if not isinstance(model, TwofoldForCausalLM):
        raise ValueError(f"a {type(model).__name__} is no decoder of Twofold: give what `convert_in` or training made")
    into = family_of(family)
    values = _config_out(model.config, family)
    separated = separate(model) if model.config.fused_projections else model
    layers, tied = model.config.num_hidden_layers, bool(model.config.tie_word_embeddings)
    state = tensors_out(into.names, separated.state_dict(), layers, tied=tied)
    config = CONFIG_MAPPING[family](**values)
    return _with_weights(AutoModelForCausalLM._model_mapping[type(config)], config, state, model)


def families_for(config: TwofoldConfig) -> list[str]:
    """The families that can hold a Twofold model of this configuration."""
    return [name for name, family in FAMILIES.items() if not unmet(family, config.architecture)]


def _config_out(config: TwofoldConfig, family: str) -> dict[str, Any]:
    try:
        return config_out(FAMILIES[family], config)
    except ValueError as error:
        others = families_for(config)
        advice = f"it converts to {', '.join(others)}" if others else "no family that is known here can hold it"
        raise ValueError(f"{error}; {advice}") from None


def _with_weights(of: type[PreTrainedModel], config: Any, state: dict[str, Tensor], like: PreTrainedModel) -> Any:
    """A model of this class and configuration with `state` for weights, in the dtype and mode of `like`, on the CPU."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        made, report = of.from_pretrained(
            None,
            config=config,
            state_dict=state,
            dtype=like.dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
        )
    finally:
        if shown:
            logging.enable_progress_bar()
    require_all([*state, *sorted(map(str, report["missing_keys"]))], state)
    require_shapes(state, made.state_dict())
    made.config._name_or_path = made.name_or_path = like.name_or_path
    return made.train(like.training)
