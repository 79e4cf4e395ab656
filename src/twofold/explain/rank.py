"""How many dims the matrices of query, key and value use, and how well fewer would do for key and value together.

Matrices are [outputs, M], all heads below one another, and computed in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from twofold.explain.layer_weights import LayerWeights

CURVE = 32
"""Points of a curve over dims."""
SPECTRUM = 48
"""Points of a spectrum, at most."""


@dataclass(frozen=True)
class JointEnergy:
    """Shares of squared norm that the best factor of n dims keeps, n from 0 to the number of rows or inputs.

    `both_N` of [W_K; W_V], `key_N` and `value_N` of each with that factor; [n + 1], float64, from 0 to 1.
    """

    both_N: Tensor  # noqa: N815
    key_N: Tensor  # noqa: N815
    value_N: Tensor  # noqa: N815


def singular_values(matrix: Tensor) -> Tensor:
    """Of [..., A, B], descending [..., min(A, B)], as roots of the Gram matrix's eigenvalues.

    That takes a fraction of the time of an SVD; values below 1e-8 of the largest are rounding.
    """
    matrix = matrix.double()
    gram = matrix @ matrix.mT if matrix.shape[-2] <= matrix.shape[-1] else matrix.mT @ matrix
    return torch.linalg.eigvalsh(gram).clamp(min=0).sqrt().flip(-1)


def effective_rank(values: Tensor) -> Tensor:
    """exp(−Σ p log p) with p = σ / Σσ: how many dims of equal strength have this entropy, from 1 to all.

    Roy & Vetterli 2007, "The effective rank: a measure of effective dimensionality", equation 4. Singular values
    [..., n] to [...]. The values themselves and not their squares are normalised: with squares a Gaussian 192×576
    matrix has 162, with the values 183, below which trained matrices lie. NaN for a matrix of zeros.
    """
    share = values / values.sum(-1, keepdim=True)
    return torch.special.entr(share).sum(-1).exp()


def stable_rank(values: Tensor) -> Tensor:
    """‖W‖_F² / ‖W‖₂² = Σσ² / max σ², from 1 to the rank (Rudelson & Vershynin 2007, "Sampling from large matrices").

    Singular values [..., n] to [...]; NaN for a matrix of zeros.
    """
    return values.square().sum(-1) / values.square().amax(-1)


def joint_energy(key_RM: Tensor, value_RM: Tensor) -> JointEnergy:
    """What key and value keep if both are made from n dims that they share, W_K ≈ A F and W_V ≈ B F with F [n, M].

    The best F holds the first n right singular vectors of [W_K; W_V], which keep Σ_{i≤n} σ_i² / Σ σ_i² (Eckart & Young
    1936, "The approximation of one matrix by another of lower rank"). The larger of the two matrices has more say.
    """
    key_RM, value_RM = key_RM.double(), value_RM.double()
    rows = len(key_RM)
    stacked = torch.cat([key_RM, value_RM])
    if len(stacked) <= stacked.shape[1]:  # eigenvectors on the left: what they keep of a row is λ u²
        squares, left = torch.linalg.eigh(stacked @ stacked.T)
        kept = squares.clamp(min=0) * left.square()
    else:
        _, right = torch.linalg.eigh(stacked.T @ stacked)
        kept = (stacked @ right).square()
    kept = kept.flip(1)
    return JointEnergy(_shares(kept), _shares(kept[:rows]), _shares(kept[rows:]))


def weight_ranks(layer: LayerWeights, seed: int = 0) -> dict[str, float | list[float]]:
    """Ranks of each role's matrix and what a joint factor of key and value keeps.

    - `q`, `k`, `v`: effective rank of the layer's matrix, `…_heads` of each head, `…_stable` the stable rank, `…_most`
      the largest possible, `…_random` the effective rank of a Gaussian matrix of the same shape from `seed`.
    - `q_spectrum` at `q_dims`, and of the others: singular values over the largest, from the first to the last.
    - `joint_kv_energy` at `joint_kv_dims` dims: shares of [W_K; W_V]'s squared norm.
    - `joint_kv_kept`: that share at as many dims as the value has, G·D, which is what one matrix for both could keep;
      `joint_kv_kept_k` and `joint_kv_kept_v` of each, and `joint_kv_kept_random` for Gaussian matrices.
    """
    made: dict[str, float | list[float]] = {}
    for name, weight in (("q", layer.q_HDM), ("k", layer.k_GDM), ("v", layer.v_GDM)):
        matrix = weight.flatten(0, 1)
        values = singular_values(matrix)
        made[name] = float(effective_rank(values))
        made[f"{name}_heads"] = effective_rank(singular_values(weight)).tolist()
        made[f"{name}_stable"] = float(stable_rank(values))
        made[f"{name}_most"] = float(min(matrix.shape))
        made[f"{name}_random"] = random_effective_rank(*matrix.shape, seed)
        made |= _spectrum(name, values)
    return made | _joint(layer, seed)


@lru_cache(maxsize=64)
def random_effective_rank(rows: int, width: int, seed: int) -> float:
    """The effective rank of a Gaussian matrix [rows, width]."""
    matrix = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    return float(effective_rank(singular_values(matrix)))


@lru_cache(maxsize=64)
def random_joint_share(key_rows: int, value_rows: int, width: int, seed: int) -> float:
    """What `value_rows` shared dims keep of Gaussian matrices [key_rows, width] and [value_rows, width]."""
    generator = torch.Generator().manual_seed(seed)
    key_RM, value_RM = (torch.randn(rows, width, generator=generator) for rows in (key_rows, value_rows))
    return float(_at(joint_energy(key_RM, value_RM).both_N, value_rows))


def _spectrum(name: str, values: Tensor) -> dict[str, float | list[float]]:
    """At most `SPECTRUM` of the singular values, evenly spaced, the largest being 1; none of a matrix of zeros."""
    if not values[0] > 0:
        return {}
    count = min(SPECTRUM, len(values))
    places = torch.linspace(0, len(values) - 1, count).round().long()
    dims = [float(place + 1) for place in places.tolist()]
    return {f"{name}_spectrum": (values[places] / values[0]).tolist(), f"{name}_dims": dims}


def _joint(layer: LayerWeights, seed: int) -> dict[str, float | list[float]]:
    key_RM, value_RM = layer.k_GDM.flatten(0, 1), layer.v_GDM.flatten(0, 1)
    energy, one = joint_energy(key_RM, value_RM), len(value_RM)
    most = len(energy.both_N) - 1
    dims = sorted({round(most * point / CURVE) for point in range(CURVE + 1)} | {min(one, most)})
    return {
        "joint_kv_dims": [float(n) for n in dims],
        "joint_kv_energy": energy.both_N[dims].tolist(),
        "joint_kv_kept": float(_at(energy.both_N, one)),
        "joint_kv_kept_k": float(_at(energy.key_N, one)),
        "joint_kv_kept_v": float(_at(energy.value_N, one)),
        "joint_kv_kept_random": random_joint_share(len(key_RM), one, key_RM.shape[1], seed),
    }


def _at(shares_N: Tensor, dims: int) -> Tensor:
    return shares_N[min(dims, len(shares_N) - 1)]


def _shares(kept_RN: Tensor) -> Tensor:
    summed_N = kept_RN.sum(0).cumsum(0)
    return torch.cat([summed_N.new_zeros(1), summed_N / summed_N[-1]])
