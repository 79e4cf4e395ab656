"""Models of transformers to report on, without their weights."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import AutoModelForCausalLM, AutoModelForSpeechSeq2Seq, PreTrainedModel

from twofold.analysis.published_source import configuration

DTYPES = ("float32", "bfloat16", "float16")


def open_without_weights(source: str | Path, dtype: str | None = None) -> PreTrainedModel:
    """The model of a configuration on the meta device, where tensors have shapes and no numbers.

    `source` is a JSON file, a folder with a `config.json`, or a name on the Hugging Face hub; `dtype` is the
    configuration's own by default, and bfloat16 where it names none. Raises ValueError where there is none, and for a
    model that transformers does not know.
    """
    config = configuration(source)
    if isinstance(config, SimpleNamespace):
        raise ValueError(f"transformers knows no {config.model_type!r} model: there is nothing to fold")
    text = config.get_text_config(decoder=True)
    named = dtype or str(text.dtype or config.dtype or "bfloat16").removeprefix("torch.")
    of = AutoModelForSpeechSeq2Seq if getattr(config, "is_encoder_decoder", False) else AutoModelForCausalLM
    try:
        with torch.device("meta"):
            model: PreTrainedModel = of.from_config(
                config if of is AutoModelForSpeechSeq2Seq else text, dtype=getattr(torch, named)
            )
    except ValueError as error:
        raise ValueError(f"{source} is no model that generates text: {str(error).splitlines()[0]}") from None
    return model
