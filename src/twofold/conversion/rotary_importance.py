"""Which rotary pairs of a layer need their turning, and what stands for it where it goes.

Pure functions of matrices and inputs: nothing here knows of models. Pair p of a head is the complex number
z_p + i z_(p + D/2), which rotary turns by e^(iθ_p) per position, θ_p = base^(−2p/D). A score over a distance Δ is then
Re Σ_p q̄_p e^(−iθ_pΔ) k_p: with the turning replaced by one number μ_p, pair p is off by q̄_p (e^(−iθ_pΔ) − μ_p) k_p.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from twofold.attention.rotary import frequencies
from twofold.conversion.layer_maps import LayerMaps, root_of
from twofold.explain.sharing import Inputs

FLOOR = 1e-6  # of a weight that would be 0, so that every head keeps a say


class Text(NamedTuple):
    """Inputs of one layer in their order, `x_BTM` [B, T, M] from position 0 of each window, and the rotary `base`, None
    where nothing turns.
    """

    x_BTM: Tensor  # noqa: N815
    base: float | None


class Shareable(NamedTuple):
    """For each pair the part of G heads' keys that one number κ can stand for: k_g ≈ `write_PG`[p, g] κ_p.

    κ_p = Σ_g `read_PG`[p, g] k_gp, complex both; the multiples have mean square 1 over heads, and the largest is real.
    `saved_P`: Σ over heads of E |q|² E |u_g κ|² (1 − |μ|²), the squared
    error that goes where the pair keeps its turning; `whole`: Σ over heads and pairs of E |q|² E |k|².
    """

    write_PG: Tensor  # noqa: N815
    read_PG: Tensor  # noqa: N815
    saved_P: Tensor  # noqa: N815
    whole: float


def pairs_of(map_RM: Tensor, heads: int) -> Tensor:
    """[heads·D, M] to complex pairs [heads, D/2, M], half-split. ValueError for an odd D."""
    if len(map_RM) % (2 * heads):
        raise ValueError(f"{len(map_RM)} rows of {heads} heads fall into no rotary pairs: a head needs an even dim")
    real, imag = map_RM.unflatten(0, (heads, -1)).chunk(2, dim=1)
    return torch.complex(real.contiguous(), imag.contiguous())


def rows_from(pairs_HPM: Tensor) -> Tensor:
    """The inverse of `pairs_of`: [heads, n, M] complex to [heads·2n, M]."""
    return torch.cat([pairs_HPM.real, pairs_HPM.imag], dim=1).flatten(0, 1)


def turns(length: int, pairs: int, base: float | None) -> Tensor:
    """e^(iθ_p t), [T, P] complex, for positions t below `length`; 1 where nothing turns."""
    per_position_P = torch.zeros(pairs, dtype=torch.float64) if base is None else frequencies(2 * pairs, base)
    angles_TP = torch.arange(length, dtype=torch.float64)[:, None] * per_position_P
    return torch.polar(torch.ones_like(angles_TP), angles_TP)


def mean_turns(maps: LayerMaps, text: Text) -> Tensor:
    """μ [H, D/2] complex: the mean of e^(−iθ_pΔ) over the distances at which each head looks, by the layer's attention.

    Every query position counts alike. Of all constants it is the nearest to the turning, on that attention.
    """
    per_group = maps.heads // maps.kv_heads
    found_HP = torch.zeros(maps.heads, maps.head_dim // 2, dtype=torch.complex128)
    for x_TM in text.x_BTM.double():
        turn_TP = turns(len(x_TM), maps.head_dim // 2, text.base)
        query_HTP, key_GTP = turned(maps, x_TM, turn_TP)
        for head, query_TP in enumerate(query_HTP):
            scores_TT = (query_TP @ key_GTP[head // per_group].mH).real * maps.head_dim**-0.5
            looks_TT = causal(scores_TT).to(turn_TP.dtype)
            found_HP[head] += (turn_TP.conj() * (looks_TT @ turn_TP)).mean(0)
    return found_HP / len(text.x_BTM)


def turned(maps: LayerMaps, x_TM: Tensor, turn_TP: Tensor) -> tuple[Tensor, Tensor]:
    """Queries [H, T, P] and keys [G, T, P], complex and turned to their positions."""
    query_HPM, key_GPM = pairs_of(maps.query_RM, maps.heads), pairs_of(maps.key_RM, maps.kv_heads)
    return made(query_HPM, x_TM) * turn_TP, made(key_GPM, x_TM) * turn_TP


def made(map_HPM: Tensor, x_TM: Tensor) -> Tensor:
    """What complex maps make of real inputs: [H, P, M] and [T, M] to [H, T, P]."""
    return torch.complex(x_TM @ map_HPM.real.mT, x_TM @ map_HPM.imag.mT)


def causal(scores_NS: Tensor, positions_N: Tensor | None = None) -> Tensor:
    """Weights of attention, of queries at given `positions_N` (0 to N − 1 if not given), each on all up to its own."""
    positions_N = torch.arange(len(scores_NS)) if positions_N is None else positions_N
    later_NS = torch.arange(scores_NS.shape[1]) > positions_N[:, None]
    return scores_NS.masked_fill(later_NS, -torch.inf).softmax(-1)


def shareable(maps: LayerMaps, inputs: Inputs, mean_HP: Tensor) -> Shareable:
    """The best shared number of each pair, with heads weighed by what the lack of turning costs them.

    With K = E k k̄ᵀ [G, G] over the heads' keys of a pair and w_g = Σ_(h of g) E |q_h|² (1 − |μ_h|²), κ is the first
    principal component of √w k, and each head's key is the least-squares multiple of it. A complex factor commutes with
    turning, so that queries take it up.
    """
    root_MN = root_of(inputs).to(torch.complex128)
    key_PGN = (pairs_of(maps.key_RM, maps.kv_heads) @ root_MN).transpose(0, 1)
    query_HP = (pairs_of(maps.query_RM, maps.heads) @ root_MN).abs().square().sum(-1)
    lacking_HP = (1 - mean_HP.abs().square()).clamp(min=FLOOR)
    weight_PG, power_PG = (_by_group(one, maps).T for one in (query_HP * lacking_HP, query_HP))
    left_PGG, values_PK, _ = torch.linalg.svd(weight_PG.sqrt()[..., None] * key_PGN, full_matrices=False)
    read_PG = left_PGG[..., 0].conj() * weight_PG.sqrt()
    shared_PN = torch.einsum("pg,pgn->pn", read_PG, key_PGN)
    power_P = shared_PN.abs().square().sum(-1)
    write_PG = torch.einsum("pgn,pn->pg", key_PGN, shared_PN.conj()) / power_P.where(power_P > 0, 1)[:, None]
    unit_P1 = _unit(write_PG)
    whole = float((power_PG * key_PGN.abs().square().sum(-1)).sum())
    return Shareable(write_PG / unit_P1, read_PG * unit_P1, values_PK[:, 0].square(), whole)


def importance(maps: LayerMaps, inputs: Inputs, mean_HP: Tensor) -> Tensor:
    """[D/2]: the squared error of scores that each pair saves by keeping its turning in one number for all heads, as a
    share of Σ over heads and pairs of E |q|² E |k|².

    Errors are those of complex products, q̄ (e^(−iθΔ) − μ) k with μ = E e^(−iθΔ) = `mean_HP` [H, D/2], over queries,
    keys and distances that are independent; they add up over pairs. What the heads' keys have besides the shared number
    is not saved. 0 throughout where keys or queries are 0.
    """
    found = shareable(maps, inputs, mean_HP)
    return found.saved_P / found.whole if found.whole > 0 else torch.zeros_like(found.saved_P)


def choose_pairs(importances: Sequence[Tensor], rotary_dims: int, *, spaced: bool = False) -> tuple[int, ...]:
    """The r/2 pairs with the largest sum of importance over layers, in ascending order; of equals the lower.

    `spaced`: the best of 0, s, 2s, … for any s. Their frequencies are those of an ordinary rotary key of r dims with
    the base θ^(sr/D), which is what engines have.

    Raises ValueError for no layers, and for r that is odd, negative or more than D.
    """
    if not importances:
        raise ValueError("no layers to choose rotary pairs by: give the importance of at least one")
    total_P = torch.stack(list(importances)).sum(0)
    if rotary_dims % 2 or not 0 <= rotary_dims <= 2 * len(total_P):
        raise ValueError(f"{rotary_dims} rotary dims of heads with {2 * len(total_P)}: take an even number up to that")
    count = rotary_dims // 2
    if spaced and count:
        widest = (len(total_P) - 1) // max(1, count - 1)
        steps = [range(0, count * step, step) for step in range(1, max(1, widest) + 1)]
        return tuple(max(steps, key=lambda pairs: float(total_P[list(pairs)].sum())))
    order = torch.argsort(total_P, descending=True, stable=True)[:count]
    return tuple(sorted(order.tolist()))


def _by_group(one_HP: Tensor, maps: LayerMaps) -> Tensor:
    """[H, P] summed over the query heads of each key head: [G, P]."""
    return one_HP.unflatten(0, (maps.kv_heads, -1)).sum(1)


def _unit(write_PG: Tensor) -> Tensor:
    """[P, 1] complex: the phase of each pair's largest multiple, times their root mean square; 1 where all are 0."""
    largest_P1 = write_PG.gather(1, write_PG.abs().argmax(1, keepdim=True))
    unit_P1 = largest_P1.sgn() * write_PG.abs().square().mean(1, keepdim=True).sqrt()
    return unit_P1.where(unit_P1 != 0, 1)
