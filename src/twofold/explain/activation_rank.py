"""How many dims the queries, keys and values of given tokens use, and the attention maps, beside random matrices."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from twofold.explain.activation_similarity import random_roles
from twofold.explain.activations import LayerActivations, Scored
from twofold.explain.rank import effective_rank, singular_values, stable_rank
from twofold.explain.roles import Roles

Measures = dict[str, float | list[float]]
LETTERS = "qkv"


def activation_ranks(activations: LayerActivations, seed: int) -> Measures:
    """Ranks of what a layer makes of all its B · T positions, and of its attention.

    - `q_activations`, `k_activations`, `v_activations`: effective rank of the vectors of all heads side by side, less
      their mean over positions: a direction that all tokens have says nothing of them. `…_stable`: the stable rank,
      `…_heads` the effective rank of each head's vectors, `…_most` the largest possible, `…_random` that of matrices
      with independent normal entries on the same input.
    - `maps`: effective rank of a head's attention weights [T, T], the mean over texts and heads, `…_heads` by head;
      `maps_stable`; `maps_most` T; `maps_random`, that of softmax(q·k / √d) of random matrices on the first text, under
      the same mask. Nothing of a recurrence, which has none.

    NaN for what does not vary.
    """
    roles = Roles(activations.q_BTHD, activations.k_BTGD, activations.v_BTGD)
    drawn = random_roles(activations, seed)
    found: Measures = {}
    for letter, role, random in zip(LETTERS, roles, drawn, strict=True):
        heads_HND = _centred(role).transpose(0, 1)
        values = singular_values(_centred(role).flatten(1))
        name = f"{letter}_activations"
        found |= {
            name: float(effective_rank(values)),
            f"{name}_stable": float(stable_rank(values)),
            f"{name}_heads": effective_rank(singular_values(heads_HND)).tolist(),
            f"{name}_most": float(min(len(heads_HND[0]) - 1, heads_HND.shape[0] * heads_HND.shape[2])),
            f"{name}_random": float(effective_rank(singular_values(_centred(random).flatten(1)))),
        }
    scored = activations.scored
    return found if scored is None else found | _of_maps(scored, drawn)


def _of_maps(scored: Scored, drawn: Roles) -> Measures:
    ranks, stable = [], []
    for maps_BTT in scored.maps_BHTT.unbind(1):  # one head at a time, in float64
        values_BT = singular_values(maps_BTT)
        ranks.append(float(effective_rank(values_BT).mean()))
        stable.append(float(stable_rank(values_BT).mean()))
    return {
        "maps": math.fsum(ranks) / len(ranks),
        "maps_heads": ranks,
        "maps_stable": math.fsum(stable) / len(stable),
        "maps_most": float(scored.maps_BHTT.shape[-1]),
        "maps_random": _of_random_maps(scored, drawn),
    }


def _of_random_maps(scored: Scored, drawn: Roles) -> float:
    """The mean over heads, on the first text."""
    query_HTD, key_GTD = (role[0].double().transpose(0, 1) for role in (drawn.q_BTHD, drawn.k_BTGD))
    group, unseen_TT = len(query_HTD) // len(key_GTD), ~scored.seen_BTT[0]
    ranks = []
    for head, query_TD in enumerate(query_HTD):
        scores_TT = query_TD @ key_GTD[head // group].T / query_TD.shape[1] ** 0.5
        weights_TT = scores_TT.masked_fill(unseen_TT, -math.inf).softmax(-1).nan_to_num()
        ranks.append(float(effective_rank(singular_values(weights_TT))))
    return math.fsum(ranks) / len(ranks)


def _centred(role_BTHD: Tensor) -> Tensor:
    """All positions, less their mean: [N, H, D], float64. What differs by rounding alone is taken for 0."""
    vectors_NHD = role_BTHD.flatten(0, 1).double()
    varied_NHD = vectors_NHD - vectors_NHD.mean(0)
    rounding = torch.finfo(role_BTHD.dtype).eps * vectors_NHD.norm()
    return varied_NHD if varied_NHD.norm() > rounding else torch.zeros_like(varied_NHD)
