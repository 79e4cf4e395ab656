"""Linear attention: the softmax gives way to a feature map φ, and all that was read before fits into one state.

With features φ(q), φ(k) ≥ 0 of the query and the key, position t reads (arXiv 2006.16236, equations 9 to 12)

    S_t = S_{t−1} + φ(k_t) v_tᵀ,   z_t = z_{t−1} + φ(k_t),   y_t = φ(q_t)ᵀ S_t / (φ(q_t)ᵀ z_t).

z is kept as one more column of S, that of a value which is always 1, so that a state is [B, G, D, Dv + 1]. It does
not grow with the tokens. Three forms say the same: `quadratic` weighs every pair of positions, `chunked` carries the
state from chunk to chunk and weighs the pairs within each, `step` is one chunk. Query heads of a group read one state.

Queries and keys enter φ as they are: the 1/√D of softmax attention would only change φ, and the paper has none.
Features, states and sums are float32 or wider, also under autocast: a bfloat16 sum would stop growing after some
hundred tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from twofold.variants.choices import Recurrence

FeatureMap = Callable[[Tensor], Tensor]
CHUNK = 64
"""Positions whose pairs are weighed one by one. Near D, both halves of the work are about equal."""
RELU_OFFSET = 1e-3
"""What keeps the denominator above 0 with relu: the stabiliser of the Performer's relu kernel (arXiv 2009.14794)."""


def elu_plus_one(x: Tensor) -> Tensor:
    """elu(x) + 1 (arXiv 2006.16236, equation 7), as exp(x) where x ≤ 0.

    Adding 1 to what elu gives would round to 0 from x = −17 on in float32, and 0 / 0 would follow.
    """
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def relu_plus_offset(x: Tensor) -> Tensor:
    """relu(x) + `RELU_OFFSET`."""
    return x.relu() + RELU_OFFSET


FEATURES: dict[Recurrence, FeatureMap] = {Recurrence.ELU: elu_plus_one, Recurrence.RELU: relu_plus_offset}


def quadratic(
    query_BHTD: Tensor,
    key_BGTD: Tensor,
    value_BGTD: Tensor,
    features: FeatureMap,
    real_BT: Tensor | None = None,
    documents_BT: Tensor | None = None,
) -> Tensor:
    """The reference: [B, T, H, Dv] by the weights of all pairs, φ(q_t)·φ(k_s) / Σ_{s≤t} φ(q_t)·φ(k_s) for s ≤ t.

    `real_BT` is False for padding, which nobody reads; a position before the first real one reads 0. `documents_BT`
    numbers documents that are read apart; each number stands for one stretch of positions.
    """
    heads_per_group = query_BHTD.shape[1] // key_BGTD.shape[1]
    key_BHTD, value_BHTD = (part.repeat_interleave(heads_per_group, dim=1) for part in (key_BGTD, value_BGTD))
    weights_BHTT = (features(query_BHTD) @ features(key_BHTD).mT).tril()
    if real_BT is not None:
        weights_BHTT = weights_BHTT.masked_fill(~real_BT[:, None, None], 0)
    if documents_BT is not None:
        weights_BHTT = weights_BHTT.masked_fill(~_same(documents_BT)[:, None], 0)
    sums_BHT1 = weights_BHTT.sum(dim=-1, keepdim=True)
    weights_BHTT = weights_BHTT / sums_BHT1.masked_fill(sums_BHT1 == 0, 1)
    return (weights_BHTT @ value_BHTD).transpose(1, 2)


