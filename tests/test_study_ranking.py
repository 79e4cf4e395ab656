"""Rankings obey their budgets, put what was measured first, and carry every interval through unchanged."""

import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synthetic_records import synthetic_record, synthetic_results
from twofold.analysis import costs
from twofold.analysis.device_plan import Use, on_device
from twofold.analysis.devices import find_devices
from twofold.models.architecture import Architecture
from twofold.models.presets import architecture
from twofold.study.evidence import read_evidence, result_files
from twofold.study.published import PERPLEXITIES, doubts, loss_difference
from twofold.study.ranking import candidates, rank
from twofold.study.ranking_record import Ask
from twofold.study.results import write_results
from twofold.study.scenarios import scenario, scenarios

SIZES = {"layers": 3, "width": 24, "heads": 4, "head_dim": 6, "mlp": 37, "vocab": 257, "positions": 301}
CACHES = {"QKV": 960, "K=V": 480, "GQA-2": 480, "MQA": 240, "K=V MQA": 120, "Q=K": 960, "K=V on_read": 480}
"""Bytes per token in float32 in proportion to what four heads cache."""
NOISE = (0.9, -1.1, 0.2)
VARIANTS = ("QKV", "K=V", "Q=K=V", "GQA-2", "MQA", "K=V MQA", "K=V GQA-2")


def results_of(levels, *, noise=0.001, seeds=3, bigram=3.61, **fields):
    records = [
        synthetic_record(variant, level + noise * NOISE[(seed + turn) % 3], seed=seed, bytes_per_token=CACHES[variant])
        for turn, (variant, level) in enumerate(levels.items())
        for seed in range(seeds)
    ]
    return synthetic_results([record.model_copy(update=fields) for record in records], bigram=bigram)


@pytest.fixture
def records(tmp_path):
    """Writes studies and reads their evidence: name → levels, or results."""

    def write(baseline="QKV", **studies):
        for name, study in studies.items():
            write_results(results_of(study) if isinstance(study, dict) else study, tmp_path / name)
        return read_evidence(result_files([tmp_path]), baseline)

    return write


def ranking(records, variants=VARIANTS, *, device=None, baseline="QKV", sizes=SIZES, **ask):
    models = [Architecture(**sizes, variant=variant) for variant in variants]
    asked = Ask(**{"context": 101, "batch": 3, "baseline": baseline, **ask})
    return rank(models, Architecture(**sizes, variant=baseline), asked, records, device)


def order(found):
    return [entry.variant for entry in found.ranked]


def entry_of(found, variant):
    return next(entry for entry in found.ranked if entry.variant == variant)


LEVELS = {"QKV": 2.0, "K=V": 2.03, "GQA-2": 2.01, "MQA": 2.09, "K=V MQA": 2.2}  # +1.5, +0.5, +4.5, +10 %


def test_with_a_quality_budget_the_smallest_cache_that_meets_it_leads_and_misses_come_last(records):
    read = records(one=LEVELS)
    for quality, first in ((6, "MQA"), (2, "GQA-2"), (1, "GQA-2"), (0.2, "QKV")):
        found = ranking(read, tuple(LEVELS), quality=quality)
        assert found.ranked[0].variant == first
        places = {"meets": 0, "open": 1, "misses": 2}
        verdicts = [places[entry.verdict] for entry in found.ranked]
        assert verdicts == sorted(verdicts)
        met = [entry.cache_bytes for entry in found.ranked if entry.verdict == "meets"]
        assert met == sorted(met)


def test_without_one_the_best_measured_leads(records):
    assert order(ranking(records(one=LEVELS), tuple(LEVELS)))[:3] == ["QKV", "GQA-2", "K=V"]
    better = {"QKV": 2.0, "K=V": 1.9, "MQA": 2.1}
    assert order(ranking(records(one=better), tuple(better))) == ["K=V", "QKV", "MQA"]


def test_reversed_numbers_reverse_the_order(records):
    for good, bad in (("K=V", "GQA-2"), ("GQA-2", "K=V")):
        read = records(one={"QKV": 2.0, good: 2.01, bad: 2.3})
        found = order(ranking(read, ("QKV", "K=V", "GQA-2"), quality=2))
        assert found.index(good) < found.index("QKV") < found.index(bad)


