"""What queries are multiplied with, fitted to a layer's own scores, where some pairs of its keys no longer turn.

Pure functions of matrices and inputs: nothing here knows of models.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from twofold.conversion.layer_maps import LayerMaps
from twofold.conversion.rotary_importance import Text, causal, made, pairs_of, turned, turns

QUERIES = 96  # positions per window that scores are compared at
KEYS = 128  # those that each of these queries looks at most
RIDGE = 0.02  # how much the prior counts beside the text, for each number by its own strength


class Apart(NamedTuple):
    """A layer's scores in two parts: n of its `pairs`, turned, and content.

    `query_HPM` [H, n, M] and `key_PM` [n, M], complex: what is turned. `rest_RM` [G·D, M]: what keys have besides.
    """

    pairs: list[int]
    query_HPM: Tensor  # noqa: N815
    key_PM: Tensor  # noqa: N815
    rest_RM: Tensor  # noqa: N815


class Factors(NamedTuple):
    """What queries are multiplied with (conjugated): `content_HP` [H, D/2] in place of turning, `turned_HP` [H, n]."""

    content_HP: Tensor  # noqa: N815
    turned_HP: Tensor  # noqa: N815


def fitted_factors(maps: LayerMaps, text: Text, apart: Apart, content_RM: Tensor, prior: Factors) -> Factors:
    """μ and ν, by which Σ_P Re ν_P q̄_P (turned) κ_P + Σ_p Re μ_p q̄_p c_p comes nearest to the layer's own scores; c is
    what `content_RM` [G·D, M] makes.

    Of each head and query the attention-weighted variance of the scores' error is minimised, by least squares over 96
    query positions per window and the 128 keys that each looks at most. It is the divergence of the new attention from
    the old one to second order: what is added to all scores of a query changes nothing, and where nobody looks, small
    errors do not matter. `prior` stands where the text says little.
    """
    prior_HP = torch.cat(prior, dim=1)
    prior_HF = torch.cat([prior_HP.real, prior_HP.imag], dim=1)
    squares_HFF = torch.zeros(*prior_HF.shape, prior_HF.shape[1], dtype=torch.float64)
    missed_HF = torch.zeros_like(prior_HF)
    for x_TM in text.x_BTM.double():
        at_N = torch.linspace(0, len(x_TM) - 1, min(QUERIES, len(x_TM)), dtype=torch.float64).round().long()
        for head, (score_NT, query_NP, key_TP) in enumerate(_parts(maps, text.base, apart, content_RM, x_TM, at_N)):
            looks_NT = causal(score_NT * maps.head_dim**-0.5, at_N)
            weight_NK, keys_NK = looks_NT.topk(min(KEYS, len(x_TM)), dim=1)
            product_NKP = query_NP.conj()[:, None] * key_TP[keys_NK]
            seen_NKF = torch.cat([product_NKP.real, -product_NKP.imag], dim=-1)
            left_NK = score_NT.gather(1, keys_NK) - seen_NKF @ prior_HF[head]
            seen_IF, left_I1 = _centred(seen_NKF, weight_NK), _centred(left_NK[..., None], weight_NK)
            squares_HFF[head] += seen_IF.T @ seen_IF
            missed_HF[head] += (seen_IF.T @ left_I1)[:, 0]
    fitted_HP = torch.complex(*(prior_HF + _solved(squares_HFF, missed_HF)).chunk(2, dim=1))
    return Factors(*fitted_HP.split([prior.content_HP.shape[1], prior.turned_HP.shape[1]], dim=1))


def _parts(
    maps: LayerMaps, base: float | None, apart: Apart, content_RM: Tensor, x_TM: Tensor, at_N: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For each query head the layer's own scores [N, T] of queries at positions `at_N`, and the complex numbers that
    its factors stand between: of queries [N, D/2 + n] and of keys [T, D/2 + n], content first.
    """
    turn_TP = turns(len(x_TM), maps.head_dim // 2, base)
    whole_HTP, key_GTP = turned(maps, x_TM, turn_TP)
    plain_HNP = made(pairs_of(maps.query_RM, maps.heads), x_TM[at_N])
    content_GTP = made(pairs_of(content_RM, maps.kv_heads), x_TM)
    kept_HNP = made(apart.query_HPM, x_TM[at_N]) * turn_TP[at_N][:, apart.pairs]
    kept_TP = made(apart.key_PM[None], x_TM)[0] * turn_TP[:, apart.pairs]
    for head in range(maps.heads):
        group = head * maps.kv_heads // maps.heads
        score_NT = (whole_HTP[head, at_N].conj() @ key_GTP[group].T).real
        yield score_NT, torch.cat([plain_HNP[head], kept_HNP[head]], 1), torch.cat([content_GTP[group], kept_TP], 1)


def _centred(of_NKF: Tensor, weight_NK: Tensor) -> Tensor:
    """[N·K, F]: deviations from each query's weighted mean, times roots of weights."""
    mean_NF = torch.einsum("nk,nkf->nf", weight_NK / weight_NK.sum(1, keepdim=True), of_NKF)
    return ((of_NKF - mean_NF[:, None]) * weight_NK.sqrt()[..., None]).flatten(0, 1)


def _solved(squares_HFF: Tensor, missed_HF: Tensor) -> Tensor:
    """What is added to the prior: ridge regression, with each number's ridge by its own strength."""
    strength_HF = squares_HFF.diagonal(dim1=1, dim2=2)
    floor_H1 = 1e-6 * strength_HF.mean(1, keepdim=True) + torch.finfo(torch.float64).tiny
    return torch.linalg.solve(squares_HFF + torch.diag_embed(RIDGE * strength_HF + floor_H1), missed_HF)
