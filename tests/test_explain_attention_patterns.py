"""Measures of attention against loops, and on heads that do exactly one thing."""

import math

import pytest
import torch

from small_encoders import encoder_of
from small_models import random_ids, small_model
from twofold.explain.activations import LayerActivations, Scored, run
from twofold.explain.attention_patterns import attention_patterns, repeated_tokens, repetition_scores, symmetric_share

T = 13
VALUES = ("entropy", "relative_entropy", "saturated", "first", "own", "previous", "distance")


def of_maps(maps_BHTT, causal=True, query=None, key=None, has_sinks=False):
    batch, heads, length, _ = maps_BHTT.shape
    seen = torch.ones(1, length, length, dtype=torch.bool)
    query = torch.randn(batch, heads, length, 3, dtype=torch.float64) if query is None else query
    key = torch.randn(batch, heads, length, 3, dtype=torch.float64) if key is None else key
    scored = Scored(query, key, maps_BHTT, seen.tril() if causal else seen, 1.0, 3, has_sinks)
    x = torch.zeros(batch, length, 2)
    return LayerActivations(0, x, x, x, x, x, scored)


def by_loops(maps, first_seen, has_sink=False):
    """The measures of one head, [B, T, T], where query t sees first_seen(t) … t."""
    rows = []
    for text in maps.tolist():
        for t, weights in enumerate(text):
            n = t + 1 - first_seen(t) + has_sink
            if n < 2:
                continue
            every = [*weights, 1 - sum(weights)] if has_sink else weights
            entropy = -sum(w * math.log(w) for w in every if w > 0)
            distance = sum(w * abs(t - s) for s, w in enumerate(weights))
            previous = weights[t - 1] if t else 0.0
            rows.append((entropy, entropy / math.log(n), max(every) > 0.99, weights[0], weights[t], previous, distance))
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize(
    ("fields", "window"),
    [
        ({"variant": "GQA-2"}, T),
        ({"variant": "K=V", "block": "paper", "rotary": "none"}, T),
        ({"sinks": True, "variant": "MQA"}, T),
        ({"sliding_window": 3, "layer_pattern": "S"}, 3),
    ],
)
def test_of_every_head_they_are_what_its_weights_say(fields, window):
    model, ids = small_model(**fields), random_ids(3, T)
    sinks = fields.get("sinks", False)
    for found in run(model, ids):
        measured = attention_patterns(found)
        maps = found.scored.maps_BHTT
        heads = [by_loops(maps[:, h], lambda t: max(0, t + 1 - window), sinks) for h in range(6)]
        for name, expected in zip(VALUES, zip(*heads, strict=True), strict=True):
            assert measured[f"{name}_heads"] == pytest.approx(expected, rel=1e-9)
            assert measured[name] == pytest.approx(sum(expected) / 6, rel=1e-9)
        even = torch.zeros(1, T, T, dtype=torch.float64)
        for t in range(T):
            n = min(t + 1, window)
            even[0, t, t + 1 - n : t + 1] = 1 / (n + sinks)
        chances = dict(zip(VALUES, by_loops(even, lambda t: max(0, t + 1 - window), sinks), strict=True))
        for name in ("first", "own", "previous", "distance"):
            assert measured[f"{name}_chance"] == pytest.approx(chances[name], rel=1e-9)


@pytest.mark.parametrize("causal", [True, False])
def test_even_attention_is_chance(causal):
    even = torch.ones(T, T, dtype=torch.float64)
    even = even.tril() if causal else even
    measured = attention_patterns(of_maps((even / even.sum(-1, keepdim=True)).expand(2, 3, T, T), causal))
    assert measured["relative_entropy"] == pytest.approx(1)
    for name in ("first", "own", "previous", "distance"):
        assert measured[name] == pytest.approx(measured[f"{name}_chance"])
    assert measured["distance"] == pytest.approx(
        sum(t / 2 for t in range(1, T)) / (T - 1) if causal else (T - 1 / T) / 3
    )
    assert measured["own_chance"] == pytest.approx(sum(1 / n for n in range(2, T + 1)) / (T - 1) if causal else 1 / T)


def test_heads_that_look_at_one_place():
    own = torch.eye(T, dtype=torch.float64)
    before = torch.ones(T - 1, dtype=torch.float64).diag(-1)
    before[0, 0] = 1
    first = torch.zeros(T, T, dtype=torch.float64)
    first[:, 0] = 1
    measured = attention_patterns(of_maps(torch.stack([own, before, first])[None]))
    assert measured["own_heads"] == [1, 0, 0]
    assert measured["previous_heads"] == pytest.approx([0, 1, 1 / (T - 1)])
    assert measured["first_heads"] == pytest.approx([0, 1 / (T - 1), 1])
    assert measured["distance_heads"] == pytest.approx([0, 1, T / 2])
    assert measured["entropy_heads"] == [0, 0, 0]
    assert measured["saturated_heads"] == [1, 1, 1]


