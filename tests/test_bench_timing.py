"""Timing: who is measured when, and what the ratios of paired measurements say."""

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.bench.timing import interleaved, paired, rows, timed

seconds = st.floats(1e-4, 1e2)
rounds = st.lists(st.tuples(seconds, seconds, seconds), min_size=1, max_size=23)


def test_contenders_take_turns_backwards_every_other_round_and_warm_ups_do_not_count():
    calls = []

    def contender(name):
        def once():
            assert not gc.isenabled()
            calls.append(name)
            return float(len(calls))

        return once

    times = interleaved({name: contender(name) for name in "abc"}, repeats=3, warm_up=1)
    assert "".join(calls) == "cba" + "abc" + "cba" + "abc"
    assert times == {"a": [4.0, 9.0, 10.0], "b": [5.0, 8.0, 11.0], "c": [6.0, 7.0, 12.0]}
    assert gc.isenabled()


def test_garbage_is_collected_again_after_a_contender_fails():
    def fails():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        interleaved({"a": fails}, repeats=1)
    assert gc.isenabled()


def test_a_call_is_timed_whole():
    done = []
    assert timed(lambda: done.append(sum(range(10_000))))() > 0
    assert done


def test_no_rounds_are_refused():
    with pytest.raises(ValueError, match="at least 1, not 0"):
        interleaved({"a": lambda: 1.0}, repeats=0)


@given(rounds)
def test_noise_that_hits_a_whole_round_leaves_the_ratio_alone(measured):
    ours, factor = [o for o, _, _ in measured], 3.7
    noisy = [o * noise for o, _, noise in measured]
    theirs = [o * noise * factor for o, _, noise in measured]
    assert paired(noisy, theirs) == pytest.approx((factor, 0))
    assert paired(ours, ours) == pytest.approx((1, 0))


@given(rounds)
def test_ratio_and_spread_are_quartiles_of_the_paired_ratios(measured):
    ratio, spread = paired([o for o, _, _ in measured], [t for _, t, _ in measured])
    ratios = sorted(t / o for o, t, _ in measured)
    assert ratios[0] <= ratio * (1 + 1e-12)
    assert ratio <= ratios[-1] * (1 + 1e-12)
    assert sum(r <= ratio * (1 + 1e-12) for r in ratios) * 2 >= len(ratios)
    assert 0 <= spread <= ratios[-1] - ratios[0] + 1e-12 * ratios[-1]
    assert spread == pytest.approx(np.quantile(ratios, 0.75) - np.quantile(ratios, 0.25), rel=1e-9, abs=1e-9)


def test_rows_name_every_alternative_and_know_the_roof():
    times = {"ours": [0.010, 0.030, 0.020], "torch": [0.020, 0.060, 0.080], "other": [0.005, 0.015, 0.010]}
    first, second = rows("bench/thing", times, roof_seconds=0.005, tokens=100, variant="K=V", context=7)
    assert (first.alternative, second.alternative) == ("torch", "other")
    assert first.milliseconds == second.milliseconds == pytest.approx(20)
    assert first.alternative_milliseconds == pytest.approx(60)
    assert first.ratio == pytest.approx(2)
    assert first.spread == pytest.approx(1)
    assert second.ratio == pytest.approx(0.5)
    assert first.roof_fraction == pytest.approx(0.25)
    assert first.tokens_per_second == pytest.approx(5_000)
    assert second.alternative_tokens_per_second == pytest.approx(10_000)
    assert (first.variant, first.context, first.subject) == ("K=V", 7, "thing")


def test_a_contender_without_alternatives_is_one_row_without_ratio():
    (row,) = rows("bench/thing", {"ours": [0.5]})
    assert (row.alternative, row.ratio, row.spread, row.roof_fraction, row.tokens_per_second) == (None,) * 5
