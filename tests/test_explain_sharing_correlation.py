"""Rank correlations of what was foretold of sharing with what it cost, and their intervals."""

import math
import random

import pytest
from scipy.stats import spearmanr

from twofold.explain.sharing_correlation import rank_correlation, summary


def pairs_of(count, noise, seed=0):
    drawn = random.Random(seed)
    return [(float(n), n + noise * drawn.gauss(0, 1)) for n in range(count)]


@pytest.mark.parametrize("count", [4, 7, 30])
def test_the_correlation_is_spearmans(count):
    pairs = pairs_of(count, 4)
    found = rank_correlation(pairs, 0)
    assert found["spearman"] == pytest.approx(spearmanr(*zip(*pairs, strict=True)).statistic)
    assert -1 <= found["low"] < found["spearman"] < found["high"] <= 1
    tied = [(first // 2, second) for first, second in pairs]
    assert rank_correlation(tied, 0)["spearman"] == pytest.approx(spearmanr(*zip(*tied, strict=True)).statistic)


def test_any_rising_or_falling_relation_is_whole():
    for sign in (1, -1):
        found = rank_correlation([(n, sign * math.exp(n)) for n in range(9)], 3)
        assert [found[name] for name in ("spearman", "low", "high")] == pytest.approx([sign] * 3)


def test_the_interval_is_the_percentiles_of_drawn_layers():
    """Against a bootstrap written out, with draws of its own."""
    pairs, drawn = pairs_of(20, 12), random.Random(1)
    values = sorted(spearmanr(*zip(*drawn.choices(pairs, k=20), strict=True)).statistic for _ in range(600))
    found = rank_correlation(pairs, 0)
    assert found["low"] == pytest.approx(values[15], abs=0.1)
    assert found["high"] == pytest.approx(values[-15], abs=0.06)
    assert rank_correlation(pairs, 0) == found != rank_correlation(pairs, 1)


def test_an_interval_covers_what_it_estimates():
    """Of 60 samples without any relation nearly all intervals hold 0."""
    held = 0
    for seed in range(60):
        drawn = random.Random(seed)
        found = rank_correlation([(drawn.random(), drawn.random()) for _ in range(25)], 0)
        held += found["low"] <= 0 <= found["high"]
    assert 50 <= held <= 60


def test_few_layers_and_what_does_not_vary_have_none():
    none = {"spearman": None, "low": None, "high": None}
    assert rank_correlation(pairs_of(3, 1), 0) == none
    assert rank_correlation([(1.0, float(n)) for n in range(8)], 0) == none
    assert rank_correlation([(float(n), 1.0) for n in range(8)], 0) == none
    assert rank_correlation([], 0) == none


def test_the_summary_has_every_predictor_of_each_way():
    known = {
        "joint_predicted": [0.1, 0.2, 0.3, 0.4, 0.5],
        "joint_loss": [1.0, 2.0, 3.0, None, 4.0],
        "value_from_key_predicted": [0.1, 0.2, 0.3, 0.4, 0.5],
        "value_from_key_predicted_weights": [5.0, 4.0, 3.0, 2.0, 1.0],
        "value_from_key_loss": [1.0, 2.0, 3.0, 4.0, 5.0],
        "r2_v_from_k": [0.9, 0.8, 0.7, 0.6, None],
    }
    made = summary(2.5, 7, 11, lambda section, name: known.get(name, []), 0)
    assert (made.baseline_loss, made.fitted_tokens, made.scored_tokens) == (2.5, 7, 11)
    found = {(one.method, one.predictor): (one.layers, one.spearman) for one in made.correlations}
    assert found == {
        ("joint", "joint_predicted"): (4, pytest.approx(1)),
        ("joint", "joint_predicted_weights"): (0, None),
        ("value_from_key", "value_from_key_predicted"): (5, pytest.approx(1)),
        ("value_from_key", "value_from_key_predicted_weights"): (5, pytest.approx(-1)),
        ("value_from_key", "1 - r2_v_from_k"): (4, pytest.approx(1)),
    }
