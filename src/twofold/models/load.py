"""Load a trained model from a folder, with errors that say what is missing."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.encoder_configuration import TwofoldEncoderConfig

MODEL_FOLDER = "model"
CONFIG_FILE = "config.json"


def load_model(folder: Path) -> TwofoldForCausalLM:
    """The model in `folder`, or in the `model` folder below it, in evaluation mode.

    Raises ValueError where there is none, where it is not a Twofold model, or where its file is damaged.
    """
    place = _model_folder(folder)
    _check_kind(place / CONFIG_FILE)
    if not any(place.glob("*.safetensors")):
        raise ValueError(f"{place} holds no weights (no .safetensors file): train the model again")
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            place,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
        )
    except SafetensorError as error:
        raise ValueError(f"{place}: the weights are damaged ({error}); train the model again") from error
    # Transformers would give missing tensors random values, with no more than a warning.
    for fault in ("missing", "unexpected", "mismatched"):
        if report[f"{fault}_keys"]:
            raise ValueError(
                f"{place}: weights and {CONFIG_FILE} do not belong together, {fault} in the weights: "
                f"{sorted(map(str, report[f'{fault}_keys']))[0]}"
            )
    return model.eval()


def _model_folder(folder: Path) -> Path:
    """`folder` or the `model` folder below it, whichever holds a configuration."""
    for place in (folder, folder / MODEL_FOLDER):
        if (place / CONFIG_FILE).is_file():
            return place
    below = sorted(str(config.parent.parent) for config in folder.glob(f"runs/*/{MODEL_FOLDER}/{CONFIG_FILE}"))
    if below:
        raise ValueError(f"{folder} holds the runs of a study: give one of them, {', '.join(below)}")
    told = "give a folder that `train` or `study run` wrote"
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: {told}")
    raise ValueError(
        f"{folder} holds no model (no {CONFIG_FILE}): {told}; one that was interrupted must be finished first, by the "
        "same command"
    )


def _check_kind(config: Path) -> None:
    try:
        kind = json.loads(config.read_bytes())["model_type"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{config} is not a model's configuration, or damaged") from error
    if kind == TwofoldEncoderConfig.model_type:
        raise ValueError(
            f"{config.parent} holds an encoder, which neither scores nor writes text: its study has its scores"
        )
    if kind != TwofoldForCausalLM.config_class.model_type:
        raise ValueError(f"{config.parent} holds a {kind!r} model and not a Twofold one")
