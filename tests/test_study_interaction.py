"""Sharing × heads: the difference of two differences, paired like every other comparison."""

import numpy as np
import pytest

from synthetic_records import SIZES, synthetic_record
from twofold.study.contrast import bootstrap_interval, t_interval
from twofold.study.interaction import interactions

LUCK = (0.3, -0.5, 0.2)


def runs_of(levels, seeds=(0, 1, 2)):
    """`levels`: variant → one level per seed, to which the seed's luck is added."""
    return {
        variant: [synthetic_record(variant, LUCK[i] + each[i], seed=seed) for i, seed in enumerate(seeds)]
        for variant, each in levels.items()
    }


FOUR = {
    "QKV": (2.00, 2.01, 2.02),
    "K=V": (2.10, 2.13, 2.11),
    "MQA": (2.20, 2.20, 2.23),
    "K=V MQA": (2.40, 2.43, 2.41),
}


def test_interaction_by_hand():
    (found,) = interactions(runs_of(FOUR))
    deltas = [0.20 - 0.10, 0.23 - 0.12, 0.18 - 0.09]
    assert found.cells == ("K=V MQA", "MQA", "K=V", "QKV")
    assert found.difference == pytest.approx(0.1)
    assert found.interval == pytest.approx(t_interval(deltas), abs=1e-9)
    assert (found.method, found.samples, found.separable) == ("paired t over seeds", 3, True)


def test_reversed_cells_reverse_its_sign_and_additive_costs_have_none():
    swapped = {**FOUR, "K=V MQA": FOUR["MQA"], "MQA": FOUR["K=V MQA"], "K=V": FOUR["QKV"], "QKV": FOUR["K=V"]}
    assert interactions(runs_of(swapped))[0].difference == pytest.approx(-0.1)
    additive = {**FOUR, "K=V MQA": [m + s - q for q, s, m in zip(*list(FOUR.values())[:3], strict=True)]}
    (none,) = interactions(runs_of(additive))
    assert none.difference == pytest.approx(0, abs=1e-12)


def test_one_seed_draws_on_documents():
    cost = np.linspace(0.01, 0.07, len(SIZES))
    offsets = {"QKV": 0 * cost, "K=V": cost, "GQA-2": 3 * cost, "K=V GQA-2": 7 * cost}  # (7 − 3 − 1) × cost
    runs = {v: [synthetic_record(v, list(2 + offset))] for v, offset in offsets.items()}
    (found,) = interactions(runs)
    sizes = np.array(SIZES, dtype=float)
    assert found.difference == pytest.approx(np.average(3 * cost, weights=sizes))
    assert found.interval == pytest.approx(bootstrap_interval(3 * cost * sizes, sizes))
    assert (found.method, found.samples) == ("paired bootstrap over documents", len(SIZES))


def test_only_seeds_that_all_four_have_count():
    runs = runs_of(FOUR)
    runs["MQA"] = runs["MQA"][1:]
    assert interactions(runs)[0].samples == 2
    runs["QKV"] = runs["QKV"][:1]
    assert interactions(runs)[0].interval is None


@pytest.mark.parametrize("missing", list(FOUR))
def test_without_one_of_the_four_there_is_none(missing):
    assert interactions(runs_of({v: levels for v, levels in FOUR.items() if v != missing})) == ()


def test_entries_with_sizes_of_their_own_do_not_count():
    runs = runs_of(FOUR)
    runs["K=V MQA (head_dim 64)"] = [
        run.model_copy(update={"label": "K=V MQA (head_dim 64)"}) for run in runs.pop("K=V MQA")
    ]
    assert interactions(runs) == ()
