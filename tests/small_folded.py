"""Small random models of transformers that fold, and ways to run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from twofold.folding.fold import fold, new_cache, unfold

VOCABULARY = 61
PAD, LEAST = 0, 2


def randomised(config: PreTrainedConfig, dtype: torch.dtype, seed: int = 0) -> PreTrainedModel:
    """A model whose logits depend on everything: no scale is 1, no two matrices are alike."""
    config._experts_implementation = "eager"  # the grouped ones know no float64
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            wide = 1 + 0.2 * noise if parameter.ndim == 1 else noise * 1.2 * parameter.shape[-1] ** -0.5
            parameter.copy_(wide)
    return model


def latent_model(family: str, dtype: torch.dtype = torch.float64, **changes: Any) -> PreTrainedModel:
    """A model of multi-head latent attention with dense blocks; sizes are awkward unless `changes` say otherwise."""
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 27,
        "intermediate_size": 31,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "kv_lora_rank": 11,
        "q_lora_rank": 13,
        "qk_rope_head_dim": 6,
        "qk_nope_head_dim": 5,
        "v_head_dim": 7,
        "max_position_embeddings": 512,
        "pad_token_id": PAD,
        "bos_token_id": 1,
        "eos_token_id": None,
    } | changes
    if family in ("deepseek_v2", "deepseek_v3"):
        sizes["first_k_dense_replace"] = sizes["num_hidden_layers"]
    if family in ("glm4_moe_lite", "axk1"):
        sizes["mlp_layer_types"] = ["dense"] * sizes["num_hidden_layers"]
    return randomised(CONFIG_MAPPING[family](**sizes), dtype)


def deepseek_v2(dtype: torch.dtype = torch.float64, **changes: Any) -> PreTrainedModel:
    """DeepSeek-V2, without the low-rank query as its Lite model is."""
    return latent_model("deepseek_v2", dtype, **{"q_lora_rank": None} | changes)


def deepseek_v3(dtype: torch.dtype = torch.float64, **changes: Any) -> PreTrainedModel:
    """DeepSeek-V3."""
    return latent_model("deepseek_v3", dtype, **changes)


def deepseek_v4(dtype: torch.dtype = torch.float64, **changes: Any) -> PreTrainedModel:
    """DeepSeek-V4: a layer of each kind, and a second sliding one."""
    layers = changes.pop(
        "layer_types",
        ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention", "sliding_attention"],
    )
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 22,
        "moe_intermediate_size": 13,
        "num_hidden_layers": len(layers),
        "num_attention_heads": 6,
        "head_dim": 10,
        "partial_rotary_factor": 0.4,
        "q_lora_rank": 9,
        "n_routed_experts": 3,
        "num_experts_per_tok": 2,
        "layer_types": layers,
        "mlp_layer_types": ["moe"] * len(layers),
        "compress_rates": {"compressed_sparse_attention": 3, "heavily_compressed_attention": 5},
        "sliding_window": 7,
        "o_groups": 2,
        "o_lora_rank": 5,
        "index_n_heads": 2,
        "index_head_dim": 8,
        "index_topk": 3,
        "hc_mult": 2,
        "hc_sinkhorn_iters": 3,
        "max_position_embeddings": 512,
        "pad_token_id": PAD,
        "bos_token_id": 1,
        "eos_token_id": None,
    }
    return randomised(CONFIG_MAPPING["deepseek_v4"](**sizes | changes), dtype)


def gemma4(dtype: torch.dtype = torch.float64, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """Gemma 4: sliding layers with a window of 7, global ones with 22 dims, of which 4 are rotary."""
    layers = changes.pop("layer_types", ["sliding_attention", "full_attention"] * 2)
    sizes = {
        "vocab_size": VOCABULARY,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size": 27,
        "hidden_size_per_layer_input": 0,
        "intermediate_size": 31,
        "num_hidden_layers": len(layers),
        "layer_types": layers,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "num_global_key_value_heads": 2,
        "head_dim": 10,
        "global_head_dim": 22,
        "attention_k_eq_v": True,
        "sliding_window": 7,
        "max_position_embeddings": 512,
        "pad_token_id": PAD,
        "bos_token_id": 1,
        "eos_token_id": None,
    }
    return randomised(CONFIG_MAPPING["gemma4_text"](**sizes | changes), dtype, seed)


def some_tokens(batch: int, tokens: int, seed: int = 1) -> Tensor:
    """[B, T], without padding."""
    return torch.randint(LEAST, VOCABULARY, (batch, tokens), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def stepped(
    model: PreTrainedModel,
    ids_BT: Tensor,
    chunks: Sequence[int],
    mask_BT: Tensor | None = None,
    cache: Cache | None = None,
) -> tuple[Tensor, Cache]:
    """Logits [B, T, V] of `ids` given in chunks, and the cache, which may hold tokens before them."""
    assert sum(chunks) == ids_BT.shape[1]
    cache = new_cache(model) if cache is None else cache
    before, first, logits = int(cache.get_seq_length()), 0, []
    for chunk in chunks:
        stop = first + chunk
        named: dict[str, Tensor] = {}
        if mask_BT is not None:
            named["attention_mask"] = mask_BT[:, : before + stop]
            places_BT = mask_BT.cumsum(-1) - 1
            named["position_ids"] = places_BT.clamp(min=0)[:, before + first : before + stop]
        logits.append(model(input_ids=ids_BT[:, first:stop], cache=cache, use_cache=True, **named).logits)
        first = stop
    return torch.cat(logits, dim=1), cache


def padded(ids_BT: Tensor, starts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """`ids` with so much padding on the left of each sequence in place of tokens, and the mask [B, T]."""
    mask_BT = torch.arange(ids_BT.shape[1]) >= torch.tensor(starts)[:, None]
    return ids_BT.masked_fill(~mask_BT, PAD), mask_BT.long()


def both(model: PreTrainedModel, run: Callable[[PreTrainedModel], Any]) -> tuple[Any, Any]:
    """What `run` gives of the stock model and of the folded one."""
    stock = run(model)
    fold(model)
    try:
        return stock, run(model)
    finally:
        unfold(model)


def far(one: Tensor, other: Tensor) -> float:
    """The largest difference."""
    return float((one.double() - other.double()).detach().abs().max())
