"""Queries and outputs fitted again, in closed form, to keys and values that are no longer what they were.

Pure functions of matrices in float64: nothing here knows of models. A refit changes weights and keeps their shapes, so
that it costs a model nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from twofold.conversion.layer_maps import root_of
from twofold.explain.sharing import Inputs

RIDGE = 1.0


class OutputRefit:
    """Least squares of a layer's output on what its heads read, without holding all tokens.

    It minimises Σ_n ‖t_n − W r_n‖² + λ ‖W − W_prior‖², where r_n [R] is what the converted heads read at a token, all
    heads after one another, and t_n [M] what the layer's output was. Only Σ r rᵀ [R, R] and Σ t rᵀ [M, R] are kept.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self._reads_RR: Tensor | None = None
        self._targets_MR: Tensor | None = None

    def add(self, read_NR: Tensor, target_NM: Tensor) -> None:
        """Count N more tokens, in any dtype and however they are dealt over calls.

        Raises ValueError where the numbers of tokens disagree, or widths with those of earlier calls.
        """
        if len(read_NR) != len(target_NM):
            raise ValueError(f"{len(read_NR)} reads and {len(target_NM)} targets: give one of each for every token")
        read_NR, target_NM = read_NR.double(), target_NM.double()
        reads_RR, targets_MR = read_NR.T @ read_NR, target_NM.T @ read_NR
        if self._reads_RR is not None and self._targets_MR is not None:
            if targets_MR.shape != self._targets_MR.shape:
                raise ValueError(
                    f"reads and targets of {read_NR.shape[1]} and {target_NM.shape[1]} numbers do not go with earlier "
                    f"ones of {self._targets_MR.shape[1]} and {self._targets_MR.shape[0]}: add tokens of one layer"
                )
            reads_RR, targets_MR = self._reads_RR + reads_RR, self._targets_MR + targets_MR
        self._reads_RR, self._targets_MR = reads_RR, targets_MR
        self.tokens += len(read_NR)

    def solved(self, prior_MR: Tensor, ridge: float = RIDGE) -> Tensor:
        """W [M, R] in float64: `prior_MR` + (Σ t rᵀ − W_prior Σ r rᵀ) (Σ r rᵀ + λ)⁻¹.

        λ = `ridge` · Σ‖r‖² / N, for N tokens: the prior counts as `ridge` · R more tokens whose reads have the mean
        strength in every direction, and whose outputs it has right. With ridge 1 a direction of mean strength moves
        N / (N + R) of the way from the prior to the plain fit: a fit of R numbers per output needs R tokens to be more
        than noise, and its excess error on other tokens falls with R / N, as the prior's say does. Weak
        directions, where few tokens say anything, stay with the prior. With ridge 0 it is the plain fit, of several the
        nearest to the prior.

        Raises ValueError before any token is added, for another shape of the prior, and for a negative ridge.
        """
        if self._reads_RR is None or self._targets_MR is None or not self.tokens:
            raise ValueError("no tokens to fit on: add what the heads read, and the layer's outputs")
        if prior_MR.shape != self._targets_MR.shape:
            raise ValueError(
                f"the prior is {list(prior_MR.shape)}, and outputs and reads need {list(self._targets_MR.shape)}"
            )
        if not ridge >= 0:
            raise ValueError(f"the ridge is at least 0, not {ridge}")
        prior_MR = prior_MR.double()
        missed_MR = self._targets_MR - prior_MR @ self._reads_RR
        held = ridge * self._reads_RR.diagonal().sum() / self.tokens
        if not held > 0:
            return prior_MR + missed_MR @ torch.linalg.pinv(self._reads_RR, hermitian=True)
        held_RR = self._reads_RR + held * torch.eye(len(self._reads_RR), dtype=torch.float64)
        return prior_MR + torch.linalg.solve(held_RR, missed_MR, left=False)


def refit_output(read_NR: Tensor, target_NM: Tensor, prior_MR: Tensor, ridge: float = RIDGE) -> Tensor:
    """The output's matrix [M, R] fitted to N tokens at once: `OutputRefit`, which has the errors that it raises."""
    fit = OutputRefit()
    fit.add(read_NR, target_NM)
    return fit.solved(prior_MR, ridge)


