"""A DeepSeek-V3 target as a GGUF file of llama.cpp's `deepseek2`, whose cache keeps latent and rotary key once.

llama.cpp decodes absorbed: `attn_k_b` [H, c, d] moves the query to the latent, `attn_v_b` [H, d, c] comes after the
sum, and the value is a view of the key's row, so that its cache has no values. It adds the ε of all norms to the
latent's mean square as well, ε', where ours is 1e-6: the latent times √(ε'/1e-6) gives the same norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from twofold.attention.projections import NORM_EPSILON
from twofold.export.deepseek import deepseek
from twofold.export.gguf_tokenizer import add_tokenizer
from twofold.export.target import Target
from twofold.export.weights import scaled
from twofold.models.decoder import TwofoldForCausalLM

if TYPE_CHECKING:
    from gguf import GGUFWriter
    from transformers import PreTrainedTokenizerBase

TYPES = ("f32", "f16", "q8_0")
"""How matrices are stored; vectors are f32."""
ARCHITECTURE = "deepseek2"

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Transformers' names of a layer's tensors, and GGUF's; `kv_b_proj` becomes two."""


def gguf(model: TwofoldForCausalLM, untied: bool = False) -> Target:
    """The model as DeepSeek-V3 whose latent has the norm that llama.cpp computes. Raises ValueError as `deepseek`."""
    target = deepseek(model, untied=untied)
    grown = (target.config.rms_norm_eps / NORM_EPSILON) ** 0.5
    tensors = dict(target.tensors)
    for name in tensors:
        if name.endswith("kv_a_proj_with_mqa.weight"):
            latent_CM, key_RM = tensors[name].tensor_split([target.config.kv_lora_rank])
            tensors[name] = torch.cat([scaled(latent_CM, grown), key_RM])
    changed = () if grown == 1 else (f"the latent times {grown:.4g}, since llama.cpp adds the ε of all norms to it",)
    return target._replace(tensors=tensors, changes=(*target.changes, *changed), notes=())


def write_gguf(target: Target, path: Path, kind: str, tokenizer: PreTrainedTokenizerBase | None) -> None:
    """Write a target of `gguf` as one GGUF file with its matrices as `kind` (see `TYPES`).

    Rows whose width is no multiple of 32 stay f16 where q8_0 is asked for. Without a tokenizer the file has none.
    """
    from gguf import GGUFWriter

    writer = GGUFWriter(path, ARCHITECTURE)
    _add_sizes(writer, target.config)
    add_tokenizer(writer, target.config, tokenizer)
    for name, tensor in _tensors(target):
        _add_tensor(writer, name, tensor, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_sizes(writer: GGUFWriter, config: Any) -> None:
    latent, rotary = config.kv_lora_rank, config.qk_rope_head_dim
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(1)  # the latent is one head
    writer.add_vocab_size(config.vocab_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_q_lora_rank(0)
    writer.add_kv_lora_rank(latent)
    writer.add_key_length(latent + rotary)
    writer.add_value_length(latent)
    writer.add_key_length_mla(config.qk_nope_head_dim + rotary)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_rope_dimension_count(rotary)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_leading_dense_block_count(config.num_hidden_layers)
    # Required, and used by no dense layer.
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_expert_count(0)
    writer.add_expert_used_count(0)
    writer.add_expert_shared_count(0)
    writer.add_expert_weights_scale(1.0)


def _tensors(target: Target) -> Iterator[tuple[str, Tensor]]:
    config, made = target.config, target.tensors
    yield "token_embd.weight", made["model.embed_tokens.weight"]
    yield "output_norm.weight", made["model.norm.weight"]
    if not config.tie_word_embeddings:
        yield "output.weight", made["lm_head.weight"]
    for layer in range(config.num_hidden_layers):
        own = {name: made[f"model.layers.{layer}.{name}.weight"] for name in (*_NAMES, "self_attn.kv_b_proj")}
        for theirs, name in _NAMES.items():
            yield f"blk.{layer}.{name}.weight", own[theirs]
        up_HDC = own["self_attn.kv_b_proj"].unflatten(0, (config.num_attention_heads, -1))
        key_HDC, value_HDC = up_HDC.tensor_split([config.qk_nope_head_dim], dim=1)
        yield f"blk.{layer}.attn_k_b.weight", key_HDC.mT
        yield f"blk.{layer}.attn_v_b.weight", value_HDC


def _add_tensor(writer: GGUFWriter, name: str, tensor: Tensor, kind: str) -> None:
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    values = np.ascontiguousarray(tensor.detach().float().cpu().numpy())
    if values.ndim == 1 or kind == "f32":
        writer.add_tensor(name, values)
    elif kind == "f16" or values.shape[-1] % 32:
        writer.add_tensor(name, values.astype(np.float16))
    else:
        stored = GGMLQuantizationType.Q8_0
        writer.add_tensor(name, quantize(values, stored), raw_dtype=stored)
