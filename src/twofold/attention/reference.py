"""The slow twin: causal attention written out head by head in float64, from the papers' equations.

It shares no code with the fast layer and is read beside the papers: arXiv 2606.04032, equation 1, and those named in
`reference_roles.py`. Tests hold the fast paths against it, outputs and gradients.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from twofold.attention.reference_roles import Head, Setting, linear
from twofold.variants.variant import Variant


def reference(
    x_BTM: Tensor,
    weights: Mapping[str, Tensor],
    variant: Variant,
    setting: Setting,
    *,
    positions_BT: Tensor | None = None,
    real_BT: Tensor | None = None,
    rows_of: tuple[Tensor, Mapping[str, Tensor]] | None = None,
) -> Tensor:
    """Causal self-attention of one layer, [B, T, M] to [B, T, M].

    With q, k, v the vectors of head h (`reference_roles.Head`), d the dims of a key and p the exponent of the scale,
    position t reads y_t = Σ_s a_ts v_s, a_ts = exp(z_ts) / (Σ_s exp(z_ts) + exp(sink_h)), over the positions s that it
    sees, with z_ts = q_t·k_s / d^p, or c·tanh of that over c with a soft cap. Without sinks their term is absent. The
    layer gives W_O [y of all heads] + b_O.

    `weights` are the layer's parameters under the names of `variants.tensors`. `positions_BT` are 0, 1, 2 … by default.
    `real_BT` is False for padding, which nobody else sees; outputs there mean nothing. `rows_of`: input and weights of
    the layer whose keys and values this one reads (arXiv 2405.12981).
    """
    batch, length, _ = x_BTM.shape
    sees_BTT = _sees(batch, length, real_BT, setting.window)
    if positions_BT is None:
        positions_BT = torch.arange(length).expand(batch, length)
    of_rows_BTM, of_rows = (x_BTM, weights) if rows_of is None else rows_of
    outputs = []
    for b in range(batch):
        read = []
        for h in range(setting.heads):
            querying = Head(x_BTM[b], weights, variant, setting, positions_BT[b], h)
            kept = Head(of_rows_BTM[b], of_rows, variant, setting, positions_BT[b], h)
            key_TD = kept.key()
            scores_TT = querying.query() @ key_TD.T / key_TD.shape[1] ** setting.exponent
            if setting.softcap:
                scores_TT = setting.softcap * torch.tanh(scores_TT / setting.softcap)
            sink = weights["sinks"][h] if "sinks" in weights else None
            read.append(querying.read(_weights(scores_TT, sees_BTT[b], sink) @ kept.value()))
        outputs.append(linear("o_proj", torch.cat(read, dim=1), weights))
    return torch.stack(outputs)


def _weights(scores_TT: Tensor, sees_TT: Tensor, sink: Tensor | None) -> Tensor:
    """Shares of attention; a sink takes one and gives nothing (arXiv 2309.17453)."""
    scores_TT = scores_TT.masked_fill(~sees_TT, -torch.inf)
    if sink is None:
        return torch.softmax(scores_TT, dim=1)
    with_sink = torch.cat([sink.expand(len(scores_TT), 1), scores_TT], dim=1)
    return torch.softmax(with_sink, dim=1)[:, 1:]


def _sees(batch: int, length: int, real_BT: Tensor | None, window: int | None) -> Tensor:
    """Who sees whom, [B, T, T]: the `window` newest real positions up to and including oneself, and always oneself."""
    sees_BTT = torch.ones(batch, length, length, dtype=torch.bool).tril()
    if window is not None:
        sees_BTT = sees_BTT.triu(1 - window)
    if real_BT is not None:
        sees_BTT = sees_BTT & real_BT.bool()[:, None, :]
    return sees_BTT | torch.eye(length, dtype=torch.bool)
