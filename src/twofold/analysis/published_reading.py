"""The ordinary reading of a configuration: keys and values, each kept, with windows and with rows that layers reuse.

Field names are transformers', with the older ones that other configurations use beside them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from twofold.analysis.published import CacheLayer, Kept
from twofold.variants.layout import RowLayout

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
WIDTH = ("hidden_size", "n_embd", "d_model")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads")
HEAD_DIM = ("head_dim", "kv_channels")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")

# Names that show that a model keeps something which the ordinary reading, or that of a latent, does not see.
_BESIDE = (
    r"mamba|ssm|rwkv|lstm|recurrent|d_state|state_size|lru_width|linear_(attn|conv|num)|conv_l_cache|kda|index_head_dim|"
    r"compress_rat|cross_attention|mem_len|k_eq_v"
)
_OTHER_HEADS = r"(^|_)(kv|multi_query|query_group|key_value)(_|$)|v_head_dim|attn_config|attention_types|layer_pattern"
_UNDERSTOOD = {*KV_HEADS, *HEAD_DIM, "num_kv_shared_layers"}

Fields = Callable[..., Any]
"""Names → the value of the first that has one, or None."""


class Settings(NamedTuple):
    """What a reading works on: fields of the whole model and of each layer, and the names of all that are set."""

    model_type: str
    model: Fields
    layers: tuple[Fields, ...]
    names: frozenset[str]


def ordinary(settings: Settings) -> list[CacheLayer]:
    """Keys and values of `num_key_value_heads` heads, each kept; windows and reused rows as the configuration says.

    Raises ValueError where heads cannot be read, and for a layer type or a window that is not understood.
    """
    owners = _owners(settings)
    layers: list[CacheLayer] = []
    for index, (layer, (kind, window)) in enumerate(zip(settings.layers, _kinds(settings), strict=True)):
        heads, dim = heads_and_dim(settings, layer)
        if index in owners:
            layers.append(CacheLayer(f"reuses layer {owners[index]}", heads, dim, dim, (), (), owners[index]))
        else:
            kept = (Kept(RowLayout.separate(dim), layer(*KV_HEADS) or heads, window),)
            layers.append(CacheLayer(kind, heads, dim, dim, kept, kept))
    return layers


def latent(settings: Settings) -> list[CacheLayer]:
    """Multi-head latent attention (arXiv 2405.04434): a latent and one rotary key, for all heads together."""
    names = ("num_attention_heads", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    layers = []
    for layer in settings.layers:
        numbers = {name: layer(name) for name in names}
        missing = [name for name, number in numbers.items() if not number]
        if missing:
            raise ValueError(f"this {settings.model_type} model has latent attention but no {', '.join(missing)}")
        heads, rank, rotary, content, value_dim = numbers.values()
        row = (Kept(RowLayout.latent(rank, rotary), 1, what="latent and rotary key"),)
        layers.append(CacheLayer("MLA", heads, content + rotary, value_dim, row, row))
    return layers


def unchecked(settings: Settings) -> tuple[list[CacheLayer], str]:
    """The reading of a model type that was not compared with a real cache, and a note that says so.

    What transformers stores is left open. Raises ValueError where the model may keep something else.
    """
    is_latent = settings.layers[0]("kv_lora_rank") is not None
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
    return [replace(layer, stored=None) for layer in layers], note


def heads_and_dim(settings: Settings, layer: Fields) -> tuple[int, int]:
    """Query heads, and the width of one. Raises ValueError where the configuration does not say."""
    heads, dim, width = layer(*HEADS), layer(*HEAD_DIM), layer(*WIDTH)
    if heads and not dim and width and width % heads == 0:
        dim = width // heads
    if not heads or not dim:
        raise ValueError(
            f"cannot read the heads of this {settings.model_type} model: {heads} query heads, width {width}, head dim "
            f"{dim}. A configuration needs num_attention_heads, and head_dim or a hidden_size that they divide"
        )
    return heads, dim


def _kinds(settings: Settings) -> list[tuple[str, int | None]]:
    """Kind and window of each layer; without `layer_types`, a window that is set is every layer's."""
    types = settings.model("layer_types")
    sliding = settings.model("use_sliding_window") is not False
    if types is not None and len(types) != len(settings.layers):
        raise ValueError(f"the configuration names {len(types)} layer types for {len(settings.layers)} layers")
    kinds: list[tuple[str, int | None]] = []
    for index, layer in enumerate(settings.layers):
        window, chunk = layer("sliding_window") if sliding else None, layer("attention_chunk_size")
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
    first = count - (settings.model("num_kv_shared_layers") or 0)
    types = settings.model("layer_types") or ["full_attention"] * count
    owners = {}
    for index in range(max(first, 0), count):
        earlier = [i for i in range(first) if types[i] == types[index]]
        if not earlier:
            raise ValueError(f"layer {index} reads the rows of a {types[index]!r} layer, and no layer below has any")
        owners[index] = earlier[-1]
    return owners
