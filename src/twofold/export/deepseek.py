"""K=V decoupled and MLA as transformers' DeepSeek-V3 (arXiv 2412.19437), all layers dense.

DeepSeek caches c = RMSNorm(W_a x) and one rotary key, and head h has the key [W_UK,h c | k_r] and the value W_UV,h c.
A decoupled layer is that with W_UK,h = W_UV,h = S_j, which selects the D dims of the head's group j out of G·D.
DeepSeek pairs neighbouring rotary dims, so that rows i and i + r/2 of ours become rows 2i and 2i + 1.

Where a group's heads share one key and one value of a latent, each has a copy of W_UK and W_UV. A latent that is not
normalised is so scaled that RMSNorm leaves it as it is (`identity_norm`).

Padding the latent of c dims to P and the rotary key of r dims to R with zeros changes nothing if
- W_a is multiplied by √(P/c) and the norm's weight by √(c/P): RMSNorm takes its mean over P dims, and its ε is added to
  the same number as before;
- the pairs of the rotary key take places among the R/2 at which they turn as before (`rotary_places`): with pair i at
  i·s, s = ⌊R/r⌋, the base θ becomes θ^(R/rs). Where r divides R it stays;
- the query is multiplied by √((d + R)/(d + r)), since scores are divided by √(d + R).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import DeepseekV3Config

from twofold.attention.latent import LatentProjections
from twofold.attention.projections import NORM_EPSILON, Projections
from twofold.export.identity_norm import Scale, identity_scale
from twofold.export.refusals import common_reasons, is_mixture, require_none
from twofold.export.rotary_places import Places, least_width, placed, places
from twofold.export.target import Padding, Target, common_changes, common_fields, is_tied
from twofold.export.weights import outside_attention, role_matrices, scaled, seams
from twofold.models.architecture import Architecture
from twofold.models.decoder import TwofoldForCausalLM

LATENT = "kv_a_proj_with_mqa"
"""DeepSeek's matrix for the latent and the rotary key."""


def deepseek(
    model: TwofoldForCausalLM, pad: Padding | None = None, untied: bool = False, called: str = "deepseek"
) -> Target:
    """The model as `DeepseekV3ForCausalLM`; `pad` fills its rows up, and unties it for vLLM. Errors say `called`.

    Raises ValueError with the reasons where DeepSeek-V3 cannot compute the same, or where `pad` is too small.
    """
    sizes, untied = model.config.architecture, untied or pad is not None
    require_none(reasons(sizes, pad), sizes, called)
    _require_small_numbers(model)
    sizes = sizes.at(0)
    own = Padding(sizes.row_layout.head_width * sizes.kv_heads, sizes.rotated_dims)
    row = _padded(own, pad)
    turned = places(sizes, row.rotary)
    assert turned is not None, "a reason against it"
    tensors = outside_attention(model)
    for number, seam in enumerate(seams(model)):
        layer = f"model.layers.{number}"
        made = _attention(seam, sizes, own, row, turned, tensors[f"{layer}.input_layernorm.weight"])
        tensors |= {f"{layer}.self_attn.{name}.weight": weight for name, weight in made.items()}
    return Target(
        config=_config(model, row, turned.base, untied),
        tensors=tensors,
        cache_numbers=row.latent + row.rotary,
        changes=(*_changes(sizes, own, row), *common_changes(model, untied)),
        notes=tuple(_notes(model, own, row, untied)),
        tiny_latent=not sizes.latent_norm,
    )


