"""The spread of scores and the softmax with and without 1/√d, against loops and known cases."""

import math

import pytest
import torch

from small_models import random_ids, small_model
from twofold.explain.activations import LayerActivations, Scored, run
from twofold.explain.attention_patterns import attention_patterns
from twofold.explain.scale import scale_measures

T = 13


def of_vectors(query, key, causal=True):
    length = query.shape[2]
    seen = torch.ones(1, length, length, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    maps = torch.zeros(*query.shape[:2], length, length)
    x = torch.zeros(len(query), length, 2)
    return LayerActivations(0, x, x, x, x, x, Scored(query, key, maps, seen, 1.0, query.shape[-1], False))


def by_loops(query, key, scale, causal):
    """[entropy, relative, saturated, gradient] of one head, and its products by query."""
    rows, products = [], []
    for b in range(len(query)):
        for t in range(query.shape[1]):
            seen = range(t + 1 if causal else query.shape[1])
            scores = [float(query[b, t] @ key[b, s]) for s in seen]
            products.append(scores)
            if len(scores) < 2:
                continue
            most = max(scores)
            powers = [math.exp((score - most) * scale) for score in scores]
            weights = [power / sum(powers) for power in powers]
            entropy = -sum(w * math.log(w) for w in weights if w > 0)
            jacobian = [
                (weights[i] if i == j else 0) - weights[i] * weights[j]
                for i in range(len(seen))
                for j in range(len(seen))
            ]
            norm = math.sqrt(sum(entry**2 for entry in jacobian))
            rows.append((entropy, entropy / math.log(len(seen)), max(weights) > 0.99, norm))
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)], products


def variance(values):
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)


@pytest.mark.parametrize("causal", [True, False])
def test_they_are_what_the_vectors_say(causal):
    query = torch.randn(3, 6, T, 7, dtype=torch.float64) + 0.5
    key = torch.randn(3, 2, T, 7, dtype=torch.float64)
    measured = scale_measures(of_vectors(query, key, causal))
    assert measured["dims"] == 7
    for h in range(6):
        for name, scale in (("scaled", 7**-0.5), ("unscaled", 1)):
            expected, products = by_loops(query[:, h], key[:, h // 3], scale, causal)
            found = [measured[f"{m}_{name}_heads"][h] for m in ("entropy", "relative_entropy", "saturated", "gradient")]
            assert found == pytest.approx(expected, rel=1e-9)
        spread = variance([value for row in products for value in row])
        assert measured["variance_heads"][h] == pytest.approx(spread, rel=1e-9)
        assert measured["variance_per_dim_heads"][h] == pytest.approx(spread / 7, rel=1e-9)
        rows = [variance(row) for row in products if len(row) > 1]
        assert measured["variance_within_heads"][h] == pytest.approx(sum(rows) / len(rows), rel=1e-9)
    assert measured["variance"] == pytest.approx(sum(measured["variance_heads"]) / 6)


@pytest.mark.parametrize("dims", [5, 19, 83])
def test_the_variance_grows_as_the_dims_and_the_scale_undoes_it(dims):
    query, key = (torch.randn(7, 1, 101, dims, dtype=torch.float64) for _ in range(2))
    measured = scale_measures(of_vectors(query, key, causal=False))
    assert measured["variance_per_dim"] == pytest.approx(1, abs=0.1)
    assert measured["relative_entropy_scaled"] == pytest.approx(1 - 0.5 / math.log(101), abs=0.02)
    assert measured["relative_entropy_unscaled"] < measured["relative_entropy_scaled"] - 0.1


def test_equal_scores_are_even_and_decided_ones_have_no_gradient():
    query, key = torch.zeros(1, 1, T, 4, dtype=torch.float64), torch.randn(1, 1, T, 4, dtype=torch.float64)
    even = scale_measures(of_vectors(query, key))
    assert even["variance"] == even["variance_within"] == 0
    assert even["relative_entropy_unscaled"] == pytest.approx(1)
    expected = sum(math.sqrt(n - 1) / n for n in range(2, T + 1)) / (T - 1)
    assert even["gradient_scaled"] == pytest.approx(expected)
    unit = torch.eye(T, dtype=torch.float64)[None, None] * 1e3
    decided = scale_measures(of_vectors(unit, unit))
    assert decided["saturated_scaled"] == decided["saturated_unscaled"] == 1
    assert decided["gradient_unscaled"] == pytest.approx(0, abs=1e-9)
    assert decided["entropy_unscaled"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("fields", [{}, {"variant": "K=V GQA-2"}, {"sliding_window": 3, "layer_pattern": "S"}])
def test_the_softmax_with_its_scale_is_the_layer_s_own(fields):
    for found in run(small_model(**fields), random_ids(3, T)):
        measured, own = scale_measures(found), attention_patterns(found)
        for name in ("entropy", "relative_entropy", "saturated"):
            assert measured[f"{name}_scaled_heads"] == pytest.approx(own[f"{name}_heads"], rel=1e-9)
        assert measured["entropy_unscaled"] < measured["entropy_scaled"]


def test_without_a_scale_in_the_model_the_other_is_its_own():
    for found in run(small_model(scale_exponent=0.0), random_ids(3, T)):
        assert scale_measures(found)["entropy_unscaled"] == pytest.approx(
            attention_patterns(found)["entropy"], rel=1e-9
        )


def test_a_recurrence_has_none():
    assert scale_measures(next(run(small_model("QKV linear", rotary="none"), random_ids(3, 7)))) == {}
