"""Two ways to make the keys and values of one layer share what they are made from, and what each would lose.

Pure functions of matrices: nothing here knows of models. A role's matrix is [R, M] with R = G·D, all heads below one
another. What is lost is measured on inputs x by E‖Wx − W̃x‖² over E‖Wx‖², which depends on x by its mean and second
moment alone; without inputs, as if their components were independent with mean 0 and variance 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """The maps that make keys and values: `key_RM` x + `key_bias_R`, and so on; a bias is None where there is none."""

    key_RM: Tensor  # noqa: N815
    value_RM: Tensor  # noqa: N815
    key_bias_R: Tensor | None = None  # noqa: N815
    value_bias_R: Tensor | None = None  # noqa: N815


class Inputs(NamedTuple):
    """What is known of a layer's inputs: `mean_M` [M] and `spread_MN` [M, N], where S Sᵀ is their covariance."""

    mean_M: Tensor  # noqa: N815
    spread_MN: Tensor  # noqa: N815


class Joint(NamedTuple):
    """Keys and values from n shared dims: W_K ≈ `key_RN` · `factor_NM`, W_V ≈ `value_RN` · `factor_NM`, and biases as
    they were. `lost`: the share of E‖[W_K; W_V] x‖² that is not kept, from 0 to 1.
    """

    factor_NM: Tensor  # noqa: N815
    key_RN: Tensor  # noqa: N815
    value_RN: Tensor  # noqa: N815
    lost: float

    def rows(self, rows: Rows) -> Rows:
        """The maps that this makes of `rows`."""
        return rows._replace(key_RM=self.key_RN @ self.factor_NM, value_RM=self.value_RN @ self.factor_NM)


class ValueFromKey(NamedTuple):
    """Values made from their head's key, before rotary: v ≈ `map_GDD` (k − b_K) + `moved_GD`, which is None where
    values have no bias to take it up.

    `lost_G`: the share of each head's values that is not explained, from 0 to 1, and `lost` that of all heads: of their
    variance where values have a bias, else of their mean square.
    """

    map_GDD: Tensor  # noqa: N815
    moved_GD: Tensor | None  # noqa: N815
    lost: float
    lost_G: Tensor  # noqa: N815

    def rows(self, rows: Rows) -> Rows:
        """The maps that this makes of `rows`: W_V becomes A W_K by head."""
        heads = len(self.map_GDD)
        value_RM = (self.map_GDD @ rows.key_RM.double().unflatten(0, (heads, -1))).flatten(0, 1)
        if self.moved_GD is None:
            return rows._replace(value_RM=value_RM)
        return rows._replace(value_RM=value_RM, value_bias_R=self.moved_GD.flatten())


def inputs_of(x_NM: Tensor) -> Inputs:
    """Mean and spread of N given inputs, in float64; [N, M].

    With ones before the inputs, X = Q R: R's first row is √N (1, mean), and the rest of R a root of the scatter around
    the mean, so that nothing is squared on the way.
    """
    x_NM = x_NM.double()
    triangle = torch.linalg.qr(torch.cat([x_NM.new_ones(len(x_NM), 1), x_NM], dim=1), mode="r").R
    return Inputs(x_NM.mean(0), triangle[1:, 1:].T / len(x_NM) ** 0.5)


def plain_inputs(width: int) -> Inputs:
    """Inputs of which nothing is known: independent components with mean 0 and variance 1."""
    return Inputs(torch.zeros(width, dtype=torch.float64), torch.eye(width, dtype=torch.float64))


def joint(rows: Rows, inputs: Inputs, dims: int) -> Joint:
    """The best n = `dims` shared dims for keys and values together.

    With C = E x xᵀ and the first n left singular vectors U of [W_K; W_V] C^½, [W_K; W_V] becomes U Uᵀ [W_K; W_V]: no
    map of rank n is nearer on these inputs (Eckart & Young 1936, "The approximation of one matrix by another of lower
    rank", for the weighted norm). The larger of keys and values has more say. With n = M or n = 2R nothing is lost.
    Raises ValueError for fewer than one dim.
    """
    if dims < 1:
        raise ValueError(f"keys and values need at least one dim to share, not {dims}")
    stacked = torch.cat([rows.key_RM, rows.value_RM]).double()
    root_MN = torch.cat([inputs.spread_MN, inputs.mean_M[:, None]], dim=1)
    left, values, _ = torch.linalg.svd(stacked @ root_MN, full_matrices=False)
    left, squares = left[:, :dims], values.square()
    lost = _share(squares[dims:].sum(), squares.sum()) if dims < min(stacked.shape) else 0.0
    key_RN, value_RN = left.split([len(rows.key_RM), len(rows.value_RM)])
    return Joint(left.T @ stacked, key_RN, value_RN, lost)


def value_from_key(rows: Rows, inputs: Inputs, kv_heads: int) -> ValueFromKey:
    """The least-squares map of each head's values from its keys: K=V, with a map for the output to take up.

    With k' = W_K x, A minimises E‖v − A k' − a‖² over these inputs, of several the smallest. a is free where values
    have a bias; else it is 0, as there is no place for it, nor for what the key's bias would bring.
    """
    centred = rows.value_bias_R is not None
    known_MN = inputs.spread_MN if centred else torch.cat([inputs.spread_MN, inputs.mean_M[:, None]], dim=1)
    key_GDM, value_GDM = (one.double().unflatten(0, (kv_heads, -1)) for one in rows[:2])
    key_GDN, value_GDN = key_GDM @ known_MN, value_GDM @ known_MN
    map_GDD = torch.linalg.lstsq(key_GDN.mT, value_GDN.mT, driver="gelsd").solution.mT
    missed_G = (value_GDN - map_GDD @ key_GDN).square().sum((1, 2))
    whole_G = value_GDN.square().sum((1, 2))
    moved_GD = None
    if rows.value_bias_R is not None:
        bias_GD = rows.value_bias_R.double().unflatten(0, (kv_heads, -1))
        moved_GD = bias_GD + (value_GDM - map_GDD @ key_GDM) @ inputs.mean_M
    lost_G = torch.tensor([_share(*pair) for pair in zip(missed_G, whole_G, strict=True)], dtype=torch.float64)
    return ValueFromKey(map_GDD, moved_GD, _share(missed_G.sum(), whole_G.sum()), lost_G)


def _share(part: Tensor, whole: Tensor) -> float:
    """part / whole, and 0 of nothing."""
    return float(part / whole) if whole > 0 else 0.0
