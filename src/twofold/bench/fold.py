"""A decode step of models of transformers, as they are and folded, against the tokens in their caches.

Caches are filled with random numbers of the right shape: a prompt of 16,384 tokens takes minutes, and the time of a
step does not depend on what is cached. Weights are random too. Each model is a few layers with a small MLP and
vocabulary, so that its step is mostly attention: what folding changes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from twofold.bench.record import Machine, Row
from twofold.bench.sizes import Effort
from twofold.bench.timing import Contender, Watch, interleaved, rows, timed
from twofold.folding.fold import Folding, fold, new_cache
from twofold.folding.forms import Fold
from twofold.folding.rows import adopt
from twofold.variants.layout import cache_bytes, item_bytes

STOCK = "transformers"
VOCABULARY, MLP = 1_024, 128


@dataclass(frozen=True)
class Case:
    """A model that is measured at several numbers of cached tokens, in one or more forms (the first is named)."""

    name: str
    make: Callable[[], PreTrainedModel]
    forms: tuple[str, ...]
    contexts: tuple[int, ...]
    dtypes: tuple[str, ...] = ("float32",)


def deepseek_v2_lite() -> PreTrainedModel:
    """Two layers with the attention of DeepSeek-V2-Lite (16 heads, latent 512, 64 rotary dims; arXiv 2405.04434)."""
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    return DeepseekV2ForCausalLM(
        DeepseekV2Config(
            vocab_size=VOCABULARY,
            hidden_size=2_048,
            intermediate_size=MLP,
            num_hidden_layers=2,
            first_k_dense_replace=2,
            num_attention_heads=16,
            num_key_value_heads=16,
            kv_lora_rank=512,
            q_lora_rank=None,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
            max_position_embeddings=32_768,
        )
    )


def gemma4_31b() -> PreTrainedModel:
    """One global layer of Gemma 4 31B: 32 heads over 4 key/value heads of 512 dims, 128 of them rotary (2607.02770)."""
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    return Gemma4ForCausalLM(
        Gemma4TextConfig(
            vocab_size=VOCABULARY,
            vocab_size_per_layer_input=VOCABULARY,
            hidden_size=5_376,
            hidden_size_per_layer_input=0,
            intermediate_size=MLP,
            num_hidden_layers=1,
            layer_types=["full_attention"],
            num_attention_heads=32,
            num_key_value_heads=16,
            num_global_key_value_heads=4,
            global_head_dim=512,
            attention_k_eq_v=True,
            max_position_embeddings=262_144,
        )
    )


def gpt2() -> PreTrainedModel:
    """Two layers of GPT-2: 12 heads, width 768."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_layer=2, n_inner=MLP, n_positions=4_224))


def opt() -> PreTrainedModel:
    """Two layers of OPT-1.3B: 32 heads, width 2,048."""
    from transformers import OPTConfig, OPTForCausalLM

    return OPTForCausalLM(
        OPTConfig(
            vocab_size=VOCABULARY,
            hidden_size=2_048,
            word_embed_proj_dim=2_048,
            ffn_dim=MLP,
            num_hidden_layers=2,
            num_attention_heads=32,
            max_position_embeddings=4_224,
        )
    )


CASES = (
    Case("deepseek_v2", deepseek_v2_lite, ("latent",), (1_024, 4_096, 16_384)),
    Case("gemma4", gemma4_31b, ("row", "value"), (1_024, 16_384), ("float32", "bfloat16")),
    Case("gpt2", gpt2, ("input",), (512, 1_024, 4_096)),
    Case("opt", opt, ("input",), (512, 2_048, 4_096)),
)


class Decoding(NamedTuple):
    """A model and a cache that holds the tokens before its next step."""

    model: PreTrainedModel
    cache: Cache