@pytest.fixture(scope="module")
def level_records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("levels")
    write_results(results_of(LEVELS), folder)
    return read_evidence(result_files([folder]), "QKV")


@settings(max_examples=40)
@given(memory=st.integers(1, 3_000_000), quality=st.one_of(st.none(), st.floats(0, 20)), batch=st.integers(1, 40))
def test_what_does_not_fit_never_stands_above_what_does(level_records, memory, quality, batch):
    read = level_records
    found = ranking(read, memory_bytes=memory, quality=quality, batch=batch)
    fits = [entry.fits for entry in found.ranked]
    assert fits == sorted(fits, reverse=True)
    for entry in found.ranked:
        model = Architecture(**SIZES, variant=entry.variant)
        needed = costs.weight_bytes(model, "bfloat16") + costs.cache_bytes(model, 101, "bfloat16", batch)
        assert entry.fits == (needed <= memory)
        assert (entry.weight_bytes + entry.cache_bytes) == needed
    assert [entry.rank for entry in found.ranked] == list(range(1, len(VARIANTS) + 1))
    assert ("None fits" in found.headline) == (not any(fits))


def test_among_equals_the_measured_come_before_the_published_before_the_unknown(records):
    read = records(one={"QKV": 2.0, "K=V MQA": 2.2})
    for quality in (None, 2):
        found = ranking(read, ("K=V GQA-2", "K=V", "MQA", "K=V MQA", "QKV"), quality=quality)
        sources = {entry.variant: entry.source for entry in found.ranked}
        assert sources == {
            "QKV": "baseline",
            "K=V MQA": "measured",
            "K=V": "published",
            "MQA": "published",
            "K=V GQA-2": "none",
        }
        groups = {}
        for entry in found.ranked:
            groups.setdefault(entry.verdict, []).append(
                ("measured", "published", "none").index(entry.source) if entry.source != "baseline" else 0
            )
        assert all(group == sorted(group) for group in groups.values())


def test_a_published_figure_decides_nothing(records):
    found = ranking(records(), quality=50)
    for entry in found.ranked:
        assert entry.verdict == ("meets" if entry.source == "baseline" else "open")
        assert entry.interval is None
    assert "Nothing was measured" in found.notes[0]
    weak = next(note for note in found.notes if note.startswith("Published figures"))
    for words in ("one seed", "padding is scored", "none are matched", "lie at chance"):
        assert words in weak
    assert "the baseline itself" in found.headline


def test_the_paper_s_figures_are_those_of_the_size_that_is_nearest(records):
    large = {**SIZES, "layers": 22, "width": 2048, "heads": 32, "mlp": 8192, "vocab": 50_304}
    found = entry_of(ranking(records(), ("GQA-8",), sizes=large), "GQA-8")
    assert (found.published.model, found.published.perplexity) == ("1.2B", 5.030)
    assert entry_of(ranking(records(), ("MQA",)), "MQA").published.model == "300M"


def test_published_differences_are_of_the_loss():
    assert loss_difference("300M", "QKV") == 0
    assert loss_difference("300M", "K=V") == pytest.approx(100 * (math.log(5.27) - math.log(5.11)) / math.log(5.11))
    assert loss_difference("300M", "MLA") is None
    assert loss_difference("tiny", "K=V") is None
    assert doubts("300M", "K=V GQA-4") != ()
    assert doubts("300M", "K=V") == doubts("1.2B", "K=V GQA-8") == ()
    assert set(PERPLEXITIES["1.2B"]) == {"QKV", "K=V", "GQA-8", "K=V GQA-8", "MQA", "K=V MQA"}


