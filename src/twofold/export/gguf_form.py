"""How a GGUF file says what a model is: an architecture of llama.cpp, its sizes, and the names of its tensors.

llama.cpp's `llama` is transformers' Llama with rotary pairs of neighbouring dims. Its `deepseek2` decodes absorbed:
`attn_k_b` [H, c, d] moves the query to the latent, `attn_v_b` [H, d, c] comes after the sum, and the value is a view of
the key's row, so that its cache has no values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from twofold.export.rotary_places import placed

if TYPE_CHECKING:
    from gguf import GGUFWriter

Layer = Mapping[str, Tensor]
"""One layer's weights by name."""


class Form(NamedTuple):
    """An architecture by llama.cpp's name, what writes the sizes of a configuration that others do not have, and what
    makes GGUF's tensors of a layer's attention of those with transformers' names.
    """

    architecture: str
    add_sizes: Callable[[GGUFWriter, Any], None]
    attention: Callable[[Any, Layer], Layer]


MLP_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Transformers' names of a layer's tensors outside attention, and GGUF's."""

LATENT = "attn_kv_a_mqa"
"""GGUF's name of the matrix for the latent and the rotary key."""


def add_common_sizes(writer: GGUFWriter, config: Any) -> None:
    """What every architecture has."""
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def _add_llama(writer: GGUFWriter, config: Any) -> None:
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)


def _llama_attention(config: Any, layer: Layer) -> Layer:
    def turned(weight: Tensor) -> Tensor:
        pairs = tuple(range(config.head_dim // 2))
        return placed(weight.unflatten(0, (-1, config.head_dim)), pairs, config.head_dim).flatten(0, 1)

    return {
        "attn_q": turned(layer["self_attn.q_proj"]),
        "attn_k": turned(layer["self_attn.k_proj"]),
        "attn_v": layer["self_attn.v_proj"],
        "attn_output": layer["self_attn.o_proj"],
    }


def add_latent_sizes(writer: GGUFWriter, config: Any) -> None:
    """What `deepseek2` has beside the lengths and heads of what is cached."""
    writer.add_q_lora_rank(0)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    writer.add_leading_dense_block_count(config.num_hidden_layers)
    # Required, and used by no dense layer.
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_expert_count(0)
    writer.add_expert_used_count(0)
    writer.add_expert_shared_count(0)
    writer.add_expert_weights_scale(1.0)


def _add_deepseek2(writer: GGUFWriter, config: Any) -> None:
    latent, rotary = config.kv_lora_rank, config.qk_rope_head_dim
    add_latent_sizes(writer, config)
    writer.add_head_count_kv(1)  # the latent is one head
    writer.add_key_length(latent + rotary)
    writer.add_value_length(latent)
    writer.add_key_length_mla(config.qk_nope_head_dim + rotary)
    writer.add_value_length_mla(config.v_head_dim)


def latent_attention(layer: Layer) -> Layer:
    """What `deepseek2` has beside the up-projections."""
    return {
        "attn_q": layer["self_attn.q_proj"],
        LATENT: layer["self_attn.kv_a_proj_with_mqa"],
        "attn_kv_a_norm": layer["self_attn.kv_a_layernorm"],
        "attn_output": layer["self_attn.o_proj"],
    }


def _deepseek2_attention(config: Any, layer: Layer) -> Layer:
    up_HDC = layer["self_attn.kv_b_proj"].unflatten(0, (config.num_attention_heads, -1))
    key_HDC, value_HDC = torch.tensor_split(up_HDC, [config.qk_nope_head_dim], dim=1)
    return {**latent_attention(layer), "attn_k_b": key_HDC.mT, "attn_v_b": value_HDC}


FORMS = {
    "llama": Form("llama", _add_llama, _llama_attention),
    "deepseek_v3": Form("deepseek2", _add_deepseek2, _deepseek2_attention),
}
"""By the type of transformers' model."""
