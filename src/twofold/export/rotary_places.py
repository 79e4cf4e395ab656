"""Where the rotary pairs of a key stand in a target's key, whose pair j of R/2 turns by base^(−2j/R) a position.

Our pair with the number n turns by θ^(−nu): n = 0 … r/2 − 1 and u = 2/r where pairs are evenly spaced, else n is one of
`rotary_pairs` and u = 2/D. With s the greatest common divisor of the numbers, pair n takes place (n/s)·t, and the base
becomes θ^(usR/2t), so that it turns as before. The stride t is as large as fits; with t = 1 the base would grow beyond
float32 where R is much more than r.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from twofold.models.architecture import Architecture


class Places(NamedTuple):
    """The place of each of our pairs, and the base that goes with them."""

    of_pairs: tuple[int, ...]
    base: float


def places(sizes: Architecture, width: int) -> Places | None:
    """The places in a rotary key of `width` dims; None where they do not fit."""
    numbers, unit = _numbers(sizes)
    step = _step(numbers)
    stride = width // least_width(sizes)
    if not stride:
        return None
    return Places(tuple(n // step * stride for n in numbers), sizes.rotary_base ** (unit * step * width / (2 * stride)))


def least_width(sizes: Architecture) -> int:
    """Dims of the smallest rotary key that holds the pairs; r where these are an even progression that begins at 0."""
    numbers, _ = _numbers(sizes)
    return 2 * (max(numbers) // _step(numbers) + 1)


def placed(weight_RM: Tensor, of_pairs: tuple[int, ...], width: int) -> Tensor:
    """[…, r, M] to […, width, M]: half-split pairs (i, i + r/2) become neighbours, each at its pair's place."""
    halves_2PM = weight_RM.unflatten(-2, (2, -1))
    made = weight_RM.new_zeros((*halves_2PM.shape[:-3], width // 2, 2, weight_RM.shape[-1]))
    made[..., torch.tensor(of_pairs), :, :] = halves_2PM.transpose(-3, -2)
    return made.flatten(-3, -2)


def _numbers(sizes: Architecture) -> tuple[tuple[int, ...], float]:
    """The number of each pair, and what the exponent of its frequency is for one of 1."""
    if sizes.rotary_pairs:
        return sizes.rotary_pairs, 2 / sizes.head_dim
    return tuple(range(sizes.rotated_dims // 2)), 2 / sizes.rotated_dims


def _step(numbers: tuple[int, ...]) -> int:
    return math.gcd(*numbers) or 1