def test_intervals_and_origins_are_carried_through_unchanged(records, tmp_path):
    results = results_of(LEVELS)
    read = records(one=results)
    found = ranking(read, tuple(LEVELS), quality=2)
    for summary in results.summary[1:]:
        entry = entry_of(found, summary.label)
        assert entry.evidence.comparison == summary.difference_to_baseline
        scale = 100 / results.summary[0].bits_per_byte.mean
        assert entry.interval == tuple(scale * bound for bound in summary.difference_to_baseline.interval)
        assert entry.percent == scale * summary.difference_to_baseline.difference
        assert entry.evidence.seeds == (0, 1, 2)
        assert entry.evidence.file == str(tmp_path / "one" / "results.json")
        told = entry.reasons[1]
        assert f"{entry.percent:+.2f} %" in told
        assert f"{entry.interval[0]:+.2f} to {entry.interval[1]:+.2f} %" in told
        assert entry.evidence.file in told
        assert "3 seeds" in told


def test_the_budget_is_met_by_the_whole_interval_alone(records):
    found = ranking(records(one=results_of({"QKV": 2.0, "K=V": 2.01}, noise=0.3)), ("QKV", "K=V"), quality=2)
    entry = entry_of(found, "K=V")
    assert entry.percent < 2 < entry.interval[1]
    assert (entry.verdict, found.headline.split(",")[0]) == ("open", "QKV")


def test_the_headline_names_every_other_that_meets_the_budget(records):
    read = records(one={"QKV": 2.0, "Q=K": 2.01, "K=V": 2.4})
    for quality, told in ((5, "QKV, the baseline itself: Q=K met the quality"), (0.2, "no other variant that fits")):
        assert told in ranking(read, ("QKV", "Q=K", "K=V"), quality=quality).headline


def test_without_a_budget_the_headline_claims_no_more_than_was_told_apart(records):
    assert ranking(records()).headline.startswith("Nothing was measured: QKV stands first (baseline)")
    unsure = ranking(records(a=results_of({"QKV": 2.0, "K=V": 1.99}, noise=0.3)), ("QKV", "K=V"))
    assert unsure.headline.startswith("K=V stands first (measured), not told apart from the baseline")
    worse = ranking(records(a=results_of({"QKV": 2.0, "K=V": 2.05}, noise=0.3)), ("QKV", "K=V"))
    assert worse.headline.startswith("QKV stands first (baseline), and K=V not told apart from it")
    untrained = ranking(records(a=results_of({"QKV": 2.0, "K=V": 1.95}, bigram=1.9)), ("QKV", "K=V"))
    assert untrained.headline.startswith("K=V stands first (measured), not told apart")
    sure = ranking(records(a={"QKV": 2.0, "K=V": 1.8}), ("QKV", "K=V"))
    assert sure.headline.startswith("K=V leads by quality (measured)")


def test_a_weaker_sharing_that_was_measured_meets_nothing(records):
    read = records(one={"QKV": 2.0, "K=V": 2.0, "MQA": 2.0, "K=V MQA": 2.4})
    wide = {**SIZES, "heads": 8}
    found = ranking(read, ("K=V", "MQA", "K=V MQA"), sizes=wide, quality=3)
    assert {entry.variant: entry.verdict for entry in found.ranked} == {
        "K=V": "meets",
        "MQA": "open",
        "K=V MQA": "misses",
    }
    assert "within 3 % there, which leaves it open here because the sharing was weaker there" in " ".join(
        entry_of(found, "MQA").reasons
    )
    assert any("a stronger sharing that was not measured" in line for line in entry_of(found, "MQA").warnings)
    assert not any("stronger sharing" in line for line in entry_of(found, "K=V").warnings)
    for dtype in ("int8", "bfloat16"):  # scales of int8 rows do not change what is shared
        same = ranking(read, ("K=V", "MQA"), quality=3, dtype=dtype)
        assert {entry.verdict for entry in same.ranked} == {"meets"}


def test_a_much_smaller_model_is_warned_of(records):
    read = records(one=LEVELS)  # of 762,147 parameters
    large = {**SIZES, "width": 640, "mlp": 2560}
    size = costs.parameters(Architecture(**large, variant="K=V"))["total"]
    warned = entry_of(ranking(read, ("K=V",), sizes=large), "K=V").warnings
    assert any(f"{size / 762_147:,.0f} times smaller" in line and "no promise" in line for line in warned)
    assert not any("smaller" in line for line in entry_of(ranking(read, ("K=V",)), "K=V").warnings)