def reasons(sizes: Architecture, pad: Padding | None = None) -> Iterator[str]:
    """Why these sizes cannot be DeepSeek-V3's, in rows filled up to `pad`; none where they can."""
    yield from common_reasons(sizes)
    if sizes.is_recurrent or is_mixture(sizes):
        return
    if sizes.variant.rotary_apart:
        if sizes.rotary_pairs and places(sizes, pad.rotary if pad else sizes.rotated_dims) is None:
            yield _uneven(sizes)
    elif sizes.variant.latent:
        yield (
            "its keys are turned when they are made of the latent (on_read), and DeepSeek-V3's have a rotary key "
            "beside dims that are never turned: use MLA with a rotary key (of an ordinary model: convert --to MLA)"
        )
    elif sizes.variant.sharing.value_is_key:
        instead = "use K=V decoupled, which caches as little"
        yield (
            f"its {sizes.variant.treatment.value} rows hold keys whose own dims rotary turns, and DeepSeek-V3's latent "
            f"is never turned: {instead}"
        )
    else:
        yield "it caches keys and values apart, and DeepSeek-V3 one latent for both: use K=V decoupled or MLA, or llama"


def _uneven(sizes: Architecture) -> str:
    pairs = ", ".join(map(str, sorted(sizes.rotary_pairs)))
    return (
        f"its rotary key has the pairs {pairs} of a head's {sizes.head_dim // 2}, and the target's pairs turn in an "
        f"even progression: use pairs 0, s, 2s …, or deepseek with --pad, where a rotary key of {least_width(sizes)} "
        "dims holds these"
    )


def _require_small_numbers(model: TwofoldForCausalLM) -> None:
    """Raise ValueError where weights so small as `identity_norm` makes them would be zeros."""
    if not model.config.architecture.latent_norm and model.dtype == torch.float16:
        raise ValueError(
            "a latent without a norm (latent_norm false) is exported with weights far below 6e-5, where float16 begins "
            "to lose digits: keep the model in float32 or bfloat16"
        )


def _padded(own: Padding, pad: Padding | None) -> Padding:
    if pad is None:
        return own
    if pad.latent < own.latent or pad.rotary < own.rotary or pad.rotary % 2:
        raise ValueError(
            f"rows of {own} numbers (latent + rotary key) do not fit into {pad}, whose rotary dims are pairs: give "
            "larger sizes, or none"
        )
    return pad


