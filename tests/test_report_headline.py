"""Sentences follow the numbers: other numbers, other sentences."""

from synthetic_records import NAMES, SIZES, synthetic_record, synthetic_results
from twofold.report.headline import lead, notes

NOISE = (0.31, -0.29, 0.17, -0.19, 0.23, -0.21, 0.13, -0.11, 0.07, -0.08, 0.05)


def results_of(*variants, **settings):
    records = [synthetic_record(name, bits, bytes_per_token=size) for name, bits, size in variants]
    return synthetic_results(records, **settings)


def test_smaller_cache_that_is_worse_has_its_price():
    text = lead(results_of(("QKV", 2.0, 704), ("K=V", 2.25, 352), ("MQA", 2.125, 88)))
    assert text == (
        "Every cache smaller than QKV’s costs quality here. MQA caches 8× less than QKV and costs the least: "
        "+0.1250 bits per byte (95 % interval +0.1250 to +0.1250)."
    )


def test_smaller_cache_that_is_better_is_called_better():
    text = lead(results_of(("QKV", 2.125, 704), ("K=V", 2.0, 352)))
    assert text.startswith("K=V caches 2× less than QKV and predicts better: −0.1250 bits per byte")


def test_smallest_cache_that_cannot_be_told_apart_comes_first():
    noisy = [2.0 + noise for noise in NOISE]
    text = lead(results_of(("QKV", 2.0, 704), ("K=V", noisy, 352), ("GQA-2", noisy, 176), ("MQA", 2.9, 88)))
    assert text.startswith("GQA-2 caches 4× less than QKV and the two cannot be told apart")
    assert "interval −" in text


def test_no_claim_without_an_interval():
    few = {"names": NAMES[:3], "sizes": SIZES[:3]}
    records = [synthetic_record("QKV", 2.0, **few), synthetic_record("K=V", 2.5, bytes_per_token=256, **few)]
    text = lead(synthetic_results(records))
    assert "+0.5000 bits per byte, a difference without a known uncertainty (no interval: too few documents)" in text
    assert "told apart" not in text


def test_without_a_smaller_cache_nothing_is_said_about_one():
    assert lead(results_of(("QKV", 2.0, 704))) == "QKV reaches 2.0000 bits per byte. No other variant was run."
    assert lead(results_of(("QKV", 2.0, 704), ("Q=K", 1.0, 704))).endswith("No variant here caches less.")


def test_notes_name_who_dominates_whom():
    text = " ".join(notes(results_of(("QKV", 2.0, 704), ("Q=K", 2.2, 704), ("Q=K=V", 2.3, 704))))
    assert "QKV dominates Q=K and Q=K=V: clearly better with no more cache." in text
    text = " ".join(notes(results_of(("QKV", 2.0, 704), ("MQA", 2.2, 88))))
    assert "No variant is dominated" in text


def test_notes_name_who_cannot_be_separated():
    text = " ".join(notes(results_of(("QKV", 2.0, 704), ("MQA", 2.0, 88))))
    assert "Not separable at this budget: QKV from MQA." in text


def test_models_below_the_bigram_level_are_called_out():
    variants = ("QKV", 2.0, 704), ("MQA", 2.2, 88)
    assert "Both variants beat a byte-bigram model (3.6100" in " ".join(notes(results_of(*variants)))
    found = results_of(*variants, bigram=2.1)
    assert lead(found) == (
        "Trained too little to be compared: MQA does not beat a byte-bigram model (2.1000 bits per byte)."
    )
    assert notes(found)[0] == f"What the numbers would say: {lead(results_of(*variants))}"
    assert "bigram" not in " ".join(notes(found))
    assert ": QKV and MQA do not beat a byte-bigram model (2.0000" in lead(results_of(*variants, bigram=2.0))


def test_what_two_savings_cost_together_is_told_where_the_four_are_there():
    cells = {"QKV": 2.0, "K=V": 2.1, "MQA": 2.2}
    for both, told in (
        (2.5, "Beside MQA, K=V costs 0.2000 bits per byte more than alone (95 % interval +0.2000 to +0.2000)."),
        (2.2, "Beside MQA, K=V costs 0.1000 bits per byte less than alone (95 % interval −0.1000 to −0.1000)."),
    ):
        assert told in notes(results_of(*((v, level, 704) for v, level in {**cells, "K=V MQA": both}.items())))
    assert not any("Beside" in note for note in notes(results_of(*((v, level, 704) for v, level in cells.items()))))


def test_cache_that_differs_from_its_formula_is_called_out():
    record = synthetic_record("K=V", 2.0, seed=3)
    assert "equal the formula in the run" in notes(synthetic_results([record]))[-1]
    doubled = record.cache.model_copy(update={"bytes_formula": record.cache.bytes_used // 2})
    wrong = synthetic_results([record.model_copy(update={"cache": doubled})])
    assert notes(wrong)[-1] == "Measured cache bytes differ from the formula for K=V (seed 3)."
