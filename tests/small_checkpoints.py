"""Small random models of the families that convert: sizes that are awkward, and no two tensors alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 61

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 37,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 97,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": None,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": VOCABULARY,
    "n_embd": 24,
    "n_head": 3,
    "n_layer": 2,
    "n_inner": 31,
    "n_positions": 97,
    "activation_function": "gelu",
    "bos_token_id": 1,
    "eos_token_id": None,
}
OPT: dict[str, Any] = {
    "model_type": "opt",
    **{name: SIZES[name] for name in ("vocab_size", "max_position_embeddings", "bos_token_id", "eos_token_id")},
    "hidden_size": 24,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "ffn_dim": 31,
    "pad_token_id": 1,
}
ROTARY = {"rope_parameters": {"rope_type": "default", "rope_theta": 50_000.0}, "rms_norm_eps": 1e-5}
MIXED = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}

CHECKPOINTS: Mapping[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **SIZES, **ROTARY},
    "llama MHA untied": {"model_type": "llama", **SIZES, "num_key_value_heads": 6, "tie_word_embeddings": False},
    "llama MQA, head dim 10": {"model_type": "llama", **SIZES, "num_key_value_heads": 1, "head_dim": 10},
    "mistral, window": {"model_type": "mistral", **SIZES, "sliding_window": 7, "head_dim": 10},
    "mistral untied": {"model_type": "mistral", **SIZES, "sliding_window": None, "tie_word_embeddings": False},
    "qwen2": {"model_type": "qwen2", **SIZES, **ROTARY},
    "qwen2 untied, windows": {"model_type": "qwen2", **SIZES, **MIXED, "tie_word_embeddings": False},
    "qwen3, head dim 10": {"model_type": "qwen3", **SIZES, "head_dim": 10},
    "qwen3 untied, windows": {"model_type": "qwen3", **SIZES, **MIXED, "tie_word_embeddings": False, "head_dim": 6},
    "gpt2": GPT2,
    "gpt2 as released": {**GPT2, "activation_function": "gelu_new", "n_embd": 22, "n_head": 2},
    "gpt2 with ReLU": {**GPT2, "activation_function": "relu"},
    "opt": OPT,
    "opt untied, GELU": {**OPT, "activation_function": "gelu", "tie_word_embeddings": False, "ffn_dim": 53},
    "gpt2 untied": {**GPT2, "tie_word_embeddings": False, "n_inner": None},
}
"""Name → configuration; tied where it does not say otherwise."""


def checkpoint(name: str, **others: Any) -> PreTrainedModel:
    fields = {"tie_word_embeddings": True, **CHECKPOINTS[name], **others}
    model: PreTrainedModel = AutoModelForCausalLM.from_config(CONFIG_MAPPING[fields.pop("model_type")](**fields)).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            deviation = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * deviation)
    return model


def equal_tensors(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Equal names, dtypes and bits."""
    same: Callable[[str], bool] = lambda n: one[n].dtype == other[n].dtype and torch.equal(one[n], other[n])  # noqa: E731
    return set(one) == set(other) and all(same(name) for name in one)