def measure(effort: Effort, machine: Machine, watch: Watch) -> tuple[list[Row], list[str]]:
    """Rows for each case: folded against stock, and of Gemma 4 values alone against rows as well."""
    asked = [
        (case, dtype, context)
        for case in CASES
        for dtype in case.dtypes[: 1 if effort.quick else None]
        for context in case.contexts[: 1 if effort.quick else None]
    ]
    found: list[Row] = []
    for number, (case, dtype, context) in enumerate(asked):
        watch(number, len(asked), f"{case.name} {context} {dtype}")
        found += compare(case, dtype, context, effort.repeats, machine)
    watch(len(asked), len(asked), "")
    return found, []


def compare(case: Case, dtype: str, context: int, repeats: int, machine: Machine) -> list[Row]:
    """Rows of one model at one context: each form against stock, and against the forms before it."""
    torch.manual_seed(0)
    stock = case.make().eval().to(getattr(torch, dtype))
    with torch.no_grad():
        contenders = {STOCK: step(filled(stock, None, context))}
        roofs = {}
        for form in case.forms:
            model = copy.deepcopy(stock)
            folding = fold(model, form)
            contenders[form] = step(filled(model, folding, context))
            roofs[form] = machine.roof_seconds(*work(model, folding.folds, context, dtype))
        times = interleaved(contenders, repeats, warm_up=2)
    plain = dtype == case.dtypes[0]
    found: list[Row] = []
    for number, form in enumerate(case.forms):
        parts = [case.name, str(context), *([form] if len(case.forms) > 1 else []), *([] if plain else [dtype])]
        others = {name: times[name] for name in (STOCK, *case.forms[:number])}
        named = {f"folded, {name}" if name in case.forms else name: seconds for name, seconds in others.items()}
        found += rows("/".join(("fold", *parts)), {"ours": times[form], **named}, roofs[form], 1, context=context)
    return found


def filled(model: PreTrainedModel, folding: Folding | None, context: int) -> Decoding:
    """The model with a dynamic cache that holds `context` tokens of random numbers in every layer."""
    cache = new_cache(model)
    if folding is not None:
        adopt(cache, folding.folds, folding.windows)
    for layer, like in zip(cache.layers, first_rows(model), strict=True):
        layer.update(*(None if part is None else _random(part, context) for part in like))
    return Decoding(model, cache)


def first_rows(model: PreTrainedModel) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """What a pass of one token hands to the cache of each layer."""
    cache = new_cache(model)
    model(torch.zeros(1, 1, dtype=torch.long), cache=cache, use_cache=True)
    return [layer.kept()[:2] if hasattr(layer, "kept") else (layer.keys, layer.values) for layer in cache.layers]


def step(decoding: Decoding) -> Contender:
    """One token through the model; its row is forgotten again, which is not timed."""
    model, cache = decoding
    ids_BT = torch.zeros(1, 1, dtype=torch.long)
    length = int(cache.get_seq_length())
    once = timed(
        lambda: model(ids_BT, cache=cache, use_cache=True, position_ids=torch.full((1, 1), length, dtype=torch.long))
    )

    def contender() -> float:
        with torch.inference_mode():
            seconds = once()
            cache.crop(-1)
        return seconds

    return contender


def work(model: PreTrainedModel, folds: Sequence[Fold], context: int, dtype: str) -> tuple[float, float]:
    """Bytes that a folded step must read (weights without embeddings, and rows), and its operations."""
    size = item_bytes(dtype)
    weights = sum(p.numel() for name, p in model.named_parameters() if "embed" not in name and "wte" not in name)
    rows_bytes, products = 0, float(weights)
    for one in folds:
        assert one.layout is not None
        rows_bytes += cache_bytes(one.layout, one.kv_heads, tokens=context, itemsize=size)
        heads = model.config.num_attention_heads
        products += context * heads * (one.layout.key_dim + one.layout.value.width)
    return size * weights + rows_bytes, 2 * products


def _random(like: torch.Tensor, tokens: int) -> torch.Tensor:
    """Random numbers in the shape of one token's, for many: [B, G, 1, W] to [B, G, T, W], [B, 1, W] to [B, T, W]."""
    shape = list(like.shape)
    shape[-2] = tokens
    return torch.randn(shape, dtype=torch.float32).to(like.dtype)
