"""Advice follows the data: reversed numbers reverse it, noise silences it, and what nobody meets is said so."""

import pytest

from synthetic_records import NAMES, SIZES, synthetic_record, synthetic_results
from twofold.study.recommendation import Budget, advise

CACHES = {"QKV": 704, "K=V": 352, "GQA-2": 352, "MQA": 88}
NOISE = (0.9, -1.1, 0.2)  # by seed, differently for each variant
QUIET, LOUD = 0.001, 0.3


def results_of(levels, *, noise=QUIET, seeds=3, **more):
    """`levels`: variant → bits per byte; every variant has its own order of `NOISE`."""
    records = [
        synthetic_record(
            variant, level + noise * NOISE[(seed + turn) % 3], seed=seed, bytes_per_token=CACHES[variant], **more
        )
        for turn, (variant, level) in enumerate(levels.items())
        for seed in range(seeds)
    ]
    return synthetic_results(records)


def advice(levels, *, noise=QUIET, seeds=3, **budget):
    return advise(results_of(levels, noise=noise, seeds=seeds), Budget(**budget))


def test_the_best_that_fits_is_taken_and_reversed_numbers_reverse_it():
    for good, bad in (("K=V", "GQA-2"), ("GQA-2", "K=V")):
        found = advice({"QKV": 1.9, good: 2.0, bad: 2.1, "MQA": 2.2}, cache=352)
        assert (found.answer, found.variant, found.candidates) == ("take", good, ())
        assert any(reason.startswith(f"{bad} against {good}: +0.1") for reason in found.reasons)
        assert not any("QKV" in reason for reason in found.reasons)


def test_wider_noise_leaves_it_open_with_what_would_help():
    found = advice({"QKV": 1.9, "K=V": 2.0, "GQA-2": 2.1, "MQA": 2.2}, noise=LOUD, cache=352)
    assert (found.answer, found.variant, found.candidates) == ("cannot say", None, ("MQA", "K=V", "GQA-2"))
    assert any("more seeds (here 3)" in one for one in found.helps)
    assert any("tokens" in one for one in found.helps)


def test_the_only_one_that_fits_is_taken_whatever_the_noise():
    for noise in (QUIET, LOUD):
        assert advice({"QKV": 1.9, "MQA": 2.2}, noise=noise, cache=100).variant == "MQA"


def test_a_budget_is_met_by_exactly_its_size():
    assert advice({"QKV": 1.9, "MQA": 2.2}, cache=88).variant == "MQA"
    assert advice({"QKV": 1.9, "MQA": 2.2}, cache=87).answer == "none meets it"
    assert advice({"QKV": 1.9, "MQA": 2.2}, cache=704).variant == "QKV"


def test_a_cache_that_nobody_fits_names_the_smallest():
    found = advice({"QKV": 1.9, "MQA": 2.2}, cache=10, within=50)
    assert (found.answer, found.nearest) == ("none meets it", "MQA")
    assert "88 bytes per token" in found.reasons[0]


def test_the_cheapest_within_a_percentage_is_taken_and_moves_with_it():
    levels = {"QKV": 2.0, "K=V": 2.03, "GQA-2": 2.01, "MQA": 2.09}  # +1.5 %, +0.5 %, +4.5 %
    expected = {5: "MQA", 2: "GQA-2", 1: "GQA-2", 0.2: "QKV", 0: "QKV"}
    assert {within: advice(levels, within=within).variant for within in expected} == expected


def test_reversed_differences_reverse_what_is_within():
    for better, worse in (("K=V", "MQA"), ("MQA", "K=V")):
        found = advice({"QKV": 2.0, better: 2.01, worse: 2.2}, within=1)
        assert (found.answer, found.variant) == ("take", better)


def test_noise_leaves_open_what_is_within_and_the_baseline_is_no_finding():
    found = advice({"QKV": 2.0, "K=V": 2.01, "MQA": 2.02}, noise=LOUD, within=2)
    assert (found.answer, found.candidates) == ("cannot say", ("MQA", "K=V", "QKV"))
    assert any("may or may not be within 2 %" in reason for reason in found.reasons)


