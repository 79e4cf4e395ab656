"""Maps with biases as matrices: W x + b is [W b] · [x; 1], homogeneous coordinates.

What is said of matrices, and of inputs by their mean and second moment, then holds of biases too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from twofold.explain.sharing import Inputs, Rows


def map_of(layer: nn.Linear) -> Tensor:
    """[R, M + 1], the bias as the last column; [R, M] where there is none. Without its gradient."""
    weight_RM = layer.weight.detach()
    return weight_RM if layer.bias is None else torch.cat([weight_RM, layer.bias.detach()[:, None]], dim=1)


@torch.no_grad()
def put_map(layer: nn.Linear, map_RM: Tensor) -> None:
    """The inverse of `map_of`, in place. A map without a bias, [R, M], leaves that of the layer as it is.

    Raises ValueError for a map of another size, and for one with a bias where the layer has none.
    """
    rows, width = layer.weight.shape
    widths = [width] if layer.bias is None else [width, width + 1]
    if map_RM.ndim != 2 or len(map_RM) != rows or map_RM.shape[1] not in widths:
        raise ValueError(
            f"a map of {list(map_RM.shape)} does not go into a layer of {[rows, width]} "
            f"{'without' if layer.bias is None else 'with'} a bias: give {rows} rows of {' or '.join(map(str, widths))}"
        )
    layer.weight.copy_(map_RM[:, :width])
    if map_RM.shape[1] > width:
        layer.bias.copy_(map_RM[:, width])


def with_one(x_BTM: Tensor) -> Tensor:
    """[x; 1] for vectors x in the last dim, [..., M] to [..., M + 1]."""
    return torch.nn.functional.pad(x_BTM, (0, 1), value=1.0)


def inputs_with_one(inputs: Inputs) -> Inputs:
    """What is known of [x; 1] where `inputs` is known of x: a last number with mean 1 that does not vary."""
    return Inputs(with_one(inputs.mean_M), torch.nn.functional.pad(inputs.spread_MN, (0, 0, 0, 1)))


def biases_apart(rows: Rows) -> Rows:
    """Maps of [x; 1] as maps of x with biases."""
    key_RM, value_RM = rows.key_RM, rows.value_RM
    return Rows(key_RM[:, :-1], value_RM[:, :-1], key_RM[:, -1], value_RM[:, -1])
