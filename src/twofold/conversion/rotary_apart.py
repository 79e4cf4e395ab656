"""Layers with full rotary made into layers whose rotary key stands apart: one of r dims that all heads share.

Pure functions of matrices and inputs: nothing here knows of models. A few pairs keep their turning, each as one complex
number per token for all key heads (`rotary_importance.shareable`). What they lack, and all other pairs, becomes content
without positions, each with a complex factor instead of its turning, which each query head has of its own. Content and
values are then kept in fewer numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from twofold.conversion.layer_maps import LayerMaps, Shared, root_of, shared
from twofold.conversion.rotary_importance import Text, mean_turns, pairs_of, rows_from, shareable
from twofold.conversion.turn_fit import Apart, Factors, fitted_factors
from twofold.conversion.weighted_latent import folded, normed, readers, weighed, weighted_latent
from twofold.explain.sharing import Inputs

KEY_WEIGHT = 2.0


def latent_apart(
    maps: LayerMaps, inputs: Inputs, text: Text, pairs: Sequence[int], dims: int, key_weight: float = KEY_WEIGHT
) -> Shared:
    """Tensors of `GQA-g MLA` without a norm of the latent: c = `dims` + r = 2·len(`pairs`) numbers per token.

    `q_proj` [H·(D + r), M] with content dims first, `latent_proj` [c, M], `k_rope_proj` [r, M], `k_up_proj` and
    `v_up_proj` [G·D, c], `o_proj`. `pairs` are among the D/2 of full rotary, and the rotary key has them in that order.
    Queries are scaled by √((D + r)/D), since scores are now divided by √(D + r). Factors in place of turning are fitted
    to the scores on `text`, before and after the latent is found. The latent is the best of its size for contents as
    queries see them and values as the output does, each as a share of their whole; keys' errors count `key_weight`²
    times.

    Exact where c = 2·G·D and nothing turns but what `pairs` keep: key heads that are complex multiples of one another
    in each kept pair (one head is), and no others that rotary turns. `lost` leaves out what the lack of turning costs.

    Raises ValueError for c below 1 or over min(2·G·D, M), for pairs that are not there or given twice, for a weight
    that is not positive, and for an odd D.
    """
    widest = min(maps.row_width, maps.key_RM.shape[1])
    if not 1 <= dims <= widest:
        raise ValueError(f"a latent of {dims} dims: it has from 1 to {widest}, where it keeps all keys and values")
    apart, factors = _prepared(maps, inputs, text, pairs, key_weight)
    both_RM = torch.cat(_weighed(maps, inputs, apart, factors, key_weight))
    latent = weighted_latent(both_RM, torch.cat([apart.rest_RM, maps.value_RM]), inputs, dims)
    key_RC, value_RC = latent.up_RC.chunk(2)
    content_RM, value_RM = latent.made_RM.chunk(2)
    factors = fitted_factors(maps, text, apart, content_RM, factors)
    tensors = {
        "q_proj": _query(maps, apart, factors, _content_query(maps, factors)),
        "latent_proj": latent.down_CM,
        "k_rope_proj": rows_from(apart.key_PM[None]),
        "k_up_proj": key_RC,
        "v_up_proj": value_RC,
        "o_proj": maps.output_MR,
    }
    return shared(maps, content_RM + _turned_part(maps, apart), value_RM, inputs, tensors)


def content_apart(
    maps: LayerMaps, inputs: Inputs, text: Text, pairs: Sequence[int], key_weight: float = KEY_WEIGHT
) -> Shared:
    """Tensors of `K=V GQA-g decoupled` without a norm of the content: G·D + r numbers per token.

    `q_proj` [H·(D + r), M] with content dims first, `k_proj` [G·D, M], `k_rope_proj` [r, M], `o_proj`. As
    `latent_apart`, with one latent of D dims for each key head's content and values, which are both that latent: the
    maps from it to the head's key and value go into its query heads and their output, as no rotary stands between.

    Raises ValueError as `latent_apart` does.
    """
    apart, factors = _prepared(maps, inputs, text, pairs, key_weight)
    seen, used, rest, value = (
        one.chunk(maps.kv_heads)
        for one in (*_weighed(maps, inputs, apart, factors, key_weight), apart.rest_RM, maps.value_RM)
    )
    both = zip(map(torch.cat, zip(seen, used, strict=True)), map(torch.cat, zip(rest, value, strict=True)), strict=True)
    kept = [weighted_latent(*one, inputs, maps.head_dim) for one in both]
    content_RM, value_RM = (torch.cat(one) for one in zip(*(one.made_RM.chunk(2) for one in kept), strict=True))
    key_ups, value_ups = zip(*(one.up_RC.chunk(2) for one in kept), strict=True)
    factors = fitted_factors(maps, text, apart, content_RM, factors)
    query_RM = folded(key_ups, _content_query(maps, factors), maps.head_dim)
    tensors = {
        "q_proj": _query(maps, apart, factors, query_RM),
        "k_proj": torch.cat([one.down_CM for one in kept]),
        "k_rope_proj": rows_from(apart.key_PM[None]),
        "o_proj": folded(value_ups, maps.output_MR.T, maps.head_dim).T,
    }
    return shared(maps, content_RM + _turned_part(maps, apart), value_RM, inputs, tensors)


def _prepared(
    maps: LayerMaps, inputs: Inputs, text: Text, pairs: Sequence[int], key_weight: float
) -> tuple[Apart, Factors]:
    """The layer's scores in two parts, and their factors fitted to contents as they are."""
    _require_pairs(pairs, maps.head_dim // 2)
    if not key_weight > 0:
        raise ValueError(f"the weight of keys' errors is {key_weight}: give a positive one")
    mean_HP = mean_turns(maps, text)
    apart = _apart(maps, inputs, list(pairs), mean_HP)
    plain = Factors(mean_HP, torch.ones(maps.heads, len(pairs), dtype=mean_HP.dtype))
    return apart, fitted_factors(maps, text, apart, apart.rest_RM, plain)


def _require_pairs(pairs: Sequence[int], there: int) -> None:
    if len(set(pairs)) != len(pairs) or not all(0 <= pair < there for pair in pairs):
        raise ValueError(f"rotary pairs {list(pairs)}: give different ones from 0 to {there - 1}")


def _apart(maps: LayerMaps, inputs: Inputs, pairs: list[int], mean_HP: Tensor) -> Apart:
    found = shareable(maps, inputs, mean_HP)
    write_PG, read_PG = found.write_PG[pairs], found.read_PG[pairs]
    rest_GPM, query_HPM = pairs_of(maps.key_RM, maps.kv_heads), pairs_of(maps.query_RM, maps.heads)[:, pairs]
    key_PM = torch.einsum("pg,gpm->pm", read_PG, rest_GPM[:, pairs])
    rest_GPM[:, pairs] -= write_PG.T[..., None] * key_PM
    per_query_HP = write_PG.T.repeat_interleave(maps.heads // maps.kv_heads, dim=0)
    return Apart(pairs, per_query_HP.conj()[..., None] * query_HPM, key_PM, rows_from(rest_GPM))


def _turned_part(maps: LayerMaps, apart: Apart) -> Tensor:
    """What the shared numbers make of each head's key, not turned: [G·D, M]."""
    return maps.key_RM - apart.rest_RM


def _content_query(maps: LayerMaps, factors: Factors) -> Tensor:
    """[H·D, M]: queries for content keys, with what stands in place of turning."""
    return rows_from(factors.content_HP.conj()[..., None] * pairs_of(maps.query_RM, maps.heads))


def _query(maps: LayerMaps, apart: Apart, factors: Factors, content_RM: Tensor) -> Tensor:
    """`q_proj` [H·(D + r), M], with the scale of the scores made up for; content dims first."""
    turned_HPM = factors.turned_HP.conj()[..., None] * apart.query_HPM
    parts = [content_RM.unflatten(0, (maps.heads, -1)), turned_HPM.real, turned_HPM.imag]
    wide_HDM = torch.cat(parts, dim=1)
    return (wide_HDM * (wide_HDM.shape[1] / maps.head_dim) ** 0.5).flatten(0, 1)


def _weighed(
    maps: LayerMaps, inputs: Inputs, apart: Apart, factors: Factors, key_weight: float
) -> tuple[Tensor, Tensor]:
    """Contents and values [G·D, M] as their readers weigh them, of mean square `key_weight`² and 1 in all."""
    asked = readers(_content_query(maps, factors) @ root_of(inputs), maps.kv_heads, maps.head_dim)
    used = readers(maps.output_MR.T, maps.kv_heads, maps.head_dim)
    content_RM = normed(weighed(asked, apart.rest_RM), inputs, beside_RM=weighed(asked, maps.key_RM))
    return content_RM * key_weight, normed(weighed(used, maps.value_RM), inputs)
