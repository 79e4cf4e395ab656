"""The model types whose reading is checked, and the families that the ordinary reading does not fit.

What transformers stores was read in its source, version 5.24, and a test compares every type in `CHECKED` with the
bytes of a real cache. Any other model type is read with a note, or refused where it may keep something else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from twofold.analysis.published import CacheLayer, Kept, PublishedCache, two_parts
from twofold.analysis.published_fields import KV_HEADS, POSITIONS, Fields
from twofold.analysis.published_reading import Settings, heads_and_dim, latent, ordinary, unchecked
from twofold.variants.layout import RowLayout


def read_layers(settings: Settings) -> PublishedCache:
    """What every layer of a model caches. Raises ValueError where the configuration does not say it for certain."""
    reading = CHECKED.get(settings.model_type)
    if reading is None:
        layers, note = unchecked(settings)
        notes = [note]
    else:
        layers, notes = reading(settings), list(NOTES.get(settings.model_type, ()))
    if any(kept.window and kept.window > 1 for layer in layers for kept in layer.needed):
        notes.append("Of a window of w tokens the newest w are counted, that of the current step included.")
    return PublishedCache(settings.model_type, tuple(layers), settings.model.count(*POSITIONS), tuple(notes))


def falcon(settings: Settings) -> list[CacheLayer]:
    """Falcon: one key/value head with `multi_query`; the newer blocks keep theirs repeated for every query head."""
    heads, dim = heads_and_dim(settings, settings.model)
    newer = settings.model.flag("new_decoder_architecture")
    grouped = settings.model.count("num_kv_heads") or heads
    needed = grouped if newer or not settings.model.flag("multi_query") else 1
    return _alike(settings, needed, heads if newer else needed, heads, dim)


def bigcode(settings: Settings) -> list[CacheLayer]:
    """GPT-BigCode: one key/value head with `multi_query`, else as many as query heads."""
    heads, dim = heads_and_dim(settings, settings.model)
    kv_heads = 1 if settings.model.flag("multi_query") else heads
    return _alike(settings, kv_heads, kv_heads, heads, dim)


def gemma4(settings: Settings) -> list[CacheLayer]:
    """Gemma 4 (arXiv 2607.02770): with `attention_k_eq_v`, a global layer needs one vector, and two are stored."""
    layers = ordinary(settings)
    if not settings.model.flag("attention_k_eq_v"):
        return layers
    return [_needs_one(layer) if layer.kind == "full" else layer for layer in layers]


def indexed_latent(settings: Settings) -> list[CacheLayer]:
    """DeepSeek-V3.2: the rows of a latent, and a key of its own for the indexer that picks the tokens to read."""
    keys = Kept(RowLayout.shared(settings.model.needed("index_head_dim")), 1, what="indexer keys")
    layers = latent(settings)
    indexed = {
        layer: replace(layer, kind="MLA, indexed", needed=(*layer.needed, keys), stored=(*layer.needed, keys))
        for layer in dict.fromkeys(layers)
    }
    return [indexed[layer] for layer in layers]


def deepseek_v4(settings: Settings) -> list[CacheLayer]:
    """DeepSeek-V4 (arXiv 2606.19348, section 2.3): K=V of one head in a window, and compressed entries beside it."""
    dim, heads, index_dim = (
        settings.model.needed(name) for name in ("head_dim", "num_attention_heads", "index_head_dim")
    )
    window = Kept(RowLayout.shared(dim), 1, settings.model.needed("sliding_window"), what="key = value")
    rates = Fields(settings.model.part("compress_rates") or {})
    heavily, sparse = (rates.needed(f"{how}_attention") for how in ("heavily_compressed", "compressed_sparse"))
    types = _layer_types(settings)
    beside = {
        "sliding_attention": (),
        # A stride that is not full yet is kept as its raw entries and their gates.
        "heavily_compressed_attention": _compressed(dim, heavily, dim),
        # Each entry also mixes the stride before it, by a second series: twice the width, and one stride carried over.
        "compressed_sparse_attention": (
            *_compressed(dim, sparse, 2 * dim),
            *_compressed(index_dim, sparse, 2 * index_dim, "indexer keys"),
            Kept.state(sparse * 2 * (dim + index_dim), "last stride", stride=sparse),
        ),
    }
    layers = {}
    for name in dict.fromkeys(types):
        if name not in beside:
            raise ValueError(
                f"a layer of this {settings.model_type} model is {name!r}: what it keeps is not known here"
            )
        needed = (window, *beside[name])
        stored = needed if beside[name] else (replace(window, layout=RowLayout.separate(dim)),)
        kind = {"sliding_attention": "window, K=V"}.get(name, name.removesuffix("_attention").replace("_", " "))
        layers[name] = CacheLayer(kind, heads, dim, dim, needed, stored)
    return [layers[name] for name in types]


def delta_rule(settings: Settings) -> list[CacheLayer]:
    """Qwen3-Next: some layers are ordinary; the others keep a float32 state and the inputs of a convolution."""
    key_heads, value_heads, key_dim, value_dim, kernel = (
        settings.model.needed(f"linear_{name}")
        for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
    )
    states = (
        Kept.state(kernel * (2 * key_heads * key_dim + value_heads * value_dim), "convolution"),
        Kept.state(value_heads * key_dim * value_dim, "recurrent state", dtype="float32"),
    )
    heads, dim = heads_and_dim(settings, settings.model)
    kv_heads = settings.model.needed(KV_HEADS[0])
    attention = _alike(settings, kv_heads, kv_heads, heads, dim)
    recurrent = CacheLayer("recurrent", 0, 0, 0, states, states)
    types = _layer_types(settings)
    return [recurrent if name == "linear_attention" else full for name, full in zip(types, attention, strict=True)]


def _layer_types(settings: Settings) -> list[str]:
    types = settings.model.texts("layer_types") or []
    if len(types) != len(settings.layers):
        raise ValueError(f"the configuration names {len(types)} layer types for {len(settings.layers)} layers")
    return types


def _needs_one(layer: CacheLayer) -> CacheLayer:
    one = replace(layer.needed[0], layout=RowLayout.shared(layer.key_dim), what="key = value")
    return replace(layer, kind="full, K=V", needed=(one,))


def _compressed(dim: int, rate: int, width: int, what: str = "compressed entries") -> tuple[Kept, Kept]:
    """Entries of `dim`, one for each `rate` tokens; of a stride that is not full, `width` for entry and gate each."""
    raw = Kept(two_parts(width, width), 1, stride=rate, unfinished=True, what=f"{what}, unfinished")
    return Kept(RowLayout.shared(dim), 1, stride=rate, what=what), raw


def _alike(settings: Settings, needed: int, stored: int, heads: int, dim: int) -> list[CacheLayer]:
    row = RowLayout.separate(dim)
    return [CacheLayer("full", heads, dim, dim, (Kept(row, needed),), (Kept(row, stored),))] * len(settings.layers)


_ORDINARY = (
    "afmoe apertus arcee bitnet bloom codegen cohere cohere2 ctrl cwm diffllama doge dots1 ernie4_5 "
    "ernie4_5_moe exaone exaone4 flex_olmo gemma gemma2 gemma3_text gemma3n_text glm glm4 glm4_moe gpt2 "
    "gpt_neox gpt_oss gptj granite granitemoe granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe "
    "internlm3 jais2 jetmoe llama llama4_text minimax_m2 ministral ministral3 mistral mixtral nanochat "
    "nemotron olmo olmo2 olmo3 olmoe opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe seed_oss "
    "smollm3 solar_open stablelm starcoder2 vaultgemma xglm"
)
_LATENT = "axk1 deepseek_v2 deepseek_v3 glm4_moe_lite longcat_flash minicpm3 youtu"

CHECKED: dict[str, Callable[[Settings], list[CacheLayer]]] = {
    **dict.fromkeys(_ORDINARY.split(), ordinary),
    **dict.fromkeys(_LATENT.split(), latent),
    "deepseek_v32": indexed_latent,
    "deepseek_v4": deepseek_v4,
    "falcon": falcon,
    "gemma4_text": gemma4,
    "gemma4_unified_text": gemma4,
    "gpt_bigcode": bigcode,
    "qwen3_next": delta_rule,
}
"""Model type of the text model → its reading. A test compares each with the bytes of a real cache."""

_MLA_NOTE = "transformers caches the latent and the rotary key, and makes keys and values of all of it at every step."
_GEMMA4_NOTE = (
    "Where K=V, the key is the rotated, rescaled value: one vector is enough if keys are rotated when read, and with "
    "the rotated quarter of the key kept beside it 1.25 are. transformers stores both."
)
NOTES = {
    **dict.fromkeys((*_LATENT.split(), "deepseek_v32"), (_MLA_NOTE,)),
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), (_GEMMA4_NOTE,)),
    "falcon": ("With new_decoder_architecture, transformers repeats the keys and values for every query head.",),
    "deepseek_v4": (
        "Counted: the window, compressed entries, indexer keys, the stride that is not full yet with its gates, and "
        "the last stride that the next entry mixes in. transformers stores the plain window layers twice.",
    ),
    "qwen3_next": ("The recurrent state is kept in float32, whatever the dtype.",),
}
"""Model type → what a reader of its numbers should know."""
