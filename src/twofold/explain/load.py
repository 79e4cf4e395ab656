"""Open a model to explain: one of this package, one that transformers knows, or a GGUF file.

Weights come from safetensors or GGUF, never from pickles, and no code that came with a model is run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from twofold.data.pretrained_tokenizer import PretrainedTokenizer, read_pretrained
from twofold.data.tokenizer import Tokenizer, load_tokenizer
from twofold.environment import package_version
from twofold.explain.weights import OWN
from twofold.models.load import CONFIG_FILE, MODEL_FOLDER, load_model

GIVE = "give a run or model folder, a GGUF file, or a name on the Hugging Face hub"


@dataclass(frozen=True)
class Opened:
    """A model in evaluation mode on the CPU, and where its files are: a folder, a .gguf file or a name on the hub."""

    name: str
    source: str
    model: PreTrainedModel

    @property
    def is_own(self) -> bool:
        """One of this package."""
        return self.model.config.model_type in OWN

    @property
    def variant(self) -> str | None:
        """The notation of its variant; None for a model that is not one of this package."""
        return self.model.config.described if self.is_own else None

    def tokenizer(self) -> Tokenizer:
        """The model's own. ValueError where it has none, or where its files are damaged."""
        if self.is_own:
            return load_tokenizer(Path(self.source))
        if self.source.endswith(".gguf"):
            path = Path(self.source)
            return PretrainedTokenizer(
                self.name, _tried(self.name, AutoTokenizer, str(path.parent), gguf_file=path.name)
            )
        return read_pretrained(self.source)


def open_model(name: str, *, exact: bool = False) -> Opened:
    """The model in a folder, in the `model` folder below it, in a .gguf file, or of that name on the hub.

    `exact` makes it compute in float32, as measures of activations need; else the weights stay as they are stored.
    Raises ValueError where there is none, where it is damaged or incomplete, and where only pickles hold its weights.
    """
    path = Path(name)
    dtype = torch.float32 if exact else "auto"
    if path.suffix == ".gguf":
        return _open_gguf(name, path)
    place = next((folder for folder in (path, path / MODEL_FOLDER) if (folder / CONFIG_FILE).is_file()), None)
    if place is None:
        _refuse_path(name, path)
        return Opened(name, name, _opened(name, _kind(name), name, dtype=dtype))
    kind = _model_type(place / CONFIG_FILE)
    if kind == OWN[0]:
        model: PreTrainedModel = load_model(place)
        return Opened(name, str(place), model.float() if exact else model)
    if not any(place.glob("*.safetensors")):
        raise ValueError(
            f"{place} holds no .safetensors file, and pickled weights are not opened: save the model again"
        )
    return Opened(name, str(place), _opened(name, kind, str(place), dtype=dtype, local_files_only=True))


def _open_gguf(name: str, path: Path) -> Opened:
    if not path.is_file():
        raise ValueError(f"{path} is not a file: {GIVE}")
    if package_version("gguf") is None:
        raise ValueError(f"{path.name} needs the package gguf: pip install gguf, or 'twofold[gguf]'")
    # Weights that were quantised are computed back to float32.
    where: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    with _read_once():
        return Opened(name, str(path), _opened(name, "", str(path.parent), dtype=torch.float32, **where))


@contextmanager
def _read_once() -> Iterator[None]:
    """While the block lasts, transformers opens a GGUF file without a bar of its own, and makes once what it would make
    again: the file's table of contents for configuration and weights, and the table of tensor names for each of the
    model's modules. That was two thirds of the time that it took.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils as reading

    usual = reading.tqdm, gguf.GGUFReader, gguf.get_tensor_name_map
    reading.tqdm = partial(reading.tqdm, disable=True)
    gguf.GGUFReader, gguf.get_tensor_name_map = lru_cache(1)(gguf.GGUFReader), lru_cache(1)(gguf.get_tensor_name_map)
    try:
        yield
    finally:
        reading.tqdm, gguf.GGUFReader, gguf.get_tensor_name_map = usual


def _refuse_path(name: str, path: Path) -> None:
    """ValueError for what can only have been meant as a path."""
    below = sorted(str(config.parent.parent) for config in path.glob(f"runs/*/{MODEL_FOLDER}/{CONFIG_FILE}"))
    if below:
        raise ValueError(f"{name} holds the runs of a study: give one of them, {', '.join(below[:8])}")
    if path.exists():
        raise ValueError(f"{name} holds no model (no {CONFIG_FILE}): {GIVE}")
    if name.startswith((".", "~", "/")) or name.count("/") > 1 or not name:
        raise ValueError(f"there is nothing at {name or 'an empty name'}: {GIVE}")
    if "/" in name and path.parent.is_dir():
        held = sorted(one.name for one in path.parent.iterdir() if one.is_dir() or one.suffix == ".gguf")
        beside = f", but {', '.join(held[:8])}" if held else ""
        raise ValueError(f"the folder {path.parent} holds no {path.name}{beside}: {GIVE}")


def _model_type(config: Path) -> str:
    try:
        return str(json.loads(config.read_bytes())["model_type"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{config} is not a model's configuration, or damaged") from error


def _kind(name: str) -> str:
    return str(_tried(name, AutoConfig, name).model_type)


def _opened(name: str, kind: str, place: str, **options: Any) -> PreTrainedModel:
    """The model with all its weights. `kind` is its model type; "" where it makes text for certain."""
    makes_text = not kind or kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    model, report = _tried(
        name,
        AutoModelForCausalLM if makes_text else AutoModel,
        place,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are refused below, by name
        **({} if "gguf_file" in options else {"use_safetensors": True}),
        **options,
    )
    # Transformers would give missing tensors random values, with no more than a warning.
    for fault in ("missing", "mismatched"):
        if report[f"{fault}_keys"]:
            first = sorted(map(str, report[f"{fault}_keys"]))[0]
            raise ValueError(
                f"{name}: weights and {CONFIG_FILE} do not belong together, {fault} in the weights: {first}"
            )
    opened: PreTrainedModel = model.eval()
    return opened


def _tried(name: str, what: Any, place: str, **options: Any) -> Any:
    """`what.from_pretrained`, whose failures of every kind are the user's, in one line."""
    try:
        return what.from_pretrained(place, trust_remote_code=False, **options)
    except Exception as error:  # damaged files, no network and unknown types each raise a class of their own
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"{name} cannot be opened: {reason.rstrip('.')[:300]}. {GIVE[0].upper()}{GIVE[1:]}") from error
