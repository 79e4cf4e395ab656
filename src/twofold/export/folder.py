"""The folder that an export is: weights and configuration of transformers, and the tokenizer."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from twofold.data.byte_tokens import VOCABULARY, byte_tokenizer
from twofold.data.pretrained_tokenizer import read_pretrained
from twofold.data.tokenizer import TOKENIZER_CONFIG
from twofold.export.target import Target
from twofold.models.decoder import TwofoldForCausalLM

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TOKENIZER_FILES = (
    "tokenizer.json",
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)


def save_model(model: TwofoldForCausalLM, target: Target, folder: Path) -> None:
    """Write configuration and weights for transformers. A tensor that is missing or unknown is an error here."""
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(target.config, dtype=model.dtype)
    made.load_state_dict(_apart(target.tensors), strict=True, assign=True)
    if target.config.tie_word_embeddings:
        made.tie_weights()
    made.generation_config = copy.deepcopy(model.generation_config)
    made.save_pretrained(folder)


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with copies of those that share memory with another: saving would write these once."""
    made: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        made[name] = tensor.detach().contiguous()
        if place in seen and made[name].untyped_storage().data_ptr() == place:
            made[name] = made[name].clone()
        seen.add(place)
    return made


def save_tokenizer(model: TwofoldForCausalLM, folder: Path) -> bool:
    """Carry the tokenizer's files along, and say whether there is one. A model of bytes may have been saved without."""
    source = _source(model)
    if source is not None and (source / TOKENIZER_CONFIG).is_file():
        for name in TOKENIZER_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
        return True
    if source is None or model.config.vocab_size != VOCABULARY:
        return False
    byte_tokenizer().save_pretrained(folder)
    return True


def tokenizer_of(model: TwofoldForCausalLM) -> PreTrainedTokenizerBase | None:
    """The tokenizer that `save_tokenizer` carries along; None where there is none."""
    source = _source(model)
    if source is not None and (source / TOKENIZER_CONFIG).is_file():
        return read_pretrained(str(source.resolve())).for_transformers()
    return byte_tokenizer() if source is not None and model.config.vocab_size == VOCABULARY else None


def _source(model: TwofoldForCausalLM) -> Path | None:
    """The folder that the model was loaded from."""
    source = Path(model.name_or_path)
    return source if model.name_or_path and source.is_dir() else None
