"""Where the heads of a layer look, each measure beside what even attention over the same positions would give."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from twofold.evaluation.attention_entropy import tally
from twofold.explain.activations import LayerActivations, Scored

Measures = dict[str, float | list[float]]


def attention_patterns(activations: LayerActivations) -> Measures:
    """Measures of a layer's attention, by name the mean over heads and in `_heads` [H] each; nothing for a recurrence.

    Means over texts and over the query positions that see two positions or more, of a query's weights w:

    - `entropy` −Σ w log w in nats, `relative_entropy`, its share of the largest possible, log of the n seen, and
      `saturated`, the share of queries that give one position more than 0.99; see `evaluation.attention_entropy`;
    - `first`, the weight of the first position, where causal models put what they do not need ("attention sinks",
      Xiao et al. 2023, arXiv 2309.17453);
    - `own`, the weight of the query's own position, and `previous`, that of the one before it;
    - `distance` Σ w |t − s| in positions.

    `first`, `own`, `previous` and `distance` have a `_chance`: equal weights on all positions seen. Two measures are of
    the scores S of all pairs before the mask: `symmetric_share` (see there) and `own_is_largest`, the share of queries
    whose largest score is with their own position, by chance 1/T. NaN where nothing is seen but the query itself.
    """
    scored = activations.scored
    if scored is None:
        return {}
    distance_TT = _distances(scored.maps_BHTT.shape[-1])
    found = _sharpness(scored)
    weighings = {
        "first": torch.zeros_like(distance_TT).index_fill(1, torch.tensor(0), 1),
        "own": (distance_TT == 0).double(),
        "previous": torch.ones(len(distance_TT) - 1, dtype=torch.float64).diag(-1),
        "distance": distance_TT.abs(),
    }
    queries_BT = _choices(scored) >= 2
    for name, weighing_TT in weighings.items():
        found |= _weighed(name, scored, weighing_TT, queries_BT)
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