def test_models_that_learnt_nothing_meet_nothing(records):
    read = records(one=results_of({"QKV": 2.0, "K=V": 2.0}, bigram=1.9))
    entry = entry_of(ranking(read, ("K=V",), quality=5), "K=V")
    assert entry.verdict == "open"
    assert any("byte-bigram" in line for line in entry.warnings)


def test_the_strongest_record_is_taken_and_the_others_are_told(records):
    trained, untrained = {"QKV": 2.0, "K=V": 2.1}, results_of({"QKV": 2.0, "K=V": 2.0}, bigram=1.9)
    single = results_of({"QKV": 2.0, "K=V": 2.3}, seeds=1)
    read = records(a=untrained, b=single, c=trained)
    entry = entry_of(ranking(read, ("K=V",)), "K=V")
    assert [entry.evidence.file[-14], *(one.file[-14] for one in entry.others)] == ["c", "b", "a"]
    assert entry.percent == pytest.approx(5, abs=0.2)
    assert sum(line.startswith("also measured") for line in entry.reasons) == 2


def test_only_plain_entries_of_studies_with_the_baseline_are_evidence(records, tmp_path):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "results.json").write_text('{"task": 1}')
    read = records(without={"K=V": 2.0, "MQA": 2.1})
    assert read.evidence == {}
    assert [line.partition(": ")[2] for line in read.unused] == [
        "it is not a study of text",
        "it compares nothing with a plain QKV",
    ]
    assert set(records("K=V").evidence) == {"MQA"}


def test_an_entry_that_changes_more_than_the_variant_is_no_evidence(tmp_path):
    results = results_of({"QKV": 2.0, "K=V": 2.1, "MQA": 2.2})
    told = results.model_dump_json().replace('"label":"K=V"', '"label":"K=V (head_dim 64)"')
    told = re.sub(r'"(a|b)":"K=V"', r'"\1":"K=V (head_dim 64)"', told)
    (tmp_path / "results.json").write_text(told)
    assert set(read_evidence(result_files([tmp_path]), "QKV").evidence) == {"MQA"}


def test_a_damaged_record_is_said_and_left_out(records, tmp_path):
    records(one=LEVELS)
    file = tmp_path / "one" / "results.json"
    file.write_text(file.read_text().replace('"baseline"', '"basis"'))
    read = read_evidence(result_files([tmp_path]), "QKV")
    assert read.evidence == {}
    assert "twofold study report" in read.unused[0]


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("runs",), [], "it has no run of"),
        (("summary", 1, "variant"), "K=W", "it has no comparison of K=W with QKV"),
        *((("runs", 3, "configuration", "sizes"), bad, "sizes: Input should be") for bad in (None, [], 3, "x")),
        *((("runs", 3, "configuration", "matched"), bad, "matched: Input should be") for bad in (None, 3)),
        (("runs", 3, "configuration", "sizes"), {"rotary": 5}, "sizes.rotary: Input should be a valid string"),
        *((("summary", 0, "bits_per_byte", "mean"), bad, "bits_per_byte: Input should be") for bad in (0, -2.0)),
        (("summary", 0, "bits_per_byte", "mean"), 1e-320, "percent: Input should be a finite number"),
        *((("summary", 0, "cache_bytes_per_token"), bad, "cache_bytes_per_token: Input") for bad in (0, -1)),
        (("summary", 1, "parameters"), {}, "total_parameters: Input should be"),
    ],
)
def test_a_damaged_number_leaves_the_file_out_and_the_rest_is_ranked(records, tmp_path, path, value, told):
    records(bad={"QKV": 2.0, "K=V": 2.03}, good={"QKV": 2.0, "MQA": 2.09})
    file = tmp_path / "bad" / "results.json"
    content = json.loads(file.read_text())
    *way, last = path
    place = content
    for step in way:
        place = place[step]
    place[last] = value
    if path[-1] == "variant":
        place["label"] = value
    file.write_text(json.dumps(content))
    read = read_evidence(result_files([tmp_path]), "QKV")
    assert set(read.evidence) == {"MQA"}
    (line,) = read.unused
    assert line.startswith(f"{file}: ")
    assert told in line
    assert "\n" not in line


