"""How alike the matrices of query, key and value are, each beside what random matrices of the same shape give.

Row spaces and what a rotation leaves over say the same of a model whatever basis its heads are written in: K → R K with
Q → R⁻ᵀ Q changes neither the model nor the row space. The entrywise cosine, which arXiv 2606.04032 reports, depends on
that basis. Everything is computed in float64. A matrix is [D, M]: D dims of a head, each made from M inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from twofold.explain.layer_weights import LayerWeights

PAIRS = ("kv", "qk", "qv")
DRAWS = 8
"""Pairs of random layers behind a baseline."""
NOISE = 1e-5
"""Directions whose singular value is a smaller share of the largest are rounding of float32, and no rows' space."""


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """⟨A, B⟩ / (‖A‖ ‖B‖) over all entries of the last two dims, from −1 to 1; it depends on the basis of each head.

    [..., D, M] twice to [...]; 0 where one is all zeros.
    """
    a, b = a.double(), b.double()
    lengths = torch.linalg.matrix_norm(a) * torch.linalg.matrix_norm(b)
    return _ratio((a * b).sum((-2, -1)), lengths)


def row_space_overlap(a: Tensor, b: Tensor) -> Tensor:
    """Mean squared cosine of the principal angles between two row spaces, from 0 (orthogonal) to 1 (one holds the
    other); Björck & Golub 1973, "Numerical methods for computing angles between linear subspaces".

    Σ cos² θ_i = tr(A⁺A B⁺B), taken on D×D matrices: with C = A Bᵀ it is tr((AAᵀ)⁺ C (BBᵀ)⁺ Cᵀ). Divided by the number
    of angles, the smaller rank. [..., D, M] and [..., E, M] to [...]. Random matrices give max(D, E) / M on average,
    as long as both have fewer dims than M.
    """
    a, b = a.double(), b.double()
    (inverse_a, rank_a), (inverse_b, rank_b) = _inverse_gram(a), _inverse_gram(b)
    between = a @ b.mT
    shared = ((inverse_a @ between) * (between @ inverse_b)).sum((-2, -1))
    return _ratio(shared, torch.minimum(rank_a, rank_b))


def procrustes_residual(a: Tensor, b: Tensor) -> Tensor:
    """What the best rotation R and scale s of B leave of A: min ‖A − s R B‖² / ‖A‖² over both, from 0 to 1.

    It is 1 − (‖A Bᵀ‖_* / (‖A‖ ‖B‖))², with ‖·‖_* the sum of singular values, and the same for B and A (Schönemann &
    Carroll 1970, "Fitting one matrix to another under choice of a central dilation and a rigid motion"). [..., D, M]
    twice to [...]; 1 where one is all zeros.
    """
    a, b = a.double(), b.double()
    lengths = torch.linalg.matrix_norm(a) * torch.linalg.matrix_norm(b)
    alike = _ratio(torch.linalg.svdvals(a @ b.mT).sum(-1), lengths)
    return (1 - alike.square()).clamp(min=0)


def weight_similarity(layer: LayerWeights, seed: int = 0) -> dict[str, float | list[float]]:
    """Each measure for key and value, query and key, query and value.

    - `cosine_kv`: over the whole layer, `cosine_kv_heads` by head, `cosine_kv_random` the mean magnitude of the random
      ones, whose mean is 0: see `random_cosine`.
    - `overlap_kv` and `procrustes_kv`: means over the heads, beside `…_heads` and `…_random`.

    A query head is compared with the key/value head that it reads, and a key's content with a value: where a key has
    more dims (MLA's rotary key), these are left out, and so are the query's. Baselines are of Gaussian matrices,
    those of overlap and Procrustes means of `DRAWS` pairs of layers from `seed`; they depend on shapes and seed alone.
    """
    made: dict[str, float | list[float]] = {}
    for name in PAIRS:
        first, second = _pair(layer, name)
        shapes = tuple(first.shape), tuple(second.shape)
        baseline = random_similarity(*shapes, seed)
        for measure, heads in _by_head(first, second).items():
            whole = cosine(*_whole(first, second)) if measure == "cosine" else heads.mean()
            made[f"{measure}_{name}"] = float(whole)
            made[f"{measure}_{name}_random"] = baseline[measure]
            made[f"{measure}_{name}_heads"] = heads.tolist()
    return made


def random_cosine(entries: int) -> float:
    """E |cosine| = Γ(n/2) / (√π Γ((n + 1)/2)) of a Gaussian matrix with n entries and any other: about √(2 / (π n)).

    Its direction is uniform on the sphere, so that the other's, also one with repeated heads, does not matter.
    """
    return math.exp(math.lgamma(entries / 2) - math.lgamma((entries + 1) / 2)) / math.sqrt(math.pi)


@lru_cache(maxsize=64)
def random_similarity(first: tuple[int, ...], second: tuple[int, ...], seed: int) -> dict[str, float]:
    """What Gaussian layers [H, D, M] and [G, D, M] give on average; of cosines the magnitude, in closed form."""
    generator = torch.Generator().manual_seed(seed)
    totals = dict.fromkeys(("overlap", "procrustes"), 0.0)
    for _ in range(DRAWS):
        pair = torch.randn(first, generator=generator), torch.randn(second, generator=generator)
        heads = _by_head(*pair)
        for measure in totals:
            totals[measure] += float(heads[measure].mean()) / DRAWS
    return totals | {"cosine": random_cosine(math.prod(first))}


def _by_head(first_HDM: Tensor, second_GDM: Tensor) -> dict[str, Tensor]:
    """Each measure for every head of the first with the second's that belongs to it: [H]."""
    measures: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "cosine": cosine,
        "overlap": row_space_overlap,
        "procrustes": procrustes_residual,
    }
    second_HDM = _repeated(second_GDM, len(first_HDM))
    return {name: measure(first_HDM, second_HDM) for name, measure in measures.items()}


def _whole(first_HDM: Tensor, second_GDM: Tensor) -> tuple[Tensor, Tensor]:
    return first_HDM.flatten(0, 1), _repeated(second_GDM, len(first_HDM)).flatten(0, 1)


def _pair(layer: LayerWeights, name: str) -> tuple[Tensor, Tensor]:
    by_letter = {"q": layer.q_HDM, "k": layer.k_GDM, "v": layer.v_GDM}
    first, second = (by_letter[letter] for letter in name)
    dims = min(first.shape[1], second.shape[1])
    return first[:, :dims], second[:, :dims]


def _repeated(of_GDM: Tensor, heads: int) -> Tensor:
    return of_GDM.repeat_interleave(heads // len(of_GDM), dim=0)


def _inverse_gram(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The pseudo-inverse of A Aᵀ and its rank."""
    squares, vectors = torch.linalg.eigh(matrix @ matrix.mT)
    counted = squares > NOISE**2 * squares[..., -1:].clamp(min=torch.finfo(squares.dtype).tiny)
    inverse = torch.where(counted, 1 / torch.where(counted, squares, 1.0), 0.0)
    return (vectors * inverse[..., None, :]) @ vectors.mT, counted.sum(-1)


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole, 0 where the whole is 0."""
    return torch.where(whole > 0, part / torch.where(whole > 0, whole, 1), torch.zeros_like(part))