def test_a_head_of_induction_and_one_of_duplicates():
    length = 7
    induction = torch.eye(2 * length, dtype=torch.float64)
    duplicate = induction.clone()
    for t in range(length, 2 * length):
        induction[t, t], induction[t, t - length + 1] = 0, 1
        duplicate[t, t], duplicate[t, t - length] = 0, 1
    before = torch.eye(2 * length, dtype=torch.float64).roll(1, 0).tril()
    found = repetition_scores(of_maps(torch.stack([induction, duplicate, before])[None]), length)
    assert found["induction_heads"] == [1, 0, 0]
    assert found["duplicate_heads"] == [0, 1, 0]
    assert found["previous_heads"] == [0, 0, 1]
    assert found["induction"] == pytest.approx(1 / 3)
    expected = sum(1 / (t + 1) for t in range(length, 2 * length)) / length
    assert found["induction_chance"] == pytest.approx(expected)
    assert found["previous_chance"] == pytest.approx(sum(1 / (t + 1) for t in range(1, 2 * length)) / (2 * length - 1))


def test_induction_scores_of_a_model_are_means_of_its_weights():
    length, model = 11, small_model("MQA")
    ids = repeated_tokens(29, length, 3, seed=1)
    for found in run(model, ids):
        measured = repetition_scores(found, length)
        maps = found.scored.maps_BHTT
        for head in range(6):
            total = 0.0
            for b in range(3):
                for t in range(length, 2 * length):
                    place = ids[b, :length].tolist().index(int(ids[b, t]))
                    total += float(maps[b, head, t, place + 1])
            assert measured["induction_heads"][head] == pytest.approx(total / (3 * length), rel=1e-9)


def test_repeated_tokens_are_different_ones_twice():
    ids = repeated_tokens(29, 23, 5, seed=3)
    assert ids.shape == (5, 46)
    assert ids.dtype == torch.int64
    assert torch.equal(ids[:, :23], ids[:, 23:])
    assert all(len(set(row[:23])) == 23 and set(row) <= set(range(29)) for row in ids.tolist())
    assert len({tuple(row) for row in ids.tolist()}) == 5
    assert torch.equal(ids, repeated_tokens(29, 23, 5, seed=3))
    assert not torch.equal(ids, repeated_tokens(29, 23, 5, seed=4))


@pytest.mark.parametrize("sizes", [(29, 30, 1), (29, 1, 1), (29, 5, 0)])
def test_repeated_tokens_that_cannot_be_drawn(sizes):
    with pytest.raises(ValueError, match="29 tokens"):
        repeated_tokens(*sizes, seed=0)


def test_scores_of_repetition_need_that_many_tokens():
    maps = torch.eye(T, dtype=torch.float64)[None, None]
    with pytest.raises(ValueError, match="6 tokens, at least 2, that are repeated are 12, not 13"):
        repetition_scores(of_maps(maps), 6)


