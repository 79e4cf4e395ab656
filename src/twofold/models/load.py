"""Load a trained model from a folder, with errors that say what is missing."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from twofold.models.decoder import TwofoldForCausalLM

MODEL_FOLDER = "model"


def load_model(folder: Path) -> TwofoldForCausalLM:
    """The model in `folder`, or in the `model` folder below it, in evaluation mode.

    Raises ValueError where there is none, where it is not a Twofold model, or where its file is damaged.
    """
    place = model_folder(folder)
    kind = json.loads((place / "config.json").read_text()).get("model_type")
    if kind != TwofoldForCausalLM.config_class.model_type:
        raise ValueError(f"{place} holds a {kind!r} model and not a Twofold one")
    try:
        return AutoModelForCausalLM.from_pretrained(place).eval()
    except SafetensorError as error:
        raise ValueError(f"{place}: the weights are damaged ({error}); train the model again") from error


def model_folder(folder: Path) -> Path:
    """`folder` or the `model` folder below it, whichever holds a `config.json`."""
    for place in (folder, folder / MODEL_FOLDER):
        if (place / "config.json").is_file():
            return place
    raise ValueError(f"{folder} holds no model (no config.json): give a folder that `train` or `study run` wrote")
