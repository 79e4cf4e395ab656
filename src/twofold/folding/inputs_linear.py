"""Layers with `q_proj`, `k_proj` and `v_proj`, whose queries are scaled before the scores are made (OPT, Whisper)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from twofold.folding.inputs import Matrices, Parts, is_plain, is_read_alone, obstacle
from twofold.kernels.linear import DecodeLinear

_KINDS = (nn.Linear, DecodeLinear)
_MOVED = ("k_proj", "v_proj")


def weights_obstacle(module: Any, form: str) -> str | None:
    """Why this module's weights do not allow the form."""
    return obstacle(module, _MOVED, _KINDS)


def linear_parts(module: Any, x_BTM: Tensor) -> Parts:
    """What such a layer tells of itself; queries of `x_BTM`."""
    heads = (module.num_heads, module.head_dim)
    key, value = module.k_proj, module.v_proj
    matrices = None
    if all(is_plain(layer, _KINDS) and is_read_alone(layer) for layer in (key, value)):
        bias_HD = None if value.bias is None else value.bias.unflatten(0, heads)
        matrices = Matrices(key.weight.unflatten(0, heads), value.weight.unflatten(0, heads), bias_HD)

    def states(rows_BSM: Tensor) -> tuple[Tensor, Tensor]:
        key_BHSD, value_BHSD = (made(rows_BSM).unflatten(-1, heads).transpose(1, 2) for made in (key, value))
        return key_BHSD, value_BHSD

    query_BHTD = (module.q_proj(x_BTM) * module.scaling).unflatten(-1, heads).transpose(1, 2)
    return Parts(query_BHTD, 1.0, matrices, states, module.dropout)
