"""K=V decoupled in llama.cpp with keys and values apart: what the same function costs where nothing is shared.

Two forms, since llama.cpp has none for every case:
- `EXPANDED`, its `deepseek2` without absorption: keys and values of every *query* head are made of the latent and
  cached, H·(2d + r) numbers. The same file as the export but for the up-projections, which are one tensor.
- `GROUPED`, its `mimo2` (keys wider than values, rotary over a part of them): keys and values of each of the G
  key/value heads, G·(2d + r) numbers, each key with its own copy of the rotary key. It has no norm over all heads'
  content, which is left out; a model without that norm (`latent_norm` false) is computed exactly. Its layers must have
  a window, which is here as long as the context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from twofold.export.gguf_form import Form, Layer, add_latent_sizes, latent_attention
from twofold.export.target import Target, common_fields
from twofold.export.weights import outside_attention, role_matrices, seams
from twofold.models.architecture import Architecture
from twofold.models.decoder import TwofoldForCausalLM

if TYPE_CHECKING:
    from gguf import GGUFWriter


def _add_expanded(writer: GGUFWriter, config: Any) -> None:
    add_latent_sizes(writer, config)
    writer.add_head_count_kv(config.num_attention_heads)
    writer.add_key_length(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length(config.v_head_dim)


def _expanded_attention(config: Any, layer: Layer) -> Layer:
    return {**latent_attention(layer), "attn_kv_b": layer["self_attn.kv_b_proj"]}


EXPANDED = Form("deepseek2", _add_expanded, _expanded_attention)


def grouped(model: TwofoldForCausalLM) -> Target:
    """A decoupled model as what `GROUPED` writes: q, k and v with the rotary dims before the content's."""
    sizes = model.config.architecture
    assert sizes.variant.decoupled
    tensors = outside_attention(model)
    for number, seam in enumerate(seams(model)):
        roles = role_matrices(seam)
        turned_GRM = seam.k_rope_proj.weight.expand(sizes.kv_heads, -1, -1)
        key_GDM = torch.cat([turned_GRM, roles["key"].unflatten(0, (sizes.kv_heads, -1))], dim=1)
        made = {
            "q_proj": _rotary_first(roles["query"], sizes),
            "k_proj": key_GDM.flatten(0, 1),
            "v_proj": roles["key"],
            "o_proj": seam.o_proj.weight,
        }
        tensors |= {f"model.layers.{number}.self_attn.{name}.weight": weight for name, weight in made.items()}
    config = PreTrainedConfig(
        **common_fields(model, untied=True),  # `mimo2` has no head that is its embeddings
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        qk_rope_head_dim=sizes.rotated_dims,
        rope_parameters={"rope_type": "default", "rope_theta": sizes.rotary_base},
    )
    numbers = sizes.kv_heads * (2 * sizes.head_dim + sizes.rotated_dims)
    return Target(config, tensors, numbers, changes=(), notes=())


def _rotary_first(query: Tensor, sizes: Architecture) -> Tensor:
    """[H·(D + r), M] with the r dims of each head first; llama.cpp turns the first ones, half-split as ours."""
    content_HDM, turned_HRM = query.unflatten(0, (sizes.heads, -1)).tensor_split([sizes.head_dim], dim=1)
    return torch.cat([turned_HRM, content_HDM], dim=1).flatten(0, 1)


def _add_grouped(writer: GGUFWriter, config: Any) -> None:
    base = config.rope_parameters["rope_theta"]
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim + config.qk_rope_head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    writer.add_rope_freq_base_swa(base)
    writer.add_sliding_window(config.max_position_embeddings)
    writer.add_sliding_window_pattern([True] * config.num_hidden_layers)
    writer.add_expert_feed_forward_length(config.intermediate_size)


def _grouped_attention(config: Any, layer: Layer) -> Layer:
    names = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}
    return {name: layer[f"self_attn.{theirs}"] for theirs, name in names.items()}


GROUPED = Form("mimo2", _add_grouped, _grouped_attention)
