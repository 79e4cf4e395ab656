"""Small random models of the families that fold: for parity, and to check another version of transformers with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 101
POSITIONS = 128


SIZES: dict[str, Any] = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}


def gemma4() -> dict[str, Any]:
    """Two sliding layers with a window of 16 and two global ones, head dim 32 of which 8 are rotary."""
    kinds = ["sliding_attention", "full_attention"] * 2
    return {
        "model_type": "gemma4_text",
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size": 48,
        "hidden_size_per_layer_input": 0,
        "intermediate_size": 64,
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_global_key_value_heads": 2,
        "head_dim": 16,
        "global_head_dim": 32,
        "attention_k_eq_v": True,
        "sliding_window": 16,
        "max_position_embeddings": POSITIONS,
    }


def deepseek_v2() -> dict[str, Any]:
    """Two dense layers, latent 16, rotary key 8."""
    return {
        "model_type": "deepseek_v2",
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "first_k_dense_replace": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "kv_lora_rank": 16,
        "q_lora_rank": None,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
        "max_position_embeddings": POSITIONS,
    }


def deepseek_v3() -> dict[str, Any]:
    """The same with a low-rank query."""
    return deepseek_v2() | {"model_type": "deepseek_v3", "q_lora_rank": 24}


def deepseek_v4() -> dict[str, Any]:
    """A layer of each kind and a second sliding one, window 16."""
    kinds = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention", "sliding_attention"]
    return {
        "model_type": "deepseek_v4",
        "hidden_size": 48,
        "moe_intermediate_size": 24,
        "num_hidden_layers": len(kinds),
        "num_attention_heads": 4,
        "head_dim": 16,
        "partial_rotary_factor": 0.5,
        "q_lora_rank": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "layer_types": kinds,
        "mlp_layer_types": ["moe"] * len(kinds),
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        "sliding_window": 16,
        "o_groups": 2,
        "o_lora_rank": 8,
        "index_n_heads": 2,
        "index_head_dim": 8,
        "index_topk": 4,
        "hc_mult": 2,
        "hc_sinkhorn_iters": 3,
        "max_position_embeddings": POSITIONS,
    }


def gpt2() -> dict[str, Any]:
    """Two layers of four heads."""
    return {"model_type": "gpt2", "n_layer": 2, "n_embd": 48, "n_head": 4, "n_positions": POSITIONS}


def opt() -> dict[str, Any]:
    """Two layers of four heads."""
    return {
        "model_type": "opt",
        "num_hidden_layers": 2,
        "hidden_size": 48,
        "word_embed_proj_dim": 48,
        "num_attention_heads": 4,
        "ffn_dim": 64,
        "max_position_embeddings": POSITIONS,
    }


TINY: Mapping[str, Callable[[], dict[str, Any]]] = {
    "gemma4": gemma4,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "deepseek_v4": deepseek_v4,
    "gpt2": gpt2,
    "opt": opt,
}
"""Each family's configuration, to which `SIZES` are common."""


def tiny_model(family: str, seed: int = 0) -> PreTrainedModel:
    """The family's model with random weights, norms' scales about 1 and no two alike, in evaluation mode.

    Raises ValueError for a family that has none.
    """
    if family not in TINY:
        raise ValueError(f"unknown family {family!r}: choose one of {', '.join(TINY)}")
    named = SIZES | TINY[family]()
    config = CONFIG_MAPPING[named.pop("model_type")](**named)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:  # scales of norms, and biases
                    parameter.uniform_(0.5, 1.5)
                else:
                    parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return model
