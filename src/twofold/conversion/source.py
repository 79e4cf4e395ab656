"""Models as they lie on disk: opened with every tensor accounted for, and written whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import safe_open
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file

from twofold.conversion.families import FAMILIES
from twofold.conversion.names import SHOWN
from twofold.data.pretrained_tokenizer import TOKENIZER_FILES
from twofold.explain.load import Opened, open_model
from twofold.models.load import CONFIG_FILE
from twofold.models.new_folder import new_folder

_BUFFERS = (r"rotary_emb\.inv_freq$", r"\.attn\.(bias|masked_bias)$", r"self_attn\.(bias|masked_bias)$")
"""Constants that older versions of transformers wrote beside the weights."""


def open_source(name: str) -> Opened:
    """The model in a folder, a .gguf file or of that name on the hub, as `explain.load.open_model` opens it.

    Raises ValueError, by name, for tensors in its files that the model has no place for, too. Families that do not
    convert are left out: transformers may rename some of their tensors when it reads them.
    """
    opened = open_model(name)
    if opened.model.config.model_type in FAMILIES and (unknown := _unknown(opened)):
        more = f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
        raise ValueError(
            f"{name} holds {', '.join(unknown[:SHOWN])}{more}, and a {opened.model.config.model_type!r} model has no "
            "place for it: weights and configuration do not belong together"
        )
    return opened


def write_model(
    model: PreTrainedModel,
    folder: Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
    files: Mapping[str, str] | None = None,
) -> None:
    """Save a model, and its tokenizer, as Auto classes load them; the new `folder` appears whole or not at all.

    `files`: texts that go with it, by name.
    """
    with new_folder(folder) as unfinished:
        model.save_pretrained(unfinished)
        if tokenizer is not None:
            tokenizer.save_pretrained(unfinished)
        for name, text in (files or {}).items():
            (unfinished / name).write_text(text)


def source_tokenizer(opened: Opened) -> PreTrainedTokenizerBase | None:
    """The tokenizer that lies with a model; None where there is none. ValueError where a folder's is damaged."""
    place = Path(opened.source)
    if place.is_dir():
        there = any((place / file).is_file() for file in TOKENIZER_FILES)
        return opened.tokenizer().for_transformers() if there else None
    try:
        return opened.tokenizer().for_transformers()
    except ValueError:
        return None


def _unknown(opened: Opened) -> list[str]:
    """Tensors in the model's safetensors files that it does not have, under its names or without the base's prefix."""
    model, prefix = opened.model, f"{opened.model.base_model_prefix}."
    held = set(model.state_dict())
    known = held | {name.removeprefix(prefix) for name in held} | {f"{prefix}{name}" for name in held}
    ignored = [*_BUFFERS, *(model._keys_to_ignore_on_load_unexpected or ())]
    stored = {name for file in _files(opened) for name in _names(file)}
    return sorted(n for n in stored - known if not any(re.search(pattern, n) for pattern in ignored))


def _files(opened: Opened) -> list[Path]:
    """The model's safetensors files; none for GGUF, whose names transformers translates."""
    if opened.source.endswith(".gguf"):
        return []
    place = Path(opened.source)
    if not place.is_dir():
        config = cached_file(opened.source, CONFIG_FILE, _raise_exceptions_for_missing_entries=False)
        place = Path(config or "").parent
    return sorted(place.glob("*.safetensors"))


def _names(file: Path) -> list[str]:
    with safe_open(file, framework="pt") as opened:
        return list(opened.keys())
