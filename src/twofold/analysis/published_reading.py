"""The ordinary reading of a configuration: keys and values, each kept, with windows and with rows that layers reuse.

Field names are transformers', with the older ones that other configurations use beside them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from twofold.analysis.published import CacheLayer, Kept
from twofold.analysis.published_fields import HEAD_DIM, HEADS, KV_HEADS, LATENT, REUSING, WIDTH, Fields
from twofold.variants.layout import RowLayout

# Names that show that a model keeps something which the ordinary reading, or that of a latent, does not see.
_BESIDE = (
    r"mamba|ssm|rwkv|lstm|recurrent|d_state|state_size|lru_width|linear_(attn|conv|num)|conv_l_cache|kda|index_head_dim|"
    r"compress_rat|cross_attention|mem_len|k_eq_v"
)
_OTHER_HEADS = r"(^|_)(kv|multi_query|query_group|key_value)(_|$)|v_head_dim|attn_config|attention_types|layer_pattern"
_UNDERSTOOD = {*KV_HEADS, *HEAD_DIM, REUSING}


class Settings(NamedTuple):
    """What a reading works on: fields of the whole model and of each layer, and the names of all that are set.

    Layers with the same fields have the same object, so that each is read once.
    """

    model_type: str
    model: Fields
    layers: tuple[Fields, ...]
    names: frozenset[str]


def ordinary(settings: Settings) -> list[CacheLayer]:
    """Keys and values of `num_key_value_heads` heads, each kept; windows and reused rows as the configuration says.

    Raises ValueError where heads cannot be read, and for a layer type or a window that is not understood.
    """
    owners, kinds = _owners(settings), _kinds(settings)
    read: dict[tuple[object, ...], CacheLayer] = {}
    layers = []
    for index, (layer, (kind, window)) in enumerate(zip(settings.layers, kinds, strict=True)):
        owner = owners.get(index)
        key = (layer, kind, window, owner)
        if key not in read:
            read[key] = _ordinary_layer(settings, layer, kind, window, owner)
        layers.append(read[key])
    return layers


def latent(settings: Settings) -> list[CacheLayer]:
    """Multi-head latent attention (arXiv 2405.04434): a latent and one rotary key, for all heads together."""
    read = {layer: _latent_layer(settings, layer) for layer in dict.fromkeys(settings.layers)}
    return [read[layer] for layer in settings.layers]


def unchecked(settings: Settings) -> tuple[list[CacheLayer], str]:
    """The reading of a model type that was not compared with a real cache, and a note that says so.

    What transformers stores is left open. Raises ValueError where the model may keep something else.
    """
    is_latent = settings.layers[0].count("kv_lora_rank") is not None
    beyond = re.compile(_BESIDE if is_latent else f"{_BESIDE}|{_OTHER_HEADS}")
    names = {settings.model_type, *settings.names} - _UNDERSTOOD
    strange = sorted(name for name in names if beyond.search(name.lower()))
    if strange:
        raise ValueError(
            f"what a {settings.model_type} model caches is not known here: {', '.join(strange[:4])} in its "
            "configuration may mean that it keeps more, or less, than keys and values"
        )
    source = "kv_lora_rank and qk_rope_head_dim" if is_latent else "its heads, head dim and layer types"
    note = f"{settings.model_type} was not compared with a real cache: this is read from {source} alone."
    layers = (latent if is_latent else ordinary)(settings)
    unknown = {layer: replace(layer, stored=None) for layer in dict.fromkeys(layers)}
    return [unknown[layer] for layer in layers], note


def heads_and_dim(settings: Settings, layer: Fields) -> tuple[int, int]:
    """Query heads, and the width of one. Raises ValueError where the configuration does not say."""
    heads, dim, width = layer.count(*HEADS), layer.count(*HEAD_DIM), layer.count(*WIDTH)
    if heads and not dim and width and width % heads == 0:
        dim = width // heads
    if not heads or not dim:
        raise ValueError(
            f"cannot read the heads of this {settings.model_type} model: {heads} query heads, width {width}, head dim "
            f"{dim}. A configuration needs num_attention_heads, and head_dim or a hidden_size that they divide"
        )
    return heads, dim


def _ordinary_layer(settings: Settings, layer: Fields, kind: str, window: int | None, owner: int | None) -> CacheLayer:
    heads, dim = heads_and_dim(settings, layer)
    if owner is not None:
        return CacheLayer(f"reuses layer {owner}", heads, dim, dim, (), (), owner)
    kept = (Kept(RowLayout.separate(dim), layer.count(*KV_HEADS) or heads, window),)
    return CacheLayer(kind, heads, dim, dim, kept, kept)


def _latent_layer(settings: Settings, layer: Fields) -> CacheLayer:
    numbers = {name: layer.count(name) for name in (HEADS[0], *LATENT)}
    missing = [name for name, number in numbers.items() if number is None]
    if missing:
        raise ValueError(f"this {settings.model_type} model has latent attention but no {', '.join(missing)}")
    heads, rank, rotary, content, value_dim = (number or 0 for number in numbers.values())
    row = (Kept(RowLayout.latent(rank, rotary), 1, what="latent and rotary key"),)
    return CacheLayer("MLA", heads, content + rotary, value_dim, row, row)


def _kinds(settings: Settings) -> list[tuple[str, int | None]]:
    """Kind and window of each layer; without `layer_types`, a window that is set is every layer's."""
    types = settings.model.texts("layer_types")
    sliding = settings.model.flag("use_sliding_window", default=True)
    if types is not None and len(types) != len(settings.layers):
        raise ValueError(f"the configuration names {len(types)} layer types for {len(settings.layers)} layers")
    bounds = {
        layer: (layer.count_or_none("sliding_window") if sliding else None, layer.count_or_none("attention_chunk_size"))
        for layer in dict.fromkeys(settings.layers)
    }
    kinds: list[tuple[str, int | None]] = []
    for index, layer in enumerate(settings.layers):
        window, chunk = bounds[layer]
        inferred = "sliding_attention" if window else "chunked_attention" if chunk else "full_attention"
        kinds.append(_kind(settings, index, inferred if types is None else types[index], window, chunk))
    return kinds


def _kind(settings: Settings, index: int, name: str, window: int | None, chunk: int | None) -> tuple[str, int | None]:
    if name == "full_attention":
        return "full", None
    known = {"sliding_attention": ("window", window), "chunked_attention": ("chunk", chunk)}
    if name not in known:
        raise ValueError(
            f"layer {index} of this {settings.model_type} model is {name!r}: what it keeps is not known here"
        )
    if not known[name][1]:
        raise ValueError(f"layer {index} is {name!r}, but the configuration names no window for it")
    return known[name]


def _owners(settings: Settings) -> dict[int, int]:
    """Layers that read the rows of an earlier one → that one: the last of their type that has rows (Gemma 3n, 4)."""
    count = len(settings.layers)
    first = max(count - (settings.model.count_or_none(REUSING) or 0), 0)
    types = settings.model.texts("layer_types") or ["full_attention"] * count
    last = {name: index for index, name in enumerate(types[:first])}
    owners = {}
    for index, name in enumerate(types[first:count], first):
        if name not in last:
            raise ValueError(f"layer {index} reads the rows of a {name!r} layer, and no layer below has any")
        owners[index] = last[name]
    return owners
