"""Where the vectors of a role come from, other than one matrix: two with few dims between, a small network, nothing."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from twofold.variants.tensors import Matrix


class LowRank(nn.Module):
    """`up` · `down`: a linear map of rank n at most, by n·(inputs + outputs) numbers."""

    def __init__(self, down: Matrix, up: Matrix) -> None:
        super().__init__()
        self.down = linear(down)
        self.up = linear(up)

    def forward(self, x_BTM: Tensor) -> Tensor:
        """[B, T, M] to [B, T, outputs]."""
        return self.up(self.down(x_BTM))


class NonlinearQuery(nn.Module):
    """(X + LN(GELU(RMSNorm(X) W₁) W₂)) / 2, as many numbers as the matrix that it replaces (arXiv 2603.13381).

    The norms have no weights: those would be numbers that the matrix does not have.
    """

    def __init__(self, hidden: Matrix, out: Matrix) -> None:
        super().__init__()
        self.hidden = linear(hidden)
        self.out = linear(out)

    def forward(self, x_BTM: Tensor) -> Tensor:
        """[B, T, M] to [B, T, M]."""
        normed_BTM = F.rms_norm(x_BTM, x_BTM.shape[-1:], eps=1e-6)
        made_BTM = self.out(F.gelu(self.hidden(normed_BTM)))
        return (x_BTM + F.layer_norm(made_BTM, made_BTM.shape[-1:])) / 2


class RoleNorm(nn.RMSNorm):
    """RMSNorm of vectors that a projection made: its weight follows their dtype, which autocast may have changed."""

    def forward(self, x: Tensor) -> Tensor:
        """As `nn.RMSNorm`, in x's dtype."""
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def linear(matrix: Matrix) -> nn.Linear:
    """The linear layer of a matrix."""
    return nn.Linear(matrix.inputs, matrix.outputs, bias=matrix.bias)


def source(name: str, matrices: dict[str, Matrix]) -> nn.Module | None:
    """The module that makes one role under its name in `matrices`; None where no matrix makes it."""
    if name in matrices:
        return linear(matrices[name])
    if f"{name}.down" in matrices:
        return LowRank(matrices[f"{name}.down"], matrices[f"{name}.up"])
    if f"{name}.hidden" in matrices:
        return NonlinearQuery(matrices[f"{name}.hidden"], matrices[f"{name}.out"])
    return None