def test_files_are_found_below_folders_and_a_missing_place_is_told(records, tmp_path):
    records(one=LEVELS, two=LEVELS)
    inside = tmp_path / "one" / "results.json"
    assert result_files([inside, tmp_path]) == (inside, tmp_path / "two" / "results.json")
    assert result_files([]) == ()
    for place in (tmp_path / "none", tmp_path / "one" / "results.csv"):
        with pytest.raises(ValueError, match="holds no records: give a study's folder"):
            result_files([place])


def test_another_baseline_is_compared_with(records):
    found = ranking(records("MQA", one=LEVELS), ("QKV", "MQA"), baseline="MQA")
    assert entry_of(found, "MQA").source == "baseline"
    assert entry_of(found, "QKV").percent == pytest.approx(100 * (2.0 - 2.09) / 2.09, abs=0.1)
    assert entry_of(found, "QKV").published is None


def test_times_are_the_device_plan_s(records):
    device = find_devices(["L4"])[0]
    found = ranking(records(), device=device, price_per_hour=0.7, efficiency=0.5)
    for entry in found.ranked:
        model = Architecture(**SIZES, variant=entry.variant)
        assert entry.device == on_device(model, device, Use(101, 3, "bfloat16", 0.5, 0.7)).as_dict()
        assert "on L4, bound by" in entry.reasons[-1]


def test_a_context_that_cannot_run_is_warned_of(records):
    learned = {**SIZES, "block": "paper"}
    assert any(
        "end at 301" in line for line in ranking(records(), ("K=V",), sizes=learned, context=302).ranked[0].warnings
    )
    runs = ranking(records(), ("K=V",), sizes=learned, context=301).ranked[0].warnings
    assert not any("end at" in line for line in runs)


def test_candidates_are_the_paper_s_for_the_heads_and_what_was_measured(records):
    read = records(one={"QKV": 2.0, "Q=K": 2.1})
    assert candidates(Architecture(**{**SIZES, "heads": 8}), read) == (
        "QKV", "K=V", "Q=K=V", "GQA-2", "K=V GQA-2", "MQA", "K=V MQA", "Q=K",
    )  # fmt: skip
    assert "GQA-2" in candidates(Architecture(**SIZES), read)
    assert not any("GQA" in one for one in candidates(Architecture(**{**SIZES, "heads": 3}), read))


def test_a_treatment_of_rotary_is_no_candidate_without_rotary(records):
    read = records(one={"QKV": 2.0, "K=V on_read": 2.1, "MQA": 2.2})
    learned = Architecture(**{**SIZES, "block": "paper"})
    assert "K=V on_read" in candidates(Architecture(**SIZES), read)
    assert "K=V on_read" not in candidates(learned, read)


def test_a_published_figure_of_another_model_is_warned_of(records):
    def warnings(**sizes):
        return (
            rank([architecture("300M", variant="K=V", **sizes)], architecture("300M", **sizes), asked, read)
            .ranked[0]
            .warnings
        )

    asked, read = Ask(context=101), records()
    assert not any("published of" in line for line in warnings())
    heads = architecture("300M").heads
    told = f"and {heads} query heads, here {costs.parameters(architecture('300M', variant='K=V'))['total']:,}"
    assert any(told in line for line in warnings(heads=2 * heads, head_dim=architecture("300M").head_dim // 2))
    assert any("published of" in line for line in warnings(layers=2))


def test_every_scenario_has_a_device_and_a_memory_that_something_fits():
    assert list(scenarios()) == ["cloud", "edge", "aggressive-edge", "iot"]
    memories = [one.memory_bytes for one in scenarios().values()]
    assert memories == sorted(memories, reverse=True)
    for name in scenarios():
        one = scenario(name)
        assert find_devices([one.device])[0].memory_bytes >= one.memory_bytes
    cloud = scenario("cloud")
    assert (cloud.context, cloud.batch) == (32_768, 32)
    with pytest.raises(
        ValueError, match=r"unknown scenario 'clod': did you mean 'cloud'\? The scenarios are cloud, edge"
    ):
        scenario("clod")