def refit_affine(read_NR: Tensor, target_NM: Tensor, prior_MR: Tensor, ridge: float = RIDGE) -> Tensor:
    """The output's matrix and bias fitted to N tokens: [M, R + 1] in float64, the bias b as the last column.

    It minimises Σ_n ‖t_n − W r_n − b‖² + λ ‖W − W_prior‖². For every W the best b is the mean of t − W r, and so W is
    that of `refit_output` for deviations from the means, with λ by their strength: nothing holds b. The weights of
    attention sum to 1, so that b makes up for what values lack on the mean.

    Raises ValueError as `OutputRefit` does, and for no tokens.
    """
    read_NR, target_NM = read_NR.double(), target_NM.double()
    read_R, target_M = read_NR.mean(0), target_NM.mean(0)
    fitted_MR = refit_output(read_NR - read_R, target_NM - target_M, prior_MR, ridge)
    return torch.cat([fitted_MR, (target_M - fitted_MR @ read_R)[:, None]], dim=1)


def refit_query(query_RM: Tensor, key_DM: Tensor, new_CM: Tensor, inputs: Inputs) -> Tensor:
    """Queries [n·C, M] for C numbers k' = `new_CM` x that stand where a key head's k = `key_DM` x stood, not turned.

    `query_RM` [n·D, M] are the n query heads that read this key head. Each becomes T W_Q,h with
    T = (E k' k'ᵀ)⁺ E k' kᵀ, which minimises E (q'·k' − q·k)² for every query, and so whatever queries there are. Of
    several T the smallest. With k' = k of full rank it is the identity.
    """
    root_MN = root_of(inputs)
    map_CD = torch.linalg.lstsq((new_CM.double() @ root_MN).T, (key_DM.double() @ root_MN).T, driver="gelsd").solution
    return (map_CD @ _by_head(query_RM, key_DM)).flatten(0, 1)


def refit_turned_query(query_RM: Tensor, key_DM: Tensor, new_DM: Tensor, inputs: Inputs) -> Tensor:
    """Queries [n·D, M] for keys k' = `new_DM` x in place of k = `key_DM` x, where rotary turns all D dims of both.

    What is done to a query must be the same at all positions, so that it has to commute with rotary: one complex number
    a_p for each pair (i, i + D/2), taken as the complex number z_i + i z_(i + D/2). q'_p = a_p q_p with
    a_p = E k̄_p k'_p / E |k'_p|² minimises E (q'·k' − q·k)² for every query, where the angles between query and key are
    spread evenly over the circle and not correlated from pair to pair, as over many distances. Over distances that are
    short for a pair's wavelength it is an approximation. With k' = k it is the identity; a pair that k' lacks gets 0.

    Raises ValueError for an odd D, and for another shape of the new keys.
    """
    if key_DM.shape != new_DM.shape or len(key_DM) % 2:
        raise ValueError(
            f"keys of {len(key_DM)} dims and new ones of {len(new_DM)} have no rotary pairs in common: "
            "give one even number of dims"
        )
    root_MN = root_of(inputs)
    was_PN, now_PN = (_pairs(one.double() @ root_MN) for one in (key_DM, new_DM))
    power_P = now_PN.abs().square().sum(1)
    factor_P = (was_PN.conj() * now_PN).sum(1) / power_P.where(power_P > 0, 1)
    turned = factor_P[:, None] * _pairs(_by_head(query_RM, key_DM))
    return torch.cat([turned.real, turned.imag], dim=1).flatten(0, 1)


def _by_head(query_RM: Tensor, key_DM: Tensor) -> Tensor:
    """[n, D, M] in float64; ValueError where the rows are no whole number of heads."""
    dims = len(key_DM)
    if len(query_RM) % dims:
        raise ValueError(f"{len(query_RM)} rows of queries are no whole number of heads of {dims} dims")
    return query_RM.double().unflatten(0, (-1, dims))


def _pairs(z: Tensor) -> Tensor:
    """Half-split pairs of the last dim but one as complex numbers: [..., D, N] to [..., D/2, N]."""
    real, imag = z.chunk(2, dim=-2)
    return torch.complex(real.contiguous(), imag.contiguous())
