"""Numbers in tables: their units, signs and rounding, and what runs agree on."""

import pytest

from synthetic_records import synthetic_record, synthetic_results
from twofold.report import formats, tables


@pytest.mark.parametrize(
    ("count", "text"), [(88, "88 B"), (1023, "1,023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (2**21, "2 MiB")]
)
def test_bytes_have_binary_units(count, text):
    assert formats.bytes_text(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.02134, "+0.0213"), (-0.004, "−0.0040"), (0.0, "0.0000"), (-1e-9, "0.0000"), (10.0, "+10.0000")],
)
def test_differences_are_signed_and_zero_is_not(value, text):
    assert formats.signed_text(value) == text


@pytest.mark.parametrize(
    ("count", "text"), [(734, "734"), (9_999, "9,999"), (12_345, "12.3 k"), (900_007, "0.90 M"), (1.215e9, "1.22 G")]
)
def test_counts_in_short(count, text):
    assert formats.count_text(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(47.6, "48 s"), (200, "3 min 20 s"), (7_500, "2 h 05 min")])
def test_durations(seconds, text):
    assert formats.duration_text(seconds) == text


def test_main_table_runs_from_the_largest_cache_and_the_better_first():
    runs = [
        synthetic_record("K=V MQA", 2.3, bytes_per_token=64),
        synthetic_record("Q=K", 2.2),
        synthetic_record("QKV", 2.0),
    ]
    rows = tables.summary_rows(synthetic_results(runs))
    assert [row.label for row in rows] == ["QKV", "Q=K", "K=V MQA"]
    assert [row.paper_name for row in rows] == ["QKV", "Q=K-V", "Q-MQA"]
    assert (rows[0].difference, rows[1].difference) == ("baseline", "+0.2000")
    assert (rows[2].cache, rows[2].ratio, rows[2].share) == ("64 B", "12.5 %", 0.125)
    assert rows[0].bits_deviation == ""


def test_deviation_is_shown_for_several_seeds():
    runs = [synthetic_record("QKV", level, seed=seed) for seed, level in enumerate((1.9, 2.0, 2.4))]
    assert tables.summary_rows(synthetic_results(runs))[0].bits_deviation == "± 0.2646"  # √0.07


def test_notation_from_another_version_has_no_paper_name():
    assert tables.paper_name("no such variant") == "–"


def test_pairs_mirror_each_other():
    runs = [
        synthetic_record("QKV", 2.0),
        synthetic_record("Q=K", 2.2),
        synthetic_record("MQA", 2.0, bytes_per_token=64),
    ]
    rows = dict(tables.pair_rows(synthetic_results(runs)))
    assert [cell.kind for cell in rows["QKV"]] == ["self", "better", "open"]
    assert [cell.kind for cell in rows["Q=K"]] == ["worse", "self", "worse"]
    assert (rows["QKV"][1].text, rows["Q=K"][0].text) == ("−0.2000", "+0.2000")


def test_measured_bytes_that_disagree_are_marked():
    good = synthetic_record("QKV", 2.0)
    cache = good.cache.model_copy(update={"bytes_formula": 7})
    bad = synthetic_record("MQA", 2.0, bytes_per_token=64).model_copy(update={"cache": cache})
    rows = {row.label: row for row in tables.measured_rows(synthetic_results([good, bad]))}
    assert rows["QKV"].agrees
    assert not rows["MQA"].agrees


def test_facts_split_what_runs_agree_on_from_what_they_do_not():
    facts = tables.facts([{"model": {"width": 7, "heads": 3}}, {"model": {"width": 7, "heads": 5}, "note": None}])
    assert facts.common == [("model.width", "7")]
    assert facts.differing == [("model.heads", "3, 5"), ("note", "–, None")]


def test_methods_say_what_they_drew_on():
    runs = [synthetic_record(name, 2.0, seed=seed) for name in ("QKV", "MQA") for seed in (0, 1, 2)]
    assert tables.methods(synthetic_results(runs)) == ["paired t over seeds (3 seeds)"]
    assert tables.methods(synthetic_results(runs[::3])) == ["paired bootstrap over documents (11 documents)"]
