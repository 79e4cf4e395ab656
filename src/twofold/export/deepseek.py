"""K=V decoupled and MLA as transformers' DeepSeek-V3 (arXiv 2412.19437), all layers dense.

DeepSeek caches c = RMSNorm(W_a x) and one rotary key, and head h has the key [W_UK,h c | k_r] and the value W_UV,h c.
A decoupled layer is that with W_UK,h = W_UV,h = S_j, which selects the D dims of the head's group j out of G·D.
DeepSeek pairs neighbouring rotary dims, so that rows i and i + r/2 of ours become rows 2i and 2i + 1.

Padding the latent of c dims to P and the rotary key of r dims to R with zeros changes nothing if
- W_a is multiplied by √(P/c) and the norm's weight by √(c/P): RMSNorm takes its mean over P dims, and its ε is added to
  the same number as before;
- pair i of the rotary key takes place i·s of R/2, s = ⌊R/r⌋, and the base θ becomes θ^(R/rs), so that the frequency
  there is θ^(−2i/r) as before. Where r divides R the base stays; with s = 1 it would grow beyond float32 for a small r;
- the query is multiplied by √((d + R)/(d + r)), since scores are divided by √(d + R).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import DeepseekV3Config

from twofold.attention.latent import LatentProjections
from twofold.attention.projections import NORM_EPSILON, Projections
from twofold.export.refusals import common_reasons, require_none
from twofold.export.target import Padding, Target, common_changes, common_fields, is_tied
from twofold.export.weights import outside_attention, role_matrices, scaled, seams
from twofold.models.architecture import Architecture
from twofold.models.decoder import TwofoldForCausalLM


def deepseek(model: TwofoldForCausalLM, pad: Padding | None = None, untied: bool = False) -> Target:
    """The model as `DeepseekV3ForCausalLM`; `pad` fills its rows up, and unties it for vLLM.

    Raises ValueError with the reasons where DeepSeek-V3 cannot compute the same, or where `pad` is too small.
    """
    sizes, untied = model.config.architecture, untied or pad is not None
    require_none(reasons(sizes), sizes, "deepseek")
    own = Padding(sizes.row_layout.head_width * sizes.kv_heads, sizes.rotated_dims)
    row = _padded(own, pad)
    tensors = outside_attention(model)
    for number, seam in enumerate(seams(model)):
        made = _attention(seam, sizes, own, row)
        tensors |= {f"model.layers.{number}.self_attn.{name}.weight": weight for name, weight in made.items()}
    return Target(
        config=_config(model, own, row, untied),
        tensors=tensors,
        cache_numbers=row.latent + row.rotary,
        changes=(*_changes(sizes, own, row), *common_changes(model, untied)),
        notes=tuple(_notes(model, own, row, untied)),
    )


def reasons(sizes: Architecture) -> Iterator[str]:
    """Why these sizes cannot be DeepSeek-V3's; none where they can."""
    yield from common_reasons(sizes)
    if sizes.is_recurrent or sizes.variant.rotary_apart:
        return
    if sizes.variant.sharing.value_is_key:
        instead = "use K=V decoupled, which caches as little"
        yield (
            f"its {sizes.variant.treatment.value} rows hold keys whose own dims rotary turns, and DeepSeek-V3's latent "
            f"is never turned: {instead}"
        )
    else:
        yield "it caches keys and values apart, and DeepSeek-V3 one latent for both: use K=V decoupled or MLA, or llama"


def _padded(own: Padding, pad: Padding | None) -> Padding:
    if pad is None:
        return own
    if pad.latent < own.latent or pad.rotary < own.rotary or pad.rotary % 2:
        raise ValueError(
            f"rows of {own} numbers (latent + rotary key) do not fit into {pad}, whose rotary dims are pairs: give "
            "larger sizes, or none"
        )
    return pad


def _config(model: TwofoldForCausalLM, own: Padding, row: Padding, untied: bool) -> DeepseekV3Config:
    sizes = model.config.architecture
    return DeepseekV3Config(
        **common_fields(model, untied),
        num_key_value_heads=sizes.heads,
        kv_lora_rank=row.latent,
        q_lora_rank=None,
        qk_rope_head_dim=row.rotary,
        qk_nope_head_dim=sizes.head_dim,
        v_head_dim=sizes.head_dim,
        rope_parameters={"rope_type": "default", "rope_theta": _rotary_base(sizes, row)},
        rope_interleave=True,
        first_k_dense_replace=sizes.layers,
        num_nextn_predict_layers=0,
        # No layer has experts; readers of the configuration count some all the same.
        moe_intermediate_size=sizes.mlp,
        n_routed_experts=1,
        n_shared_experts=1,
        num_experts_per_tok=1,
        n_group=1,
        topk_group=1,
    )


