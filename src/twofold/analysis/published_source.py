"""From a `config.json`, a folder, a hub name or a plain mapping to what the model caches. Runs no code of the model's.

A model type that transformers knows is read through transformers' own configuration class, which fills in what the
file leaves out; any other is read as it stands.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from twofold.analysis.published import PublishedCache
from twofold.analysis.published_families import CHECKED, read_layers
from twofold.analysis.published_fields import HEADS, LAYERS, MOST_LAYERS, WIDTH, Fields, check_counts
from twofold.analysis.published_reading import Settings

if TYPE_CHECKING:
    from torch.nn import Module

_DECIDE = {"layers": LAYERS, "heads": HEADS, "width": WIDTH}
_TEXT_PARTS = ("text_config", "llm_config")
_MOST_COUNTED = 1_000
_MOST_DIGITS = 400


def read(source: str | Path | Mapping[str, Any]) -> PublishedCache:
    """What the model of a configuration caches, layer by layer.

    `source`: the path of a JSON file or of a folder with a `config.json`, a name on the Hugging Face hub, or the
    configuration itself. Raises ValueError where there is none, where the model has no decoder of its own, and where
    what it caches cannot be told for certain.
    """
    written = dict(source) if isinstance(source, Mapping) else _written(source)
    text = _text_model(configuration(written))
    cache = read_layers(_settings(text))
    notes = [*_filled_in(written, text), *cache.notes]
    if len(cache.layers) > _MOST_COUNTED:
        notes.append(f"Parameters are counted for models of at most {_MOST_COUNTED:,} layers.")
    return replace(cache, notes=tuple(notes))


def _filled_in(written: Mapping[str, Any], text: Any) -> list[str]:
    """A note of what decides the cache and is transformers' default, since it is not written or under another name."""
    parts = [written, *(part for part in written.values() if isinstance(part, Mapping))]
    taken = {what: (names, Fields(text).count(*names)) for what, names in _DECIDE.items()}
    absent = [
        f"{what} {value}"
        for what, (names, value) in taken.items()
        if not any(part.get(name) == value for part in parts for name in names)
    ]
    return [f"Not written in the configuration, so transformers' defaults: {', '.join(absent)}."] if absent else []


def configuration(source: str | Path | Mapping[str, Any]) -> Any:
    """The configuration: transformers' object where it knows the model type, else a namespace of what is written.

    Raises ValueError as `read` does.
    """
    written = dict(source) if isinstance(source, Mapping) else _written(source)
    model_type = Fields(written).text("model_type")
    for part in (written, _text_part(written)):
        # Before a class makes a list of them.
        Fields(part).count(*LAYERS, most=MOST_LAYERS)
    if model_type == "twofold":
        raise ValueError(
            f"this is a model of this package, {written.get('variant')}: plan it by its sizes, with --layers, --width, "
            "--heads, --mlp, --vocab, --positions and --variant"
        )
    from transformers import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        return SimpleNamespace(**written)
    try:
        config = CONFIG_MAPPING[model_type].from_dict(written)
        config.get_text_config(decoder=True).to_dict()
    except Exception as error:  # each class checks in its own way
        check_counts(written)
        check_counts(_text_part(written))
        reason = textwrap.shorten(str(error), 300, placeholder=" …")
        raise ValueError(f"transformers cannot read this {model_type} configuration: {reason}") from None
    _refuse_without_decoder(config)
    return config


def count_parameters(source: str | Path | Mapping[str, Any]) -> int | None:
    """Parameters of the text model, each once, counted on a model without storage.

    None where none can be built, and for more layers than can be built in reasonable time.
    """
    model = without_storage(source)
    return None if model is None else sum(parameter.numel() for parameter in model.parameters())


def without_storage(source: str | Path | Mapping[str, Any]) -> Module | None:
    """The text model on the meta device, where tensors have shapes and no numbers; None as for `count_parameters`."""
    text = _text_model(configuration(source))
    if isinstance(text, SimpleNamespace) or (Fields(text).count(*LAYERS) or 0) > _MOST_COUNTED:
        return None
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model: Module = AutoModelForCausalLM.from_config(text)
    except Exception:  # a model class may need more than its configuration; the count is an extra
        return None
    return model


