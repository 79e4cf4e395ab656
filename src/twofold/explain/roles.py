"""The query, key and value of every position, before rotary, from what a layer's projections are given."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from twofold.attention.latent import LatentProjections
from twofold.attention.projections import Projections
from twofold.variants.choices import ROLES


class Roles(NamedTuple):
    """Queries [B, T, H, D], keys [B, T, G, D] and values [B, T, G, D]; one tensor where roles are one vector."""

    q_BTHD: Tensor  # noqa: N815
    k_BTGD: Tensor  # noqa: N815
    v_BTGD: Tensor  # noqa: N815


def own_roles(seam: Projections, x_BTM: Tensor, row_seam: Projections, row_x_BTM: Tensor) -> Roles:
    """Of a Twofold layer; `row_seam` and `row_x_BTM` are those of the layer whose rows it reads, mostly its own.

    After the norms of queries and keys, and with the scales of a diagonal variant. A key with a rotary part beside the
    content (MLA, decoupled) has it behind the content, as the query has.
    """
    if isinstance(seam, LatentProjections):
        return _latent_roles(seam, x_BTM)
    if seam is row_seam and x_BTM is row_x_BTM:
        made = seam.roles(x_BTM, ROLES)
    else:
        made = seam.roles(x_BTM, ("query",)) | row_seam.roles(row_x_BTM, ("key", "value"))
    query, key, value = (made[role] for role in ROLES)
    variant, heads, kv_heads = seam.variant, seam.sizes.heads, seam.kv_heads
    if variant.decoupled:
        value = row_seam.content(key)
        key = _beside(value, row_seam.k_rope_proj(row_x_BTM))
    if variant.diagonal:
        if variant.sharing.query_is_key:
            query = query * seam.query_scale.unflatten(0, (heads, -1))
        if variant.sharing.value_is_key:
            value = value * seam.value_scale.unflatten(0, (kv_heads, -1))
        key = key * seam.key_factors()
    return Roles(query, key, value)


def _latent_roles(seam: LatentProjections, x_BTM: Tensor) -> Roles:
    latent_BTC, kv_heads = seam.latent(x_BTM), seam.score_heads
    content_BTGD = seam.keys(latent_BTC)
    return Roles(
        seam.queries(x_BTM),
        _beside(content_BTGD, seam.k_rope_proj(x_BTM)) if seam.variant.rotary_apart else content_BTGD,
        seam.v_up_proj(latent_BTC).unflatten(-1, (kv_heads, -1)),
    )


def _beside(content_BTGD: Tensor, rotary_BTR: Tensor) -> Tensor:
    """The rotary key that all heads share, behind the content of each."""
    return torch.cat([content_BTGD, rotary_BTR[:, :, None].expand(*content_BTGD.shape[:3], -1)], dim=-1)


def published_roles(module: Any, x_BTM: Tensor) -> Roles:
    """Of an attention module of transformers with `q_proj`, `k_proj` and `v_proj` (and `q_norm` and `k_norm` by head,
    which then come after them) or with GPT-2's `c_attn`.
    """
    if hasattr(module, "c_attn"):
        parts = module.c_attn(x_BTM).split(module.split_size, dim=-1)
    else:
        parts = tuple(getattr(module, f"{role}_proj")(x_BTM) for role in "qkv")
    query, key, value = (part.unflatten(-1, (-1, module.head_dim)) for part in parts)
    if hasattr(module, "q_norm"):
        query, key = module.q_norm(query), module.k_norm(key)
    return Roles(query, key, value)
