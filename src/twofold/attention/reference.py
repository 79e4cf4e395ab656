"""The slow twin: the attention of arXiv 2606.04032, equation 1, written out head by head in float64.

It shares no code with the fast layer and is read beside the paper. Tests hold the fast paths against it, outputs and
gradients.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from twofold.variants.variant import Variant


def reference(
    x_BTM: Tensor,
    weights: Mapping[str, Tensor],
    variant: Variant,
    *,
    heads: int,
    head_dim: int,
    rotary_base: float | None = None,
    positions_BT: Tensor | None = None,
    real_BT: Tensor | None = None,
) -> Tensor:
    """Causal self-attention of one layer, [B, T, M] to [B, T, M].

    With q, k, v the head's vectors and α = 1/√D, position t reads y_t = Σ_{s≤t} softmax_s(α q_t·k_s) v_s, and the
    layer gives W_O [y of all heads] + b_O. Query head h uses key/value head ⌊h·G/H⌋.

    `weights`: `q_proj.weight` [H·D, M], `k_proj.weight` and `v_proj.weight` [G·D, M], `o_proj.weight` [M, H·D], and
    `.bias` where there are biases. A role without a matrix of its own takes the key's.

    With `rotary_base`, q_t becomes R_t q_t and k_s becomes R_s k_s, where R_p multiplies the complex number
    x_j + i·x_{j+D/2} by exp(i·p·base^(−2j/D)). Where the variant shares key and value, the value takes part
    ("derotated", arXiv 2606.19348): y_t = R_t⁻¹ Σ softmax(…) R_s v_s.

    `positions_BT` are 0, 1, 2 … by default. `real_BT` is False for padding, which nobody else sees; outputs there mean
    nothing.
    """
    batch, length, _ = x_BTM.shape
    kv_heads = heads if variant.kv_heads is None else variant.kv_heads
    sees_BTT = _sees(batch, length, real_BT)
    if positions_BT is None:
        positions_BT = torch.arange(length).expand(batch, length)
    outputs = []
    for b in range(batch):
        turns_TF = None if rotary_base is None else _turns(positions_BT[b], head_dim, rotary_base)
        read = []
        for h in range(heads):
            g = h * kv_heads // heads
            query_TD = _role("q_proj", x_BTM[b], weights, h, head_dim)
            key_TD = _role("k_proj", x_BTM[b], weights, g, head_dim)
            value_TD = _role("v_proj", x_BTM[b], weights, g, head_dim)
            if turns_TF is not None:
                query_TD, key_TD = _turned(query_TD, turns_TF), _turned(key_TD, turns_TF)
                if variant.sharing.value_is_key:
                    value_TD = _turned(value_TD, turns_TF)
            scores_TT = (query_TD @ key_TD.T / head_dim**0.5).masked_fill(~sees_BTT[b], -torch.inf)
            read_TD = torch.softmax(scores_TT, dim=1) @ value_TD
            if turns_TF is not None and variant.sharing.value_is_key:
                read_TD = _turned(read_TD, turns_TF.conj())
            read.append(read_TD)
        outputs.append(_linear("o_proj", torch.cat(read, dim=1), weights))
    return torch.stack(outputs)


def _sees(batch: int, length: int, real_BT: Tensor | None) -> Tensor:
    """Who sees whom, [B, T, T]: real positions up to and including oneself, and always oneself."""
    sees_BTT = torch.ones(batch, length, length, dtype=torch.bool).tril()
    if real_BT is not None:
        sees_BTT = sees_BTT & real_BT.bool()[:, None, :]
    return sees_BTT | torch.eye(length, dtype=torch.bool)


def _linear(name: str, x_TM: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    made = x_TM @ weights[f"{name}.weight"].T
    return made + weights[f"{name}.bias"] if f"{name}.bias" in weights else made


def _role(name: str, x_TM: Tensor, weights: Mapping[str, Tensor], head: int, head_dim: int) -> Tensor:
    owner = name if f"{name}.weight" in weights else "k_proj"
    return _linear(owner, x_TM, weights)[:, head * head_dim : (head + 1) * head_dim]


def _turns(positions_T: Tensor, head_dim: int, base: float) -> Tensor:
    """exp(i·p·base^(−2j/D)), [T, D/2]."""
    frequencies_F = torch.tensor([base ** (-2 * j / head_dim) for j in range(head_dim // 2)], dtype=torch.float64)
    angles_TF = positions_T.double()[:, None] * frequencies_F
    return torch.polar(torch.ones_like(angles_TF), angles_TF)


def _turned(x_TD: Tensor, turns_TF: Tensor) -> Tensor:
    half = x_TD.shape[1] // 2
    turned_TF = torch.complex(x_TD[:, :half], x_TD[:, half:]) * turns_TF
    return torch.cat([turned_TF.real, turned_TF.imag], dim=1)