def _config(model: TwofoldForCausalLM, row: Padding, base: float, untied: bool) -> DeepseekV3Config:
    sizes = model.config.architecture
    return DeepseekV3Config(
        **common_fields(model, untied),
        num_key_value_heads=sizes.heads,
        kv_lora_rank=row.latent,
        q_lora_rank=None,
        qk_rope_head_dim=row.rotary,
        qk_nope_head_dim=sizes.head_dim,
        v_head_dim=sizes.head_dim,
        rope_parameters={"rope_type": "default", "rope_theta": base},
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


def _attention(
    seam: Projections, sizes: Architecture, own: Padding, row: Padding, turned: Places, gain_M: Tensor
) -> dict[str, Tensor]:
    """The attention's tensors under DeepSeek's names, of one layer; `gain_M` is the weight of the norm before it."""
    query, latent, up_HDC = _parts(seam, sizes)
    norm, factor = _norm(seam, sizes, latent, row, gain_M)
    latent = _widened(scaled(latent, factor), row.latent, dim=0)
    return {
        "q_proj": _query(query, sizes, row, turned),
        LATENT: torch.cat([latent, placed(seam.k_rope_proj.weight, turned.of_pairs, row.rotary)]),
        "kv_a_layernorm": _widened(norm, row.latent, dim=0),
        "kv_b_proj": _widened(up_HDC.flatten(0, 1), row.latent, dim=1),
        "o_proj": seam.o_proj.weight,
    }


def _parts(seam: Projections, sizes: Architecture) -> tuple[Tensor, Tensor, Tensor]:
    """Query [H·(D + r), M], latent [c, M], and for each query head what makes its key and value of it, [H, 2D, c]."""
    if isinstance(seam, LatentProjections):
        ups = [up.weight.unflatten(0, (seam.score_heads, -1)) for up in (seam.k_up_proj, seam.v_up_proj)]
        up_GDC = torch.cat(ups, dim=1)
        return (
            seam.q_proj.weight,
            seam.latent_proj.weight,
            up_GDC.repeat_interleave(sizes.heads // seam.score_heads, dim=0),
        )
    roles = role_matrices(seam)
    return roles["query"], roles["key"], _selections(sizes, like=roles["key"]).repeat(1, 2, 1)


def _norm(seam: Projections, sizes: Architecture, latent: Tensor, row: Padding, gain_M: Tensor) -> tuple[Tensor, float]:
    """The weight of the latent's norm [c], and what the latent's matrix is multiplied by."""
    if sizes.latent_norm:
        norm = seam.latent_norm if isinstance(seam, LatentProjections) else seam.content_norm
        grown = (row.latent / len(latent)) ** 0.5
        return scaled(norm.weight, 1 / grown), grown
    found: Scale = identity_scale(latent, gain_M, row.latent, NORM_EPSILON)
    return torch.full_like(latent[:, 0], found.norm), found.matrix


def _query(weight: Tensor, sizes: Architecture, row: Padding, turned: Places) -> Tensor:
    """[H·(d + R), M], multiplied by what the target's scale d^−½ lacks of ours."""
    own = sizes.head_dim + sizes.rotated_dims
    ours, theirs = own**-sizes.scale_exponent, (sizes.head_dim + row.rotary) ** -0.5
    query_HDM = weight.unflatten(0, (sizes.heads, own))
    content_HDM, rotary_HDM = query_HDM.split([sizes.head_dim, sizes.rotated_dims], dim=1)
    rotary_HDM = placed(rotary_HDM, turned.of_pairs, row.rotary)
    return scaled(torch.cat([content_HDM, rotary_HDM], dim=1).flatten(0, 1), ours / theirs)


def _selections(sizes: Architecture, like: Tensor) -> Tensor:
    """[H, D, G·D]: for each query head the matrix that selects its group's dims."""
    groups_GDC = torch.eye(len(like), dtype=like.dtype, device=like.device).unflatten(0, (sizes.kv_heads, -1))
    return groups_GDC.repeat_interleave(sizes.heads // sizes.kv_heads, dim=0)


def _widened(weight: Tensor, width: int, dim: int) -> Tensor:
    """`weight` with zeros behind it, up to `width` along `dim`."""
    shape = list(weight.shape)
    shape[dim] = width - shape[dim]
    return torch.cat([weight, weight.new_zeros(shape)], dim=dim)


def _changes(sizes: Architecture, own: Padding, row: Padding) -> Iterator[str]:
    yield "rotary dims laid out in neighbouring pairs"
    if not sizes.variant.latent:
        yield "the up-projections are selections of the latent"
    elif sizes.variant.score_heads_for(sizes.heads) < sizes.heads:
        yield "each query head has a copy of its group's up-projections"
    if not sizes.latent_norm:
        yield "the latent scaled, so that the target's norm of it changes nothing"
    if row != own:
        yield (
            f"rows of {own} filled up to {row} with zeros, and the latent, its norm, the query and the rotary base "
            "changed to make up for it"
        )


def _notes(model: TwofoldForCausalLM, own: Padding, row: Padding, untied: bool) -> Iterator[str]:
    sizes = model.config.architecture
    if row != own:
        yield f"the zeros are cached: {sum(row)} numbers per token and layer, where {sum(own)} hold something"
    if not sizes.latent_norm:
        yield "the latent's weights are tiny, since it has no norm: an engine that computes in float16 loses them"
    if sizes.norm_epsilon != NORM_EPSILON:
        yield (
            f"transformers adds {NORM_EPSILON:g} to the latent's mean square whatever the configuration says; an "
            f"engine that takes rms_norm_eps, here {sizes.norm_epsilon:g}, is off by that: train with norm_epsilon "
            f"{NORM_EPSILON:g} for it"
        )
    if is_tied(model, untied):
        yield "head and embeddings are one tensor; engines that expect two (vLLM) need untied"
