"""The best few numbers for vectors whose errors count by who reads them, with the maps back that readers take up.

Pure functions of matrices in float64: nothing here knows of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from twofold.conversion.layer_maps import root_of
from twofold.explain.sharing import Inputs

NOTHING = 1e-10  # of a size beside which a number is rounding


class Latent(NamedTuple):
    """W ≈ `up_RC` · `down_CM`, with numbers whose mean square is 1."""

    down_CM: Tensor  # noqa: N815
    up_RC: Tensor  # noqa: N815

    @property
    def made_RM(self) -> Tensor:  # noqa: N802
        """What stands for W: [R, M]."""
        return self.up_RC @ self.down_CM


def weighted_latent(weighed_RM: Tensor, plain_RM: Tensor, inputs: Inputs, dims: int) -> Latent:
    """The best `dims` numbers for vectors `weighed_RM` x, whose plain squared error is what counts, and the map from
    them that comes nearest to `plain_RM` x.

    With E x xᵀ = S Sᵀ, the numbers are the first left singular vectors of `weighed_RM` S times what it makes (as in
    `explain.sharing.joint`). Nothing is lost with `dims` at its rank, if it has the rank of `plain_RM`. `dims` is at
    most the rows of `weighed_RM`.
    """
    assert dims <= len(weighed_RM)
    root_MN = torch.nn.functional.pad(root_of(inputs), (0, dims))  # so that few tokens leave no fewer directions
    left, values, right = torch.linalg.svd(weighed_RM @ root_MN, full_matrices=False)
    values = values[:dims]
    scale = float(values.square().mean().sqrt()) or 1.0
    inverse = torch.where(values > NOTHING * values[0], scale / values.where(values > 0, 1), 0)
    return Latent(left[:, :dims].T @ weighed_RM / scale, plain_RM @ root_MN @ right[:dims].T * inverse)


def weighed(by: Sequence[Tensor], map_RM: Tensor) -> Tensor:
    """[G·D, M]: a root of Σ A Aᵀ times each head's map, of readers A = `by`[g] [D, N] that meet its vectors as Aᵀ v.

    For keys A is what the queries of the group are on the inputs, for values their output matrices, transposed.
    """
    roots = [torch.linalg.qr(one.T, mode="r").R for one in by]
    return torch.cat([root @ one for root, one in zip(roots, map_RM.chunk(len(roots)), strict=True)])


def readers(of_RN: Tensor, groups: int, dims: int) -> list[Tensor]:
    """Of each of G `groups` of query heads with D = `dims`: [H·D, N] to G matrices [D, (H / G)·N]."""
    return [torch.cat(list(of_HDN), dim=1) for of_HDN in of_RN.unflatten(0, (groups, -1, dims))]


def folded(ups: Sequence[Tensor], of_RM: Tensor, dims: int) -> Tensor:
    """Vectors of query heads [H·D, M], which meet B z with D = `dims` rows in B = `ups`[g] [D, C], as ones that meet z:
    [H·C, M].
    """
    by_group = of_RM.unflatten(0, (len(ups), -1, dims))
    return torch.cat([(up.T @ of_HDM).flatten(0, 1) for up, of_HDM in zip(ups, by_group, strict=True)])


def normed(map_RM: Tensor, inputs: Inputs, beside_RM: Tensor | None = None) -> Tensor:
    """With mean square 1 on the inputs in all; 0 where it is nothing, or nothing beside another map of its unit."""
    root_MN = root_of(inputs)
    size, beside = (
        float(torch.linalg.norm(one @ root_MN)) for one in (map_RM, map_RM if beside_RM is None else beside_RM)
    )
    return map_RM / size if size > NOTHING * beside else torch.zeros_like(map_RM)
