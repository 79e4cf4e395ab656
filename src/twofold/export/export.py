"""Write a model as another engine's: a folder with weights, configuration, tokenizer and `export.json`, whole or not.

`export.json` says what was exported and how, and what the check found.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from twofold.environment import environment, package_version
from twofold.export.check import Check, check
from twofold.export.deepseek import deepseek
from twofold.export.folder import save_model, save_tokenizer, tokenizer_of
from twofold.export.gguf_check import check_gguf, require_packages
from twofold.export.gguf_file import TYPES, gguf, write_gguf
from twofold.export.gguf_form import FORMS
from twofold.export.llama import llama
from twofold.export.target import Padding, Target, padding
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.new_folder import new_folder, require_new

FORMATS = {
    "deepseek": "transformers' DeepseekV3: K=V decoupled and MLA, with their small cache",
    "gguf": "one file for llama.cpp: the same as its deepseek2, QKV and GQA as its llama",
    "llama": "transformers' Llama: QKV and GQA as they are; shared roles as copies, which save nothing",
}
ENGINES = {"deepseek": ("transformers",), "gguf": ("gguf", "llama-cpp-python"), "llama": ("transformers",)}
"""The packages that wrote and checked, whose versions are noted."""
RECORD = "export.json"
GGUF_FILE = "model.gguf"


@dataclass(frozen=True)
class ExportRecord:
    """What was exported, as `export.json` keeps it.

    `dtype` is that of the weights, by transformers' name or GGUF's. `cache_numbers` per token and layer are the
    model's own, `target_cache_numbers` the target's; `keeps_saving` says whether these are no more. `check` is None
    where nobody compared, `command` the command line that asked for it.
    """

    format: str
    source: str
    variant: str
    model_type: str
    dtype: str
    parameters: int
    tied: bool
    pad: str | None
    changes: tuple[str, ...]
    notes: tuple[str, ...]
    cache_numbers: int
    target_cache_numbers: int
    keeps_saving: bool
    tokenizer: bool
    check: Check | None
    versions: dict[str, str | None]
    environment: dict[str, Any]
    command: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def export_model(
    model: TwofoldForCausalLM,
    format: str,
    out: Path,
    pad: Padding | str | None = None,
    *,
    untied: bool = False,
    kind: str = "f32",
    checked: bool = True,
    command: str | None = None,
) -> ExportRecord:
    """Write `model` as `format` (see `FORMATS`) into the new folder `out`; the model stays as it is.

    `pad`, for deepseek: rows filled up with zeros to (latent, rotary key), by name to `256+64` or `512+64`; the head
    is then a tensor of its own, as with `untied`. `kind`, for gguf: how matrices are stored, f32, f16 or q8_0.
    `checked`: load what was written and compare it, see `check.check` and `gguf_check.check_gguf`. The tokenizer
    comes from the folder that the model was loaded from. `command` is noted in the record.

    Raises ValueError for an unknown format, a folder that holds something, a model that the target cannot compute
    exactly (with every reason), or a comparison that fails; nothing is then left in `out`.
    """
    require_new(out)
    target = _target(model, format, padding(pad) if isinstance(pad, str) else pad, untied, kind)
    if format == "gguf":
        require_packages(checked)
    with new_folder(out) as folder:
        if format == "gguf":
            has_tokenizer, found = _write_gguf(model, target, folder / GGUF_FILE, kind, checked)
        else:
            save_model(model, target, folder)
            has_tokenizer = save_tokenizer(model, folder)
            found = check(model, folder) if checked else None
        made = _record(model, target, format, has_tokenizer, found, pad=pad, kind=kind)
        record = replace(made, command=command)
        (folder / RECORD).write_text(json.dumps(record.as_dict(), indent=1) + "\n")
    return record


def _target(model: TwofoldForCausalLM, name: str, pad: Padding | None, untied: bool, kind: str) -> Target:
    if name not in FORMATS:
        raise ValueError(f"unknown format {name!r}: choose {' or '.join(FORMATS)}")
    if pad is not None and name != "deepseek":
        raise ValueError(f"padding is for vLLM, which reads deepseek, and the format is {name}: leave it out")
    if kind not in TYPES:
        raise ValueError(f"unknown type {kind!r}: choose one of {', '.join(TYPES)}")
    if kind != "f32" and name != "gguf":
        raise ValueError(f"the type {kind} is for gguf; {name} keeps the model's own dtype: leave it out")
    if name == "deepseek":
        return deepseek(model, pad, untied)
    return llama(model, untied) if name == "llama" else gguf(model, untied)


def _write_gguf(
    model: TwofoldForCausalLM, target: Target, path: Path, kind: str, checked: bool
) -> tuple[bool, Check | None]:
    """Whether there is a tokenizer, and what the check found."""
    tokenizer = tokenizer_of(model)
    write_gguf(target, path, kind, tokenizer)
    found = check_gguf(model, path, kind, target.cache_numbers) if checked else None
    return tokenizer is not None, found


def _record(
    model: TwofoldForCausalLM,
    target: Target,
    name: str,
    has_tokenizer: bool,
    found: Check | None,
    *,
    pad: Padding | str | None,
    kind: str,
) -> ExportRecord:
    sizes = model.config.architecture.at(0)
    own = sizes.row_layout.numbers(sizes.kv_heads)
    tied = target.config.tie_word_embeddings
    return ExportRecord(
        format=name,
        source=model.name_or_path,
        variant=str(sizes.variant),
        model_type=FORMS[target.config.model_type].architecture if name == "gguf" else target.config.model_type,
        dtype=kind if name == "gguf" else str(model.dtype).removeprefix("torch."),
        parameters=sum(t.numel() for key, t in target.tensors.items() if not (tied and key == "lm_head.weight")),
        tied=tied,
        pad=None if pad is None else str(pad),
        changes=target.changes,
        notes=target.notes if has_tokenizer else (*target.notes, "the model came without a tokenizer"),
        cache_numbers=own,
        target_cache_numbers=target.cache_numbers,
        keeps_saving=target.cache_numbers <= own,
        tokenizer=has_tokenizer,
        check=found,
        versions={package: package_version(package) for package in ENGINES[name]},
        environment=environment(),
    )
