"""Where the heads of a layer look, each measure beside what even attention over the same positions would give."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import torch
from torch import Tensor

from twofold.evaluation.attention_entropy import tally
from twofold.explain.activations import LayerActivations, Scored

Measures = dict[str, float | list[float]]
ROUNDING = 1e-4
"""Weights that differ by no more are the same."""


def attention_patterns(activations: LayerActivations) -> Measures:
    """Measures of a layer's attention, by name the mean over heads and in `_heads` [H] each; nothing for a recurrence.

    Means over texts and over the query positions that see two positions or more, of a query's weights w:

    - `entropy` −Σ w log w in nats, `relative_entropy`, its share of the largest possible, log of the n seen, and
      `saturated`, the share of queries that give one position more than 0.99; see `evaluation.attention_entropy`;
    - `first`, the weight of the first position, where causal models put what they do not need ("attention sinks",
      Xiao et al. 2023, arXiv 2309.17453);
    - `own`, the weight of the query's own position, and `previous`, that of the one before it;
    - `before` and `after`, the weight of all positions before and after the query's own;
    - `distance` Σ w |t − s| in positions.

    `maps_symmetric_share` is `symmetric_share` of the weights: what the mask and the softmax leave of the symmetry of
    scores. All of these but the entropies have a `_chance`: equal weights on all positions seen. Two measures are of
    the scores S of all pairs before the mask: `symmetric_share` (see there) and `own_is_largest`, the share of queries
    whose largest score is with their own position, by chance 1/T. NaN where nothing is seen but the query itself.

    Where a term on the scores (`+`) or a soft cap changes weights, `own`, `before`, `after` and `maps_symmetric_share`
    come again as `…_without_terms`: of softmax(scale · q·k) under the same mask. A term's own scale is in the queries
    and stays.
    """
    scored = activations.scored
    if scored is None:
        return {}
    distance_TT = _distances(scored.maps_BHTT.shape[-1])
    found = _sharpness(scored)
    weighings = {
        "first": torch.zeros_like(distance_TT).index_fill(1, torch.tensor(0), 1),
        "previous": torch.ones(len(distance_TT) - 1, dtype=torch.float64).diag(-1),
        "distance": distance_TT.abs(),
    }
    queries_BT = _choices(scored) >= 2
    for name, weighing_TT in weighings.items():
        found |= _weighed(name, scored, weighing_TT, queries_BT)
    found |= _direction(scored, queries_BT)
    bare = _without_terms(scored)
    if bare is not None:
        without = {name: value for name, value in _direction(bare, queries_BT).items() if not name.endswith("_chance")}
        found |= {re.sub("(_heads)?$", r"_without_terms\1", name, count=1): value for name, value in without.items()}
    length = len(distance_TT)
    found |= _by_head("symmetric_share", symmetric_share(scored)) | {
        "symmetric_share_chance": (length + 1) / (2 * length)
    }
    return found | _by_head("own_is_largest", _own_is_largest(scored)) | {"own_is_largest_chance": 1 / length}


def repetition_scores(activations: LayerActivations, length: int) -> Measures:
    """How a layer's heads look on `repeated_tokens` of that `length`, whose positions length … 2 · length − 1 repeat.

    `induction`: the mean weight from a token's second occurrence t to the position after its first, t − length + 1.
    `duplicate`: to the first occurrence itself. `previous`: over all positions but the first, to the one before. Each
    with `_heads` [H] and `_chance`, equal weights on all positions seen. Olsson et al. 2022, arXiv 2209.11895 ("prefix
    matching"). Raises ValueError where the activations are not of 2 · length tokens. Nothing for a recurrence.
    """
    positions = activations.x_BTM.shape[1]
    if positions != 2 * length or length < 2:
        raise ValueError(f"{length} tokens, at least 2, that are repeated are {2 * length}, not {positions}")
    scored = activations.scored
    if scored is None:
        return {}
    distance_TT = _distances(positions)
    every = torch.ones(1, positions, dtype=torch.bool)
    second, later = every.clone(), every.clone()
    second[:, :length] = False
    later[:, 0] = False
    return (
        _weighed("induction", scored, (distance_TT == length - 1).double(), second)
        | _weighed("duplicate", scored, (distance_TT == length).double(), second)
        | _weighed("previous", scored, (distance_TT == 1).double(), later)
    )


def repeated_tokens(vocabulary: int, length: int, batch: int, seed: int) -> Tensor:
    """[batch, 2 · length] token ids: `length` tokens drawn without replacement from 0 … vocabulary − 1, then again.

    Nothing but looking back tells what follows. Raises ValueError where the vocabulary is smaller than the length.
    """
    if not 2 <= length <= vocabulary or batch < 1:
        raise ValueError(
            f"from {vocabulary} tokens 2 to {vocabulary} different ones can be drawn for at least 1 text, "
            f"not {length} for {batch}"
        )
    generator = torch.Generator().manual_seed(seed)
    once_BT = torch.stack([torch.randperm(vocabulary, generator=generator)[:length] for _ in range(batch)])
    return torch.cat([once_BT, once_BT], dim=1)


def symmetric_share(scored: Scored) -> list[float]:
    """‖S + Sᵀ‖² / (4 ‖S‖²) of the scores before the mask, by query head, the mean over texts; Frobenius norms.

    The share of the symmetric part (S + Sᵀ)/2 in S: 1 where a position looks at another as that looks back, as with
    Q=K; 0 where S = −Sᵀ; (T + 1)/(2T) on average for independent scores with mean 0. By traces of products of q and k,
    T × T scores are not made: ‖S + Sᵀ‖² = 2 ‖S‖² + 2 tr(S S). NaN where all scores are 0.
    """
    query_BHTD, key_BHTD = scored.q_BHTD.double(), _keys(scored)
    norm_BH = ((query_BHTD.mT @ query_BHTD) * (key_BHTD.mT @ key_BHTD)).sum((-1, -2))
    crossed_BHDD = key_BHTD.mT @ query_BHTD
    trace_BH = (crossed_BHDD * crossed_BHDD.mT).sum((-1, -2))
    return (0.5 + trace_BH / (2 * norm_BH)).mean(0).tolist()


def _direction(scored: Scored, queries_BT: Tensor) -> Measures:
    """Weights of the own position and of those before and after it, and how symmetric the maps are."""
    distance_TT = _distances(scored.maps_BHTT.shape[-1])
    sides = {"own": distance_TT == 0, "before": distance_TT > 0, "after": distance_TT < 0}
    found: Measures = {}
    for name, side_TT in sides.items():
        found |= _weighed(name, scored, side_TT.double(), queries_BT)
    shares = [_symmetric(maps_BTT) for maps_BTT in scored.maps_BHTT.unbind(1)]
    even_BTT = scored.seen_BTT.double() / _choices(scored).clamp(min=1)[..., None]
    return found | _by_head("maps_symmetric_share", shares) | {"maps_symmetric_share_chance": _symmetric(even_BTT)}


def _symmetric(maps_BTT: Tensor) -> float:
    """‖A + Aᵀ‖² / (4 ‖A‖²), the mean over texts."""
    maps_BTT = maps_BTT.double()
    crossed_B, norm_B = (maps_BTT * maps_BTT.mT).sum((-1, -2)), maps_BTT.square().sum((-1, -2))
    return float((0.5 + crossed_B / (2 * norm_B)).mean())


def _without_terms(scored: Scored) -> Scored | None:
    """The same with the weights of q·k alone; None where that is what they are, and where sinks take a share."""
    if scored.has_sinks:
        return None
    maps = []
    for head, query_BTD in enumerate(scored.q_BHTD.unbind(1)):
        key_BTD = scored.k_BGTD[:, head * scored.k_BGTD.shape[1] // scored.q_BHTD.shape[1]]
        scores_BTT = (query_BTD @ key_BTD.mT * scored.scale).masked_fill(~scored.seen_BTT, -math.inf)
        maps.append(scores_BTT.softmax(-1).nan_to_num())
    maps_BHTT = torch.stack(maps, dim=1)
    changed = (maps_BHTT - scored.maps_BHTT)[scored.seen_BTT[:, None].expand_as(maps_BHTT)].abs().max()
    return replace(scored, maps_BHTT=maps_BHTT) if changed > ROUNDING else None


def _keys(scored: Scored) -> Tensor:
    """The keys, one for each query head, float64."""
    return scored.k_BGTD.double().repeat_interleave(scored.q_BHTD.shape[1] // scored.k_BGTD.shape[1], dim=1)


def _own_is_largest(scored: Scored) -> list[float]:
    query_BHTD, key_BHTD = scored.q_BHTD.double(), _keys(scored)
    own_T = torch.arange(query_BHTD.shape[2])
    found = []
    for head in range(query_BHTD.shape[1]):  # one head at a time: T × T scores
        scores_BTT = query_BHTD[:, head] @ key_BHTD[:, head].mT
        found.append(float((scores_BTT.argmax(-1) == own_T).double().mean()))
    return found


def _sharpness(scored: Scored) -> Measures:
    choices_BT = _choices(scored)
    names = ("entropy", "relative_entropy", "saturated")
    rows = []
    for head in range(scored.maps_BHTT.shape[1]):
        totals = sum(
            tally(maps_HTT[head, None], choices_T, has_sink=scored.has_sinks)
            for maps_HTT, choices_T in zip(scored.maps_BHTT, choices_BT.expand(len(scored.maps_BHTT), -1), strict=True)
        )
        assert isinstance(totals, Tensor)
        rows.append((totals[:3] / totals[3]).tolist())
    found: Measures = {}
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        found |= _by_head(name, list(values))
    return found


def _weighed(name: str, scored: Scored, weighing_TT: Tensor, queries_BT: Tensor) -> Measures:
    """Σ_s weight(t, s) · weighing(t, s), the mean over texts and the query positions t, and that of even weights."""
    batch = len(scored.maps_BHTT)
    counted_BT = queries_BT.expand(batch, -1).double()
    total = counted_BT.sum()
    heads = [
        float(((maps_BTT.double() * weighing_TT).sum(-1) * counted_BT).sum() / total)
        for maps_BTT in scored.maps_BHTT.unbind(1)
    ]
    even_BTT = scored.seen_BTT.double() / _choices(scored).clamp(min=1)[..., None]
    chance = float(((even_BTT * weighing_TT).sum(-1).expand(batch, -1) * counted_BT).sum() / total)
    return _by_head(name, heads) | {f"{name}_chance": chance}


def _choices(scored: Scored) -> Tensor:
    """[B or 1, T]: what a query can weigh, the positions it sees and the sink where there is one."""
    return scored.seen_BTT.sum(-1) + int(scored.has_sinks)


def _distances(length: int) -> Tensor:
    """[T, T]: how far a key position (column) lies behind the query's; negative before it."""
    place_T = torch.arange(length, dtype=torch.float64)
    return place_T[:, None] - place_T


def _by_head(name: str, values: list[float]) -> Measures:
    return {name: math.fsum(values) / len(values), f"{name}_heads": values}
