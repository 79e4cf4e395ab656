"""Statistics follow the data: verdicts reverse with the numbers, pairs cancel what is common, nothing is assumed."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from synthetic_records import NAMES, SIZES, synthetic_record
from twofold.study.contrast import MINIMUM_DOCUMENTS, bootstrap_interval, t_interval
from twofold.study.statistics import (
    analyse,
    compare,
)

WORSE = (0.011, 0.017, 0.013, 0.019, 0.023, 0.012, 0.016, 0.014, 0.018, 0.021, 0.015)  # by document, all positive
MIXED = (0.31, -0.29, 0.17, -0.19, 0.23, -0.21, 0.13, -0.11, 0.07, -0.08, 0.05)  # by document, of both signs


def bits(offsets, level=2.0):
    return [level + offset for offset in offsets]


def entry(statistics, variant):
    return next(entry for entry in statistics.summary if entry.variant == variant)


def test_clear_loser_is_dominated_and_reversed_numbers_reverse_the_verdicts():
    for good, bad in (("QKV", "Q=K"), ("Q=K", "QKV")):
        statistics = analyse([synthetic_record(good, 2.0), synthetic_record(bad, bits(WORSE))])
        assert entry(statistics, bad).dominated_by == good
        assert entry(statistics, bad).verdict == f"dominated by {good}"
        assert entry(statistics, good).verdict == "on the frontier"
        assert statistics.frontier == (good,)


def test_difference_within_its_uncertainty_is_not_separable():
    statistics = analyse([synthetic_record("QKV", 2.0), synthetic_record("K=V", bits(MIXED))])
    ahead, behind = sorted(statistics.summary, key=lambda each: each.bits_per_byte.mean)
    assert behind.verdict == f"not separable from {ahead.variant} at this budget"
    assert behind.dominated_by is None
    assert set(statistics.frontier) == {"QKV", "K=V"}


def test_identical_runs_are_not_separable_with_one_seed_and_with_three():
    for seeds in ((0,), (0, 1, 2)):
        runs = [synthetic_record(v, 2.0 + s / 7, seed=s) for v in ("QKV", "Q=K") for s in seeds]
        statistics = analyse(runs)
        assert statistics.comparisons[0].difference == 0
        assert not statistics.comparisons[0].separable
        assert {each.verdict for each in statistics.summary} == {
            "not separable from Q=K at this budget",
            "not separable from QKV at this budget",
        }


def test_worse_with_less_cache_is_on_the_frontier_and_with_more_cache_is_dominated():
    for bytes_per_token, dominator in ((256, None), (512, "QKV"), (1024, "QKV")):
        runs = [synthetic_record("QKV", 2.0), synthetic_record("MQA", bits(WORSE), bytes_per_token=bytes_per_token)]
        assert entry(analyse(runs), "MQA").dominated_by == dominator


def test_same_quality_with_less_cache_leaves_the_larger_one_not_separable():
    runs = [synthetic_record("QKV", 2.0), synthetic_record("MQA", 2.0, bytes_per_token=128)]
    statistics = analyse(runs)
    assert entry(statistics, "QKV").not_separable_from == "MQA"
    assert entry(statistics, "MQA").verdict == "on the frontier"


def test_the_best_dominator_is_named():
    runs = [synthetic_record("A", 2.0), synthetic_record("B", 2.1), synthetic_record("C", 2.2)]
    statistics = analyse(runs)
    assert entry(statistics, "C").dominated_by == "A"
    assert entry(statistics, "B").dominated_by == "A"


def test_t_interval_by_hand():
    # 1, 2, 6: mean 3, deviations −2, −1, 3, s² = 14/2, half = t·√(7/3);
    # with 2 degrees of freedom t(p) = (2p − 1)·√(2 / (4p(1 − p))), which is 4.3027 at p = 0.975
    half = 0.95 * math.sqrt(2 / (4 * 0.975 * 0.025)) * math.sqrt(7 / 3)
    assert t_interval([1.0, 2.0, 6.0]) == pytest.approx((3 - half, 3 + half), rel=1e-12)


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=11))
@settings(max_examples=25, deadline=None)
def test_t_interval_agrees_with_a_t_test(deltas):
    if np.std(deltas) < 1e-6:
        return
    expected = stats.ttest_1samp(deltas, 0).confidence_interval(0.95)
    assert t_interval(deltas) == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-12)


def test_seeds_are_paired_so_a_hard_seed_shared_by_both_cancels():
    luck, gain = (0.0, 0.7, -0.4), (0.010, 0.011, 0.012)
    a = [synthetic_record("A", 2 + luck[s] + gain[s], seed=s) for s in range(3)]
    b = [synthetic_record("B", 2 + luck[s], seed=s) for s in (2, 0, 1)]
    comparison = compare(a, b)
    assert comparison.method == "paired t over seeds"
    assert comparison.samples == 3
    assert comparison.interval == pytest.approx(t_interval(gain), abs=1e-9)
    assert comparison.separable


def test_documents_are_paired_so_a_common_difficulty_changes_nothing():
    difficulty = np.linspace(-1.5, 5.5, len(SIZES))
    plain = compare([synthetic_record("A", bits(WORSE))], [synthetic_record("B", 2.0)])
    harder = compare([synthetic_record("A", bits(difficulty + WORSE))], [synthetic_record("B", bits(difficulty))])
    assert plain.method == "paired bootstrap over documents"
    assert harder.difference == pytest.approx(plain.difference, abs=1e-12)
    assert harder.interval == pytest.approx(plain.interval, abs=1e-12)


def test_comparison_weighs_documents_by_their_bytes():
    comparison = compare([synthetic_record("A", bits(WORSE))], [synthetic_record("B", 2.0)])
    assert comparison.difference == pytest.approx(np.average(WORSE, weights=SIZES), rel=1e-9)
    assert comparison.interval[0] < comparison.difference < comparison.interval[1]


def test_bootstrap_interval_has_the_width_that_theory_gives():
    generator = np.random.default_rng(7)
    sizes = np.full(401, 1000.0)
    delta = generator.normal(0.02, 0.1, size=401) * sizes
    low, high = bootstrap_interval(delta, sizes)
    ratio = delta / sizes
    half = 1.96 * ratio.std(ddof=1) / math.sqrt(401)
    assert (low, high) == pytest.approx((ratio.mean() - half, ratio.mean() + half), abs=half / 10)


def test_bootstrap_gives_the_same_interval_each_time():
    first, second = (compare([synthetic_record("A", bits(MIXED))], [synthetic_record("B", 2.0)]) for _ in "ab")
    assert first == second


def test_comparison_reversed_is_the_comparison_of_the_other_side():
    a, b = [synthetic_record("A", bits(MIXED))], [synthetic_record("B", 2.0)]
    there, back = compare(a, b), compare(b, a).reversed()
    assert back.difference == pytest.approx(there.difference, abs=1e-12)
    assert back.interval == pytest.approx(there.interval, abs=1e-3)  # quantiles of finitely many resamples
    assert there.reversed().reversed() == there


def test_too_few_documents_allow_no_interval_and_no_verdict():
    few = MINIMUM_DOCUMENTS - 1
    cut = {"names": NAMES[:few], "sizes": SIZES[:few]}
    statistics = analyse([synthetic_record("QKV", 2.0, **cut), synthetic_record("Q=K", 2.9, **cut)])
    assert statistics.comparisons[0].interval is None
    assert entry(statistics, "Q=K").dominated_by is None
    assert entry(statistics, "Q=K").not_separable_from == "QKV"


def test_without_a_common_seed_nothing_is_separable():
    comparison = compare([synthetic_record("A", 2.5, seed=1)], [synthetic_record("B", 2.0, seed=2)])
    assert (comparison.method, comparison.interval) == ("no seed in common", None)
    assert comparison.difference == pytest.approx(0.5)


def test_only_common_seeds_are_compared():
    a = [synthetic_record("A", 2.0 + s, seed=s) for s in (0, 1, 2)]
    b = [synthetic_record("B", 1.9 + s, seed=s) for s in (1, 2, 3)]
    comparison = compare(a, b)
    assert (comparison.samples, comparison.difference) == (2, pytest.approx(0.1))


def test_summary_means_deviations_and_ratios():
    runs = [synthetic_record("QKV", level, seed=s, bytes_per_token=704) for s, level in enumerate((1.9, 2.0, 2.4))]
    statistics = analyse([*runs, synthetic_record("MQA", 2.0, bytes_per_token=88)])
    of_qkv, of_mqa = entry(statistics, "QKV"), entry(statistics, "MQA")
    assert of_qkv.bits_per_byte.mean == pytest.approx(2.1)
    assert of_qkv.bits_per_byte.standard_deviation == pytest.approx(math.sqrt(0.07))
    assert of_mqa.bits_per_byte.standard_deviation is None
    assert of_qkv.cache_ratio == 1
    assert of_mqa.cache_ratio == 0.125
    assert of_qkv.difference_to_baseline is None
    assert of_mqa.difference_to_baseline.b == "QKV"


def test_baseline_is_qkv_wherever_it_stands_and_else_the_first():
    assert analyse([synthetic_record("MQA", 2.0), synthetic_record("QKV", 2.0)]).baseline == "QKV"
    assert analyse([synthetic_record("MQA", 2.0), synthetic_record("K=V", 2.0)]).baseline == "MQA"


def test_a_named_baseline_is_what_differences_are_shown_to_once_it_has_a_run():
    runs = [synthetic_record("QKV", 2.0), synthetic_record("K=V", 2.1), synthetic_record("MQA", 2.4)]
    statistics = analyse(runs, "K=V")
    assert statistics.baseline == "K=V"
    assert [e.difference_to_baseline and e.difference_to_baseline.b for e in statistics.summary] == ["K=V", None, "K=V"]
    assert entry(statistics, "MQA").difference_to_baseline.difference == pytest.approx(0.3)
    assert analyse(runs, "GQA-2").baseline == "QKV"


def test_a_mean_has_an_interval_over_seeds_or_over_documents():
    three = [synthetic_record("QKV", level, seed=s) for s, level in enumerate((1.9, 2.0, 2.4))]
    assert analyse(three).summary[0].bits_interval == pytest.approx(t_interval([1.9, 2.0, 2.4]))
    low, high = analyse([synthetic_record("QKV", bits(MIXED))]).summary[0].bits_interval
    assert low < np.average(bits(MIXED), weights=SIZES) < high


def test_frontier_is_ordered_by_cache():
    runs = [
        synthetic_record("QKV", 2.0, bytes_per_token=512),
        synthetic_record("MQA", 2.3, bytes_per_token=128),
        synthetic_record("K=V", 2.1, bytes_per_token=256),
        synthetic_record("Q=K", 2.2, bytes_per_token=512),
    ]
    for order in (runs, runs[::-1]):
        assert analyse(order).frontier == ("MQA", "K=V", "QKV")


def test_runs_that_cannot_be_compared_are_refused():
    plain = synthetic_record("QKV", 2.0)
    with pytest.raises(ValueError, match="no finished runs"):
        analyse([])
    with pytest.raises(ValueError, match="QKV with seed 0 is there twice"):
        analyse([plain, plain])
    with pytest.raises(ValueError, match="MQA with seed 5 was scored on other documents"):
        analyse([plain, synthetic_record("MQA", 2.0, seed=5, names=NAMES[::-1])])
    with pytest.raises(ValueError, match="11 parameters with seed 1 and 762147 with seed 0"):
        analyse([plain, synthetic_record("QKV", 2.0, seed=1, parameters={"total": 11, "attention": 5, "mlp": 6})])
    with pytest.raises(ValueError, match=r"caches 88\.0 bytes per token with seed 1 and 512\.0 with seed 0"):
        analyse([plain, synthetic_record("QKV", 2.0, seed=1, bytes_per_token=88)])
