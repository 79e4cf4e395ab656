"""The maps of one attention layer as matrices, and what is lost where its keys and values are made of less.

Pure functions of float64 matrices: nothing here knows of models. Keys are taken before rotary positions turn them:
turning keeps lengths, so that what is lost of a key does not depend on where it stands. They are taken before a norm as
well.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from twofold.explain.sharing import Inputs, Rows


class Norms(NamedTuple):
    """The weights that all heads' queries and keys are multiplied with once a norm has divided them by their length."""

    query_D: Tensor  # noqa: N815
    key_D: Tensor  # noqa: N815


class LayerMaps(NamedTuple):
    """A layer's matrices in float64, heads below one another (beside one another in the output's).

    `query_RM` [H·D, M], `key_RM` and `value_RM` [G·D, M], `output_MR` [M, H·D]. Where queries, keys and values have
    biases, these are the last column of their matrices, and an input x is [x; 1] (`affine`): M in all names but the
    output's is then one more than the model's width. A bias of the output is not among them. `norms` are those of
    queries and keys by head, before rotary, None where there are none.
    """

    query_RM: Tensor  # noqa: N815
    key_RM: Tensor  # noqa: N815
    value_RM: Tensor  # noqa: N815
    output_MR: Tensor  # noqa: N815
    heads: int
    kv_heads: int
    norms: Norms | None = None

    @property
    def head_dim(self) -> int:
        """D."""
        return len(self.key_RM) // self.kv_heads

    @property
    def row_width(self) -> int:
        """2·G·D: the numbers that are kept of a token where nothing is shared."""
        return len(self.key_RM) + len(self.value_RM)


class Lost(NamedTuple):
    """The shares that are not kept, from 0: of keys and values together, of keys, and of values."""

    both: float
    key: float
    value: float


class Shared(NamedTuple):
    """What a layer becomes: `tensors` in float64 by the seam's names ("q_proj.weight", …), biases as a last column.

    `lost` is E‖[k; v] − [k'; v']‖² / E‖[k; v]‖² on the given inputs, where k' and v' are what the layer has now for
    keys and values: `lost_of`. `lost_key` and `lost_value` are the same of keys and of values alone. `rows` are the
    maps that make those k' and v', before norms and rotary.
    """

    tensors: dict[str, Tensor]
    lost: float
    lost_key: float
    lost_value: float
    rows: Rows


def layer_maps(query: Tensor, key: Tensor, value: Tensor, output: Tensor, *, heads: int, kv_heads: int) -> LayerMaps:
    """The maps of matrices in any dtype: [H·D, M], [G·D, M] twice, and [M, H·D]; the first three may have biases as a
    last column, and are [·, M + 1] then.

    Raises ValueError where sizes do not belong to one layer.
    """
    rows, width = key.shape
    fits = heads % kv_heads == 0 and rows % kv_heads == 0
    wide = rows // kv_heads * heads
    shapes = [tuple(one.shape) for one in (query, key, value, output)]
    made = len(output) if len(output) == width - 1 else width
    if not fits or shapes != [(wide, width), (rows, width), (rows, width), (made, wide)]:
        raise ValueError(
            f"matrices of query, key, value and output are {shapes}, which do not belong to one layer of {heads} query "
            f"heads and {kv_heads} key/value heads: give [H·D, M], [G·D, M], [G·D, M] and [M, H·D], with G dividing H, "
            "and biases as a last column of the first three or of none"
        )
    return LayerMaps(query.double(), key.double(), value.double(), output.double(), heads, kv_heads)


def root_of(inputs: Inputs) -> Tensor:
    """S [M, N] with S Sᵀ = E x xᵀ: E‖W x‖² is ‖W S‖², for every W."""
    return torch.cat([inputs.spread_MN, inputs.mean_M[:, None]], dim=1)


def lost_of(maps: LayerMaps, key_RM: Tensor, value_RM: Tensor, inputs: Inputs) -> Lost:
    """E‖W x − W̃ x‖² / E‖W x‖² over these inputs x, where W̃ are the remade maps [G·D, M]; 0 of nothing.

    W is [W_K; W_V], W_K and W_V in turn. Squares are summed over all heads, so that a role or a head with longer
    vectors counts for more. With the inputs' mean and covariance it is the mean over the tokens that they are from.
    """
    root_MN = root_of(inputs)
    missed, whole = (
        [float((one @ root_MN).square().sum()) for one in pair]
        for pair in ((maps.key_RM - key_RM, maps.value_RM - value_RM), (maps.key_RM, maps.value_RM))
    )
    return Lost(*(_share(*pair) for pair in ((sum(missed), sum(whole)), *zip(missed, whole, strict=True))))


def shared(maps: LayerMaps, key_RM: Tensor, value_RM: Tensor, inputs: Inputs, tensors: dict[str, Tensor]) -> Shared:
    """`tensors`, given by role ("k_proj", …), with what is lost where they make keys and values by the remade maps."""
    lost = lost_of(maps, key_RM, value_RM, inputs)
    named = {f"{name}.weight": one for name, one in tensors.items()}
    return Shared(named, lost.both, lost.key, lost.value, Rows(key_RM, value_RM))


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