def _written(source: str | Path) -> dict[str, Any]:
    """The JSON object of a file, of a folder's config.json, or of a hub repository."""
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    if not path.exists():
        return _from_hub(str(source), path)
    try:
        written = json.loads(path.read_text(encoding="utf-8-sig"), parse_int=_whole)
    except RecursionError:
        raise ValueError(f"{path} is not JSON of a configuration: it has too many brackets within brackets") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON that can be read: {error}") from None
    if not isinstance(written, dict):
        raise ValueError(
            f"{path} holds a {type(written).__name__}, and a configuration is an object of names and values"
        )
    return written


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"it holds a number of {len(digits):,} digits, and no count has as many")
    return int(digits)


def _text_part(written: Mapping[str, Any]) -> dict[str, Any]:
    parts = (Fields(written).part(name) for name in _TEXT_PARTS)
    return next((part for part in parts if part), {})


def _from_hub(name: str, path: Path) -> dict[str, Any]:
    missing = f"there is no configuration at {path}"
    if path.name == "config.json" or path.suffix == ".json" or name.count("/") > 1 or name.startswith((".", "~")):
        raise ValueError(f"{missing}: give a config.json, a folder that has one, or a name on the hub")
    from transformers import PreTrainedConfig

    try:
        written, _ = PreTrainedConfig.get_config_dict(name)
    except Exception as error:  # no network, no such name, no permission: the hub's client has a class for each
        raise ValueError(f"{missing}, and none came from the hub: {error}") from None
    if not written:
        raise ValueError(f"{missing}, and none came from the hub under that name")
    return dict(written)


def _refuse_without_decoder(config: Any) -> None:
    """ValueError for an encoder, and for an encoder–decoder, whose cache also holds keys and values of the encoder."""
    text = config.get_text_config(decoder=True)
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"{config.model_type} is an encoder with a decoder: its cache also holds keys and values of the encoder's "
            "output, which are not counted here. Only decoders can be planned"
        )
    if text.model_type in CHECKED:
        return
    from transformers.models.auto import modeling_auto as auto

    types = {config.model_type, text.model_type}
    encoder = getattr(config, "is_decoder", not types & set(auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)) is False
    decoders = {
        *auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        *auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        *auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    }
    if encoder or not types & decoders:
        raise ValueError(f"{config.model_type} is not a decoder: it makes no token after another and keeps no cache")
    if not hasattr(text, "use_cache"):
        raise ValueError(f"{config.model_type} keeps no keys and values in transformers: it has no use_cache")


def _text_model(config: Any) -> Any:
    """The part that makes text, of a model for images or sound as well."""
    if not isinstance(config, SimpleNamespace):
        return config.get_text_config(decoder=True)
    part = _text_part(vars(config))
    return SimpleNamespace(**{"model_type": getattr(config, "model_type", None), **part}) if part else config


def _settings(config: Any) -> Settings:
    layers = Fields(config).count(*LAYERS, most=MOST_LAYERS)
    if isinstance(config, SimpleNamespace):
        _refuse_by_architectures(config)
    model_type = Fields(config).text("model_type") or "unnamed"
    if layers is None:
        raise ValueError(
            f"cannot read this {model_type} configuration: it names no layers. It needs num_hidden_layers, "
            "num_attention_heads and hidden_size or head_dim"
        )
    if isinstance(config, SimpleNamespace):
        parts, written = [config] * layers, vars(config)
    else:
        try:
            parts, written = list(config.per_layer_config), config.to_dict()
        except (AttributeError, TypeError) as error:  # a file may write over what its class needs, as attribute_map
            raise ValueError(
                f"transformers cannot list the layers of this {model_type} configuration: {error}"
            ) from None
    fields = {key: Fields(part) for key, part in {id(part): part for part in parts}.items()}
    return Settings(
        model_type=model_type,
        model=Fields(config),
        layers=tuple(fields[id(part)] for part in parts),
        names=frozenset(name for name, value in written.items() if value not in (None, False, 0, "")),
    )


def _refuse_by_architectures(config: SimpleNamespace) -> None:
    """A model type that is not known: its `architectures`, if it names any, must make text."""
    names = Fields(config).texts("architectures") or []
    if names and not any("CausalLM" in name or "LMHead" in name or "ConditionalGeneration" in name for name in names):
        raise ValueError(
            f"{', '.join(names)} is no decoder that is known here: only models that make text can be planned"
        )
    if Fields(config).flag("is_encoder_decoder"):
        raise ValueError(f"{', '.join(names) or 'this model'} has an encoder, whose cache is not counted here")
