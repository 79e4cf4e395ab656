"""What runs on a task say together: means, paired differences, thresholds, and when a task was solved."""

import math

import numpy as np
import pytest
from scipy import stats

from synthetic_trials import synthetic_run
from twofold.trials.published import published_score
from twofold.trials.record import Look
from twofold.trials.results import is_solved, summarise

ORDER = ("QKV", "K=V", "MQA")
BASE, SHARED = [0.91, 0.93, 0.99], [0.90, 0.95, 0.96]


def found(**options):
    runs = [synthetic_run("QKV", score, seed) for seed, score in enumerate(BASE)]
    runs += [synthetic_run("K=V", score, seed) for seed, score in enumerate(SHARED)]
    return summarise(runs, "QKV", ORDER, lambda label: None, **options)


def test_means_and_paired_differences_are_those_of_a_count_by_hand():
    base, shared = found()  # MQA has no run and no row
    assert (base.label, shared.label) == ("QKV", "K=V")
    assert base.score.mean == pytest.approx(np.mean(BASE))
    assert base.score.standard_deviation == pytest.approx(np.std(BASE, ddof=1))
    assert base.to_baseline is None
    deltas = np.subtract(SHARED, BASE)
    half = stats.t.ppf(0.975, 2) * deltas.std(ddof=1) / math.sqrt(3)
    assert shared.to_baseline.difference == pytest.approx(deltas.mean())
    assert shared.to_baseline.interval == pytest.approx((deltas.mean() - half, deltas.mean() + half))
    assert not shared.to_baseline.separable


def test_only_seeds_in_common_are_paired():
    runs = [synthetic_run("QKV", 0.5, 0), synthetic_run("QKV", 0.6, 1), synthetic_run("K=V", 0.9, 1)]
    _, shared = summarise(runs, "QKV", ORDER, lambda label: None)
    assert shared.to_baseline.difference == pytest.approx(0.3)
    assert shared.to_baseline.interval is None


def test_a_run_that_read_no_test_set_does_not_count():
    runs = [synthetic_run("QKV", 0.5, 0), synthetic_run("QKV", 0.9, 1).model_copy(update={"test": None})]
    (base,) = summarise(runs, "QKV", ORDER, lambda label: None)
    assert (base.seeds, base.score.mean) == ((0,), 0.5)


@pytest.mark.parametrize(("threshold", "solved"), [(0.94, True), (0.95, False), (None, None)])
def test_a_task_is_solved_where_the_baseline_s_mean_reaches_the_threshold(threshold, solved):
    assert is_solved(found(), "QKV", threshold, None) is solved


def test_a_named_part_decides_where_there_is_one():
    runs = [synthetic_run("QKV", 0.2, 0, parts={"4 pairs": 0.995, "8 pairs": 0.1})]
    summary = summarise(runs, "QKV", ORDER, lambda label: None)
    assert is_solved(summary, "QKV", 0.99, "4 pairs")
    assert not is_solved(summary, "QKV", 0.99, "8 pairs")
    assert not is_solved(summary, "QKV", 0.99, None)


def test_steps_to_solve_are_those_of_the_first_look_that_reached_the_threshold():
    looks = [Look(step=step, score=score) for step, score in ((10, 0.5), (20, 0.95), (30, 0.7), (40, 0.96))]
    runs = [
        synthetic_run("QKV", 0.9, seed).model_copy(update={"looks": tuple(looks[: 4 - 3 * seed])}) for seed in (0, 1)
    ]
    (base,) = summarise(runs, "QKV", ORDER, lambda label: None, lambda look: look.score >= 0.95)
    assert base.steps_to_solve == (20, None)


def test_published_scores_are_the_paper_s():
    assert published_score("reverse", "", "Q=K +") == 0.718
    assert published_score("images", "fashion-mnist", "K=V") == 0.883
    assert published_score("images", "tiny-imagenet", "K=V") is None
    assert published_score("images", "digits", "QKV") is None