def test_a_sure_variant_is_taken_beside_a_cheaper_one_that_is_open():
    records = [
        synthetic_record(v, level, seed=s, bytes_per_token=CACHES[v])
        for v, levels in {"QKV": (2.0, 2.0, 2.0), "K=V": (1.9, 1.9, 1.9), "MQA": (1.7, 2.3, 2.0)}.items()
        for s, level in enumerate(levels)
    ]
    found = advise(synthetic_results(records), Budget(within=1))
    assert (found.answer, found.variant) == ("take", "K=V")
    assert "MQA may do with less cache: the data cannot say" in found.reasons
    assert any("more seeds" in one for one in found.helps)


def test_a_level_of_quality_is_met_by_the_whole_interval():
    levels = {"QKV": 2.0, "K=V": 2.1, "MQA": 2.2}
    assert [advice(levels, quality=q).variant for q in (2.3, 2.15, 2.05)] == ["MQA", "K=V", "QKV"]
    open_ones = advice(levels, quality=2.1001, noise=LOUD)
    assert (open_ones.answer, open_ones.candidates) == ("cannot say", ("MQA", "K=V", "QKV"))
    nobody = advice(levels, quality=1.5)
    assert (nobody.answer, nobody.nearest) == ("none meets it", "QKV")
    assert nobody.reasons[-1] == "QKV comes nearest: 2.0000 bits per byte"


def test_budgets_combine():
    levels = {"QKV": 2.0, "K=V": 2.1, "GQA-2": 2.05, "MQA": 2.2}
    assert advice(levels, cache=400, quality=2.06).variant == "GQA-2"
    assert advice(levels, cache=100, quality=2.06).nearest == "MQA"
    assert advice(levels, quality=2.3, within=6).variant == "GQA-2"
    assert advice(levels, quality=2.03, within=20).variant == "QKV"


def test_one_seed_is_said_to_be_one_seed():
    for budget in ({"cache": 704}, {"within": 1}, {"quality": 2.5}):
        found = advice({"QKV": 2.0, "MQA": 1.9}, seeds=1, **budget)
        assert (found.answer, found.variant) == ("take", "MQA")
        assert any("nothing of other seeds" in one for one in found.helps)


def test_too_few_documents_or_no_common_seed_cannot_say():
    few = {"names": NAMES[:3], "sizes": SIZES[:3]}
    for budget in ({"cache": 704}, {"within": 90}, {"quality": 2.5}):
        found = advise(results_of({"QKV": 2.0, "MQA": 2.5}, seeds=1, **few), Budget(**budget))
        assert found.answer == "cannot say"
        assert any(one.startswith("at least 6 held-out documents") for one in found.helps)
    apart = [synthetic_record("QKV", 2.0, seed=0), synthetic_record("MQA", 2.5, seed=1, bytes_per_token=88)]
    assert "the same seeds for all variants" in advise(synthetic_results(apart), Budget(cache=704)).helps


def test_what_learnt_nothing_is_not_recommended():
    results = results_of({"QKV": 2.0, "MQA": 1.9}).model_copy(update={"bigram_bits_per_byte": 1.85})
    for budget in (Budget(cache=704), Budget(within=1)):
        found = advise(results, budget)
        assert (found.answer, found.helps[0]) == ("cannot say", "more training tokens")
        assert found.helps[1].startswith("more seeds (here 3)")
        assert "byte-bigram" in found.reasons[-1]
    for seeds, more in ((1, 1), (2, 1), (5, 0)):
        few = results_of({"QKV": 2.0, "MQA": 1.9}, seeds=seeds).model_copy(update={"bigram_bits_per_byte": 1.85})
        helps = advise(few, Budget(quality=9)).helps
        assert sum("more seeds" in one for one in helps) == more


def test_the_baseline_that_the_study_names_is_the_one_compared_with():
    records = [
        synthetic_record(v, level + s / 100, seed=s, bytes_per_token=CACHES[v])
        for v, level in {"QKV": 1.0, "K=V": 2.0, "MQA": 2.01}.items()
        for s in range(3)
    ]
    assert advise(synthetic_results(records), Budget(within=1)).variant == "QKV"
    assert advise(synthetic_results(records, baseline="K=V"), Budget(within=1)).variant == "MQA"


def test_budgets_without_a_meaning_are_refused():
    with pytest.raises(ValueError, match="at least one of cache, quality and within"):
        Budget()
    for name, value in (("cache", 0), ("quality", -1.5), ("within", -1), ("quality", float("nan"))):
        with pytest.raises(ValueError, match=f"{name} must be a number .*, not {value:g}"):
            Budget(**{name: value})