def _attention(seam: Projections, sizes: Architecture, own: Padding, row: Padding) -> dict[str, Tensor]:
    """The attention's tensors under DeepSeek's names, of one layer."""
    if isinstance(seam, LatentProjections):
        query, latent, norm = seam.q_proj.weight, seam.latent_proj.weight, seam.latent_norm.weight
        ups = [up.weight.unflatten(0, (sizes.heads, -1)) for up in (seam.k_up_proj, seam.v_up_proj)]
        up_HDC = torch.cat(ups, dim=1)
    else:
        roles = role_matrices(seam)
        query, latent, norm = roles["query"], roles["key"], seam.content_norm.weight
        up_HDC = _selections(sizes, like=latent).repeat(1, 2, 1)
    grown = (row.latent / own.latent) ** 0.5
    rotary_key = _rotary_rows(seam.k_rope_proj.weight, row.rotary)
    return {
        "q_proj": _query(query, sizes, row),
        "kv_a_proj_with_mqa": torch.cat([_widened(scaled(latent, grown), row.latent, dim=0), rotary_key]),
        "kv_a_layernorm": _widened(scaled(norm, 1 / grown), row.latent, dim=0),
        "kv_b_proj": _widened(up_HDC.flatten(0, 1), row.latent, dim=1),
        "o_proj": seam.o_proj.weight,
    }


def _query(weight: Tensor, sizes: Architecture, row: Padding) -> Tensor:
    """[H·(d + R), M], multiplied by what the target's scale d^−½ lacks of ours."""
    own = sizes.head_dim + sizes.rotated_dims
    ours, theirs = own**-sizes.scale_exponent, (sizes.head_dim + row.rotary) ** -0.5
    query_HDM = weight.unflatten(0, (sizes.heads, own))
    content_HDM, rotary_HDM = query_HDM.split([sizes.head_dim, sizes.rotated_dims], dim=1)
    rotary_HDM = _rotary_rows(rotary_HDM, row.rotary)
    return scaled(torch.cat([content_HDM, rotary_HDM], dim=1).flatten(0, 1), ours / theirs)


def _selections(sizes: Architecture, like: Tensor) -> Tensor:
    """[H, D, G·D]: for each query head the matrix that selects its group's dims."""
    groups_GDC = torch.eye(len(like), dtype=like.dtype, device=like.device).unflatten(0, (sizes.kv_heads, -1))
    return groups_GDC.repeat_interleave(sizes.heads // sizes.kv_heads, dim=0)


def _rotary_rows(weight_RM: Tensor, width: int) -> Tensor:
    """[…, r, M] to […, width, M]: half-split pairs (i, i + r/2) become neighbours, in every s-th place for a pair."""
    halves_2PM = weight_RM.unflatten(-2, (2, -1))
    pairs, stride = halves_2PM.shape[-2], _stride(weight_RM.shape[-2], width)
    made = weight_RM.new_zeros((*halves_2PM.shape[:-3], width // 2, 2, weight_RM.shape[-1]))
    made[..., : pairs * stride : stride, :, :] = halves_2PM.transpose(-3, -2)
    return made.flatten(-3, -2)


def _stride(rotary_dims: int, width: int) -> int:
    """Places from one rotary pair to the next."""
    return width // rotary_dims


def _rotary_base(sizes: Architecture, row: Padding) -> float:
    own = sizes.rotated_dims
    return sizes.rotary_base ** (row.rotary / (own * _stride(own, row.rotary)))


def _widened(weight: Tensor, width: int, dim: int) -> Tensor:
    """`weight` with zeros behind it, up to `width` along `dim`."""
    shape = list(weight.shape)
    shape[dim] = width - shape[dim]
    return torch.cat([weight, weight.new_zeros(shape)], dim=dim)


def _changes(sizes: Architecture, own: Padding, row: Padding) -> Iterator[str]:
    yield "rotary dims laid out in neighbouring pairs"
    if not sizes.variant.latent:
        yield "the up-projections are selections of the latent"
    if row != own:
        yield (
            f"rows of {own} filled up to {row} with zeros, and the latent, its norm, the query and the rotary base "
            "changed to make up for it"
        )


def _notes(model: TwofoldForCausalLM, own: Padding, row: Padding, untied: bool) -> Iterator[str]:
    sizes = model.config.architecture
    if row != own:
        yield f"the zeros are cached: {sum(row)} numbers per token and layer, where {sum(own)} hold something"
    if sizes.norm_epsilon != NORM_EPSILON:
        yield (
            f"transformers adds {NORM_EPSILON:g} to the latent's mean square whatever the configuration says; an "
            f"engine that takes rms_norm_eps, here {sizes.norm_epsilon:g}, is off by that: train with norm_epsilon "
            f"{NORM_EPSILON:g} for it"
        )
    if is_tied(model, untied):
        yield "head and embeddings are one tensor; engines that expect two (vLLM) need untied"