def chunked(
    query_BHTD: Tensor,
    key_BGTD: Tensor,
    value_BGTD: Tensor,
    features: FeatureMap,
    state_BGDE: Tensor | None = None,
    real_BT: Tensor | None = None,
    chunk: int = CHUNK,
    documents_BT: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What T positions read, [B, T, H, Dv] in the values' dtype, and the state after them, [B, G, D, Dv + 1].

    `state_BGDE` is the state before them, None for that of no tokens. `real_BT` and `documents_BT` as in `quadratic`:
    padding leaves the state as it is, and the state before belongs to the first document. Work and memory grow with
    T · (chunk + D). The arguments stay as they are.
    """
    length = query_BHTD.shape[2]
    if length <= chunk and documents_BT is None:
        return step(query_BHTD, key_BGTD, value_BGTD, features, state_BGDE, real_BT)
    groups = key_BGTD.shape[1]
    with _full_precision(query_BHTD):
        query_BHTD, key_BGTD, value_BGTE, state_BGDE = _widened(
            query_BHTD, key_BGTD, value_BGTD, features, state_BGDE, real_BT
        )
        # Positions of zero features fill the last chunk: they add nothing, and what they read is dropped.
        query_BHNCD, key_BGNCD, value_BGNCE = (
            F.pad(part, (0, 0, 0, -length % chunk)).unflatten(2, (-1, chunk))
            for part in (query_BHTD, key_BGTD, value_BGTE)
        )
        query_BGNRCD = query_BHNCD.unflatten(1, (groups, -1)).transpose(2, 3)
        borders = None if documents_BT is None else _borders(documents_BT, chunk)
        states_BGNDE = _states(state_BGDE, key_BGNCD, value_BGNCE, borders)
        read_BGNRCD = _read(query_BGNRCD, key_BGNCD, value_BGNCE, states_BGNDE[:, :, :-1], borders)
        read_BHND = read_BGNRCD.transpose(2, 3).flatten(1, 2).flatten(2, 3)[:, :, :length]
        after_BGDE = states_BGNDE[:, :, -1].clone()  # a view would keep the states of all chunks alive
    return read_BHND.transpose(1, 2).to(value_BGTD.dtype), after_BGDE


def step(
    query_BHTD: Tensor,
    key_BGTD: Tensor,
    value_BGTD: Tensor,
    features: FeatureMap,
    state_BGDE: Tensor | None = None,
    real_BT: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The same for few positions: one chunk, whose work does not depend on how many tokens came before."""
    groups = key_BGTD.shape[1]
    with _full_precision(query_BHTD):
        query_BHTD, key_BGTD, value_BGTE, state_BGDE = _widened(
            query_BHTD, key_BGTD, value_BGTD, features, state_BGDE, real_BT
        )
        query_BGRTD = query_BHTD.unflatten(1, (groups, -1))
        if query_BHTD.shape[2] == 1:  # as in the equations: half the passes over the state
            after_BGDE = torch.addcmul(state_BGDE, key_BGTD.mT, value_BGTE)
            read_BGRTD = _mean(query_BGRTD.squeeze(3) @ after_BGDE).unsqueeze(3)
        else:
            read_BGRTD = _read(query_BGRTD, key_BGTD, value_BGTE, state_BGDE)
            after_BGDE = state_BGDE + key_BGTD.mT @ value_BGTE
    return read_BGRTD.flatten(1, 2).transpose(1, 2).to(value_BGTD.dtype), after_BGDE


def no_state(key_BGTD: Tensor, value_BGTD: Tensor) -> Tensor:
    """The state of no tokens: zeros [B, G, D, Dv + 1], float32 or the keys' wider dtype."""
    batch, groups, _, width = key_BGTD.shape
    dtype = torch.promote_types(key_BGTD.dtype, torch.float32)
    return torch.zeros(batch, groups, width, value_BGTD.shape[-1] + 1, dtype=dtype, device=key_BGTD.device)


def _widened(
    query_BHTD: Tensor,
    key_BGTD: Tensor,
    value_BGTD: Tensor,
    features: FeatureMap,
    state_BGDE: Tensor | None,
    real_BT: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features of queries and of keys (0 for padding), values with a column of ones, and a state: of one dtype."""
    assert query_BHTD.shape[1] % key_BGTD.shape[1] == 0, "every key/value head serves as many query heads"
    if state_BGDE is None:
        state_BGDE = no_state(key_BGTD, value_BGTD)
    dtype = state_BGDE.dtype
    key_BGTD = features(key_BGTD.to(dtype))
    if real_BT is not None:
        key_BGTD = key_BGTD * real_BT[:, None, :, None]
    return features(query_BHTD.to(dtype)), key_BGTD, F.pad(value_BGTD.to(dtype), (0, 1), value=1.0), state_BGDE


class _Borders(NamedTuple):
    """Where documents end among the N chunks: who belongs to the same one."""

    pairs_BNCC: Tensor  # noqa: N815
    """The positions of a chunk, pair by pair."""
    reads_BNC: Tensor  # noqa: N815
    """A position and the state before its chunk."""
    reaches_BNC: Tensor  # noqa: N815
    """A position and the last one of its chunk, after which the next state stands."""
    states_BNN: Tensor  # noqa: N815
    """The states before each chunk and after the last, pair by pair."""


def _borders(documents_BT: Tensor, chunk: int) -> _Borders:
    filled_BT = F.pad(documents_BT[:, None].float(), (0, -documents_BT.shape[1] % chunk), mode="replicate")[:, 0]
    of_BNC = filled_BT.unflatten(1, (-1, chunk))
    of_states_BN = torch.cat([of_BNC[:, :1, 0], of_BNC[:, :, -1]], dim=1)
    return _Borders(
        pairs_BNCC=_same(of_BNC),
        reads_BNC=of_BNC == of_states_BN[:, :-1, None],
        reaches_BNC=of_BNC == of_states_BN[:, 1:, None],
        states_BNN=_same(of_states_BN).tril(),
    )


def _same(documents_T: Tensor) -> Tensor:
    """[..., T, T]: whether two positions are of one document."""
    return documents_T[..., :, None] == documents_T[..., None, :]


def _states(state_BGDE: Tensor, key_BGNCD: Tensor, value_BGNCE: Tensor, borders: _Borders | None) -> Tensor:
    """The states before each of N chunks, and after the last: [B, G, N + 1, D, Dv + 1]."""
    if borders is not None:
        key_BGNCD = key_BGNCD * borders.reaches_BNC[:, None, :, :, None]
    parts_BGNDE = torch.cat([state_BGDE[:, :, None], key_BGNCD.mT @ value_BGNCE], dim=2)
    if borders is None:
        return parts_BGNDE.cumsum(dim=2)
    sums_BGNF = borders.states_BNN[:, None].to(state_BGDE.dtype) @ parts_BGNDE.flatten(3)
    return sums_BGNF.view_as(parts_BGNDE)


def _read(
    query_RCD: Tensor, key_CD: Tensor, value_CE: Tensor, state_DE: Tensor, borders: _Borders | None = None
) -> Tensor:
    """What the C positions of a chunk read, [..., R, C, Dv]: from the state before it, and from each other.

    All with the same dimensions in front; R query heads read one state, as R · C positions of one product.
    """
    heads = query_RCD.shape[-3]
    query_PD = query_RCD.flatten(-3, -2)
    weights_RCC = (query_PD @ key_CD.mT).unflatten(-2, (heads, -1)).tril()
    if borders is not None:
        weights_RCC = weights_RCC * borders.pairs_BNCC[:, None, :, None]
        query_PD = (query_RCD * borders.reads_BNC[:, None, :, None, :, None]).flatten(-3, -2)
    weights_PC = weights_RCC.flatten(-3, -2)
    return _mean(weights_PC @ value_CE + query_PD @ state_DE).unflatten(-2, (heads, -1))


def _mean(sums_PE: Tensor) -> Tensor:
    """Weighed values over their weights, the last column; a position before the first real one weighs 0 and reads 0."""
    weights_P1 = sums_PE[..., -1:]
    return sums_PE[..., :-1] / weights_P1.masked_fill(weights_P1 == 0, 1)


def _full_precision(like: Tensor) -> AbstractContextManager[object]:
    """Autocast would run the products of a state in bfloat16."""
    device = like.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()
