"""How alike the queries, keys and values are that a layer makes of given tokens, beside what random matrices make.

The baseline is what keeps these numbers honest: two random maps of one input give similar vectors as soon as the input
itself has few directions.
"""

from __future__ import annotations

import math
from itertools import combinations

import torch
from torch import Tensor

from twofold.explain.activations import LayerActivations
from twofold.explain.roles import Roles

Measures = dict[str, float | list[float]]
LETTERS = "qkv"


def activation_similarity(activations: LayerActivations, seed: int) -> Measures:
    """CKA of each pair of roles and R² of V from K and K from V, of one layer on all of its B · T positions.

    `cka_kv`, `cka_qk` and `cka_qv` compare the vectors of all heads together, and their `_heads` [G] those of each
    key/value head (with all queries that read it). `r2_v_from_k`, `r2_k_from_v` and their `_heads` likewise. Each has
    a twin ending in `_random`: the same of matrices with independent normal entries and these shapes, on the same
    input. NaN where a measure has no value: see `cka` and `r_squared`, which also say what they need.
    """
    measured = _measures(Roles(activations.q_BTHD, activations.k_BTGD, activations.v_BTGD), seed)
    drawn = _measures(random_roles(activations, seed), seed)
    return measured | {f"{name}_random": value for name, value in drawn.items()}


def random_roles(activations: LayerActivations, seed: int) -> Roles:
    """What matrices with entries from N(0, 1/M) make of the layer's input, in the shapes of q, k and v."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(x_BTM: Tensor, like: Tensor) -> Tensor:
        width, heads, dims = x_BTM.shape[-1], *like.shape[2:]
        weight = torch.randn(width, heads * dims, generator=generator, dtype=torch.float64) / math.sqrt(width)
        return (x_BTM.double() @ weight).unflatten(-1, (heads, dims)).to(like.dtype)

    x_BTM, row_x_BTM = activations.x_BTM, activations.row_x_BTM
    return Roles(
        drawn(x_BTM, activations.q_BTHD), drawn(row_x_BTM, activations.k_BTGD), drawn(row_x_BTM, activations.v_BTGD)
    )


def _measures(roles: Roles, seed: int) -> Measures:
    kv_heads = roles.k_BTGD.shape[2]
    # [positions, G, dims of a role that belong to that head]; a group's query heads lie side by side.
    by_head = {
        letter: role.flatten(0, 1).unflatten(1, (kv_heads, -1)).flatten(2)
        for letter, role in zip(LETTERS, roles, strict=True)
    }
    whole = {letter: vectors.flatten(1) for letter, vectors in by_head.items()}
    found: Measures = {}
    for one, other in combinations(LETTERS, 2):
        found[f"cka_{one}{other}"] = cka(whole[one], whole[other])
        found[f"cka_{one}{other}_heads"] = [
            cka(by_head[one][:, head], by_head[other][:, head]) for head in range(kv_heads)
        ]
    for of, given in ("vk", "kv"):
        found[f"r2_{of}_from_{given}"] = r_squared(whole[of], whole[given], seed)
        found[f"r2_{of}_from_{given}_heads"] = [
            r_squared(by_head[of][:, head], by_head[given][:, head], seed) for head in range(kv_heads)
        ]
    return found


def cka(x_NP: Tensor, y_NQ: Tensor) -> float:
    """Linear centred kernel alignment ‖YᵀX‖² / (‖XᵀX‖ ‖YᵀY‖) of two sets of N vectors, in [0, 1], Frobenius norms.

    Both have the mean over N subtracted. Kornblith et al. 2019, arXiv 1905.00414, equation 5 and section 3: unchanged
    by rotations of either space and by a factor, 1 for what differs in nothing else. With few positions for many dims
    it is large for any two sets, so read it beside that of random maps. NaN where one of the two does not vary.
    """
    x, y = _centred(x_NP), _centred(y_NQ)
    if not (_varies(x_NP) and _varies(y_NQ)):
        return math.nan
    return float((y.T @ x).square().sum() / ((x.T @ x).norm() * (y.T @ y).norm()))


def r_squared(y_NQ: Tensor, x_NP: Tensor, seed: int) -> float:
    """The share of Y's variance that the best linear map of X with an intercept explains, on positions not fitted.

    1 − Σ‖y − ŷ‖² / Σ‖y − ȳ‖². The map is the least-squares one (no ridge; of several the smallest) on ⌊N / 2⌋ positions
    drawn at random by `seed`, and the sums are over the other half, ȳ being its mean. 1 where Y is a linear map of X;
    below 0 where the map is worse than a constant. Directions in which X varies less than its rounding are left out.
    NaN where half of the positions are no more than X's dims and the intercept (any map would fit), or Y does not vary.
    """
    half, dims = len(x_NP) // 2, x_NP.shape[1]
    order = torch.randperm(len(x_NP), generator=torch.Generator().manual_seed(seed))
    fitted, scored = order[:half], order[half:]
    if len(x_NP) < tokens_needed(dims) or not _varies(y_NQ[scored]):
        return math.nan
    x, y = x_NP.double(), y_NQ.double()
    mean_P, mean_Q = x[fitted].mean(0), y[fitted].mean(0)
    # What is left in X of a direction that it lacks is rounding of the dtype in which it was computed.
    rounding = torch.finfo(x_NP.dtype).eps * half
    map_PQ = torch.linalg.lstsq(x[fitted] - mean_P, y[fitted] - mean_Q, rcond=rounding, driver="gelsy").solution
    missed = (y[scored] - mean_Q - (x[scored] - mean_P) @ map_PQ).square().sum()
    return float(1 - missed / _centred(y[scored]).square().sum())


def tokens_needed(dims: int) -> int:
    """The fewest positions of which half are more than `dims` and an intercept."""
    return 2 * (dims + 2)


def _centred(x_NP: Tensor) -> Tensor:
    return x_NP.double() - x_NP.double().mean(0)


def _varies(x_NP: Tensor) -> bool:
    """Whether the vectors differ by more than rounding."""
    return bool(_centred(x_NP).norm() > torch.finfo(x_NP.dtype).eps * x_NP.double().norm())
