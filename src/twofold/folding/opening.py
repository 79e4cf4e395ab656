"""Models of transformers to report on, without their weights."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import AutoModelForCausalLM, AutoModelForSpeechSeq2Seq, PreTrainedModel

from twofold.analysis.published_source import configuration
from twofold.models.load import CONFIG_FILE, MODEL_FOLDER

DTYPES = ("float32", "bfloat16", "float16")


def is_own(path: Path) -> bool:
    """Whether a configuration in a file or folder is of a model of this package."""
    file = path / CONFIG_FILE if path.is_dir() else path
    try:
        return str(json.loads(file.read_bytes())["model_type"]).startswith("twofold")
    except (OSError, ValueError, KeyError, TypeError):
        return False  # whoever reads it next says what is wrong


def open_without_weights(source: str | Path, dtype: str | None = None) -> PreTrainedModel:
    """The model of a configuration on the meta device, where tensors have shapes and no numbers.

    `source` is a JSON file, a folder with a `config.json`, or a name on the Hugging Face hub; `dtype` is the
    configuration's own by default, and float32 where it names none, as transformers has it. Raises ValueError where
    there is none, and for a model that transformers does not know or that is one of this package.
    """
    path = Path(source)
    path = path / MODEL_FOLDER if (path / MODEL_FOLDER / CONFIG_FILE).is_file() else path
    if path.suffix == ".gguf":
        raise ValueError(f"{source} is a GGUF file, whose cache another program keeps: give a folder of transformers")
    if is_own(path):
        raise ValueError("a Twofold model stores what is shared once as it is: there is nothing to fold")
    config = configuration(source)
    if isinstance(config, SimpleNamespace):
        raise ValueError(f"transformers knows no {config.model_type!r} model: there is nothing to fold")
    text = config.get_text_config(decoder=True)
    named = dtype or str(text.dtype or config.dtype or "float32").removeprefix("torch.")
    of = AutoModelForSpeechSeq2Seq if getattr(config, "is_encoder_decoder", False) else AutoModelForCausalLM
    try:
        with torch.device("meta"):
            model: PreTrainedModel = of.from_config(
                config if of is AutoModelForSpeechSeq2Seq else text, dtype=getattr(torch, named)
            )
    except (ValueError, RuntimeError, ArithmeticError) as error:  # of a configuration that no model can have
        raise ValueError(f"{source} is no model that generates text: {str(error).splitlines()[0]}") from None
    return model