def test_the_symmetric_share_is_that_of_the_scores():
    query, key = torch.randn(2, 6, T, 5, dtype=torch.float64), torch.randn(2, 3, T, 5, dtype=torch.float64)
    found = of_maps(torch.eye(T, dtype=torch.float64).expand(2, 6, T, T), query=query, key=key)
    shares, largest = [], []
    for h in range(6):
        share = count = 0.0
        for b in range(2):
            scores = [[float(query[b, h, t] @ key[b, h // 2, s]) for s in range(T)] for t in range(T)]
            both = sum((scores[t][s] + scores[s][t]) ** 2 for t in range(T) for s in range(T))
            share += both / (4 * sum(score**2 for row in scores for score in row)) / 2
            count += sum(max(row) == row[t] for t, row in enumerate(scores)) / (2 * T)
        shares.append(share)
        largest.append(count)
    measured = attention_patterns(found)
    assert measured["symmetric_share_heads"] == pytest.approx(shares, rel=1e-9)
    assert measured["own_is_largest_heads"] == pytest.approx(largest)
    assert max(shares) < 0.9
    assert measured["own_is_largest_chance"] == 1 / T


def test_the_symmetric_share_of_known_scores():
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    query = torch.randn(1, 1, T, 2, dtype=torch.float64)
    maps = torch.eye(T, dtype=torch.float64)[None, None]
    assert symmetric_share(of_maps(maps, query=query, key=query @ turn).scored)[0] == pytest.approx(0, abs=1e-12)
    assert symmetric_share(of_maps(maps, query=query, key=3 * query).scored)[0] == pytest.approx(1)
    assert math.isnan(symmetric_share(of_maps(maps, query=query, key=0 * query).scored)[0])
    many = torch.eye(T, dtype=torch.float64).expand(2_000, 1, T, T)
    scores = torch.randn(2_000, 1, T, T, dtype=torch.float64)
    found = of_maps(many, query=scores, key=torch.eye(T, dtype=torch.float64).expand(2_000, 1, T, T))
    measured = attention_patterns(found)
    assert measured["symmetric_share"] == pytest.approx(measured["symmetric_share_chance"], abs=0.01)


@pytest.mark.parametrize(("variant", "shares"), [("Q=K", True), ("Q=K=V", True), ("QKV", False), ("K=V", False)])
@pytest.mark.parametrize("rotary", ["none", "full"])
def test_one_vector_for_query_and_key_makes_symmetric_scores_with_rotary_too(variant, shares, rotary):
    for found in run(small_model(variant, "paper", rotary), random_ids(3, T)):
        measured = attention_patterns(found)
        assert (measured["symmetric_share"] == pytest.approx(1, abs=1e-9)) == shares


def test_an_encoder_looks_both_ways_and_a_recurrence_nowhere():
    (found, *_) = run(encoder_of("tokens", "positions"), torch.randint(29, (3, 11)))
    measured = attention_patterns(found)
    own = torch.arange(11)
    expected = (found.scored.maps_BHTT * (own[:, None] - own).abs()).sum(-1).mean((0, 2))
    assert measured["distance_heads"] == pytest.approx(expected.tolist())
    assert measured["first_chance"] == pytest.approx(1 / 11)
    (found, *_) = run(small_model("QKV linear", rotary="none"), random_ids(3, 10))
    assert attention_patterns(found) == {}
    assert repetition_scores(found, 5) == {}


@pytest.mark.parametrize("causal", [True, False])
def test_direction_is_the_weight_on_either_side_and_symmetry_that_of_the_maps(causal):
    drawn = torch.rand(2, 3, T, T, dtype=torch.float64)
    maps = drawn.tril() if causal else drawn
    maps = maps / maps.sum(-1, keepdim=True)
    measured = attention_patterns(of_maps(maps, causal))
    first = 1 if causal else 0  # a first position that sees itself alone has no choice
    for head in range(3):
        sides, shares = {"before": 0.0, "own": 0.0, "after": 0.0}, 0.0
        for text in maps[:, head].tolist():
            for t in range(first, T):
                for s, weight in enumerate(text[t]):
                    sides["before" if s < t else "own" if s == t else "after"] += weight / (2 * (T - first))
            both = sum((text[t][s] + text[s][t]) ** 2 for t in range(T) for s in range(T))
            shares += both / (4 * sum(weight**2 for row in text for weight in row)) / 2
        for name, value in sides.items():
            assert measured[f"{name}_heads"][head] == pytest.approx(value, rel=1e-9, abs=1e-15)
        assert measured["maps_symmetric_share_heads"][head] == pytest.approx(shares, rel=1e-9)
    assert sum(measured[name] for name in ("before", "own", "after")) == pytest.approx(1)
    assert sum(measured[f"{name}_chance"] for name in ("before", "own", "after")) == pytest.approx(1)
    assert (measured["after"] == 0) == (measured["after_chance"] == 0) == causal


def test_known_directions():
    even = torch.full((1, 1, T, T), 1 / T, dtype=torch.float64)
    measured = attention_patterns(of_maps(even, causal=False))
    assert measured["maps_symmetric_share"] == measured["maps_symmetric_share_chance"] == pytest.approx(1)
    assert measured["before"] == pytest.approx(measured["after"])
    ahead = torch.eye(T, dtype=torch.float64).roll(1, 1)[None, None]  # each looks at the next, the last at the first
    measured = attention_patterns(of_maps(ahead, causal=False))
    assert measured["after"] == pytest.approx((T - 1) / T)
    assert measured["maps_symmetric_share"] == pytest.approx(0.5)


@pytest.mark.parametrize("variant", ["Q=K +", "Q=K +key-bias", "K=V +relative"])
def test_what_a_term_changes_is_seen_beside_the_weights_of_q_and_k_alone(variant):
    ids = torch.randint(29, (3, 11))
    for found in run(encoder_of("tokens", "positions", variant), ids):
        measured = attention_patterns(found)
        query, key = found.scored.q_BHTD, found.scored.k_BGTD
        alone = (query @ key.mT * found.scored.scale).softmax(-1)
        for name in ("own", "before", "after"):
            side = {"own": torch.eye(11), "before": torch.ones(11, 11).tril(-1), "after": torch.ones(11, 11).triu(1)}
            expected = (alone * side[name]).sum(-1).mean((0, 2)).tolist()
            assert measured[f"{name}_without_terms_heads"] == pytest.approx(expected, rel=1e-9)
            assert measured[f"{name}_without_terms"] != pytest.approx(measured[name], abs=1e-6)
        crossed = (alone * alone.mT).sum((-1, -2)) / alone.square().sum((-1, -2))
        assert measured["maps_symmetric_share_without_terms"] == pytest.approx(float((0.5 + crossed / 2).mean()))


@pytest.mark.parametrize("variant", ["Q=K", "Q=K +temperature"])
def test_without_a_bias_there_is_nothing_beside(variant):
    (found, *_) = run(encoder_of("tokens", "positions", variant), torch.randint(29, (3, 11)))
    assert not [name for name in attention_patterns(found) if "without" in name]
