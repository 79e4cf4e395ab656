"""A latent that is not normalised, in a target that always does it: an RMSNorm that changes nothing.

RMSNorm divides by √(mean(c²) + ε). Of s·c with a small s it divides by √ε, and with the weight √ε/s the result is
c·(1 − δ), δ ≤ s²·mean(c²)/2ε. The mean has a bound: c = W_a (γ ⊙ x), where the block's own norm leaves |x|² ≤ M, so
that mean(c²) ≤ |W_a γ|²_F · M/P over P dims. From it s follows for a δ that the arithmetic cannot show; as a power of
two, so that no weight is rounded.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Scale(NamedTuple):
    """What the latent's matrix is multiplied by, and what every weight of the norm is."""

    matrix: float
    norm: float


def identity_scale(latent_CM: Tensor, gain_M: Tensor, width: int, epsilon: float) -> Scale:
    """For a latent of C dims in one of `width`, and the weight γ of the norm before it; `epsilon` is the target's."""
    largest = (latent_CM.double() * gain_M.double()).square().sum().item() * len(gain_M) / width
    if largest == 0:
        return Scale(1.0, epsilon**0.5)
    unseen = torch.finfo(torch.promote_types(latent_CM.dtype, torch.float32)).eps / 4
    factor = 2.0 ** math.floor(math.log2((2 * epsilon * unseen / largest) ** 0.5))
    return Scale(factor, epsilon**0.5 / factor)
