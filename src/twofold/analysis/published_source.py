"""From a `config.json`, a folder, a hub name or a plain mapping to what the model caches. Runs no code of the model's.

A model type that transformers knows is read through transformers' own configuration class, which fills in what the
file leaves out; any other is read as it stands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from twofold.analysis.published import PublishedCache
from twofold.analysis.published_families import CHECKED, read_layers
from twofold.analysis.published_reading import HEADS, LAYERS, WIDTH, Fields, Settings

_DECIDE = {"layers": LAYERS, "heads": HEADS, "width": WIDTH}


def read(source: str | Path | Mapping[str, Any]) -> PublishedCache:
    """What the model of a configuration caches, layer by layer.

    `source`: the path of a JSON file or of a folder with a `config.json`, a name on the Hugging Face hub, or the
    configuration itself. Raises ValueError where there is none, where the model has no decoder of its own, and where
    what it caches cannot be told for certain.
    """
    written = dict(source) if isinstance(source, Mapping) else _written(source)
    text = _text_model(configuration(written))
    cache = read_layers(_settings(text))
    return replace(cache, notes=(*_filled_in(written, text), *cache.notes))


def _filled_in(written: Mapping[str, Any], text: Any) -> list[str]:
    """A note of what decides the cache and is transformers' default, since it is not written or under another name."""
    parts = [written, *(part for part in written.values() if isinstance(part, Mapping))]
    taken = {what: (names, _field(text)(*names)) for what, names in _DECIDE.items()}
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
    model_type = written.get("model_type")
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
    except Exception as error:  # each class checks in its own way
        raise ValueError(f"transformers cannot read this {model_type} configuration: {error}") from None
    _refuse_without_decoder(config)
    return config


def count_parameters(source: str | Path | Mapping[str, Any]) -> int | None:
    """Parameters of the text model, each once, counted on a model without storage; None where none can be built."""
    text = _text_model(configuration(source))
    if isinstance(text, SimpleNamespace):
        return None
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(text)
    except Exception:  # a model class may need more than its configuration; the count is an extra
        return None
    return sum(parameter.numel() for parameter in model.parameters())


def _written(source: str | Path) -> dict[str, Any]:
    """The JSON object of a file, of a folder's config.json, or of a hub repository."""
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    if not path.exists():
        return _from_hub(str(source), path)
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(written, dict):
        raise ValueError(
            f"{path} holds a {type(written).__name__}, and a configuration is an object of names and values"
        )
    return written


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
    part = getattr(config, "text_config", None) or getattr(config, "llm_config", None)
    return SimpleNamespace(**{"model_type": getattr(config, "model_type", None), **part}) if part else config


def _settings(config: Any) -> Settings:
    layers = _field(config)(*LAYERS)
    if isinstance(config, SimpleNamespace):
        _refuse_by_architectures(config)
    if not isinstance(layers, int) or layers < 1:
        raise ValueError(
            f"cannot read this {getattr(config, 'model_type', None) or 'unnamed'} configuration: it names {layers} "
            "layers. It needs num_hidden_layers, num_attention_heads and hidden_size or head_dim"
        )
    if isinstance(config, SimpleNamespace):
        parts, written = [config] * layers, vars(config)
    else:
        parts, written = list(config.per_layer_config), config.to_dict()
    return Settings(
        model_type=getattr(config, "model_type", None) or "unnamed",
        model=_field(config),
        layers=tuple(_field(part) for part in parts),
        names=frozenset(name for name, value in written.items() if value not in (None, False, 0, "")),
    )


def _refuse_by_architectures(config: SimpleNamespace) -> None:
    """A model type that is not known: its `architectures`, if it names any, must make text."""
    names = getattr(config, "architectures", None) or []
    if names and not any("CausalLM" in name or "LMHead" in name or "ConditionalGeneration" in name for name in names):
        raise ValueError(
            f"{', '.join(names)} is no decoder that is known here: only models that make text can be planned"
        )
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{', '.join(names) or 'this model'} has an encoder, whose cache is not counted here")


def _field(config: Any) -> Fields:
    """The first of several names that has a value; None where none has."""

    def first(*names: str) -> Any:
        values = (getattr(config, name, None) for name in names)
        return next((value for value in values if value is not None), None)

    return first
