"""Softmax entropy and gradient size on their way from a run to its record, its study's results, tables and pages."""

import csv
import json
import statistics

import pytest
from pydantic import ValidationError

from command_line import run
from synthetic_records import synthetic_record, synthetic_results
from tiny_study import BATCH, CONTEXT, make, spec
from twofold.data.corpus import load_corpus
from twofold.data.split import split
from twofold.evaluation.attention_entropy import attention_entropy
from twofold.models.load import load_model
from twofold.report.family import render_family
from twofold.report.page import render
from twofold.report.scores import HEADINGS, score_table
from twofold.study.axes import Member
from twofold.study.collection import collect_family
from twofold.study.gaps import build_gaps, read_gaps
from twofold.study.plan import places_of, planned_runs
from twofold.study.record import GradientRecord, RunRecord, Sharpness, SoftmaxRecord, read_record
from twofold.study.results import read_results, write_results
from twofold.training.metrics import Step, gradient_size, read_metrics

ENTRIES = [
    {"variant": "QKV", "scale_exponent": 0, "name": "p = 0"},
    {"variant": "QKV", "scale_exponent": 0.5, "name": "p = 0.5"},
    {"variant": "linear", "rotary": "none", "name": "no softmax"},
]
CHANGES = {
    "variants": ENTRIES,
    "baseline": "p = 0.5",
    "axes": {"size": [{"head_dim": 6}, {"head_dim": 10}]},
    "tokens": CONTEXT * BATCH * 3,
    "training": {"batch": BATCH, "checkpoints": 0},
    "model": {"layers": 2, "width": 24, "heads": 4, "mlp": 31, "positions": 41},
}


@pytest.fixture(scope="module")
def family(texts, tmp_path_factory):
    """A family's folder with every run made. Read only."""
    out = tmp_path_factory.mktemp("families") / "tiny"
    make(spec(texts, **CHANGES), out)
    collect_family(out)
    return out


def scored(variant="QKV", seed=0, entropy=1.5, norm=0.7, layers=(0.25, 0.75)):
    """A record with a softmax and a gradient."""
    softmax = SoftmaxRecord(
        entropy=entropy,
        relative_entropy=entropy / 3,
        saturated=0.125,
        layers=[s and Sharpness(entropy=2 * s, relative_entropy=s, saturated=0.5) for s in layers],
    )
    gradient = GradientRecord(median=norm, largest=17 * norm, first_tenth=3 * norm, last_tenth=norm / 2)
    record = synthetic_record(variant, 2.0 + seed / 31, seed=seed)
    return record.model_copy(update={"softmax": softmax, "gradient": gradient})


def steps(norms):
    return [Step(n, len(norms), 7 * n, 2.0, 1e-3, norm, n / 3) for n, norm in enumerate(norms, 1)]


def test_sizes_of_the_gradient_are_those_of_the_steps_that_have_one():
    norms = [float((n * 17) % 31 + n) for n in range(37)]
    found = gradient_size(steps([None, *norms[:20], None, *norms[20:]]))
    tenths = statistics.median(norms[:4]), statistics.median(norms[-4:])
    assert found == (statistics.median(norms), max(norms), *tenths)
    assert gradient_size(steps([3.0])) == (3.0, 3.0, 3.0, 3.0)
    assert gradient_size(steps([None, None])) is gradient_size([]) is None


def test_a_runs_record_has_what_its_model_and_its_metrics_say(texts, family):
    held_out = split(load_corpus(str(texts)), 0.2)[1]
    for one, folder in places_of(spec(texts, **CHANGES), family):
        for planned in planned_runs(one, folder):
            record = read_record(planned.folder / "record.json")
            assert record.gradient == GradientRecord(**gradient_size(read_metrics(planned.folder))._asdict())
            if planned.label == "no softmax":
                assert record.softmax is None
                continue
            found = attention_entropy(load_model(planned.folder), held_out, CONTEXT)
            assert record.softmax.entropy == pytest.approx(found.overall.entropy, rel=1e-6)
            assert record.softmax.relative_entropy == pytest.approx(found.overall.relative_entropy, rel=1e-6)
            expected = [layer.entropy for layer in found.layers]
            assert [layer.entropy for layer in record.softmax.layers] == pytest.approx(expected, rel=1e-6)


def test_larger_scores_make_a_sharper_softmax(family):
    for member in read_gaps(family / "gaps.json").members:
        assert member.gap("p = 0").softmax.entropy.mean < member.gap("p = 0.5").softmax.entropy.mean


def test_records_of_before_are_read_and_others_must_be_numbers():
    data = scored().model_dump(mode="json")
    assert RunRecord.model_validate(data) == scored()
    before = {name: value for name, value in data.items() if name not in ("softmax", "gradient")}
    assert RunRecord.model_validate(before) == synthetic_record("QKV", 2.0)
    for part, key, wrong in (("softmax", "entropy", -0.1), ("gradient", "largest", float("inf"))):
        with pytest.raises(ValidationError, match=key):
            RunRecord.model_validate({**data, part: {**data[part], key: wrong}})


def test_a_variant_has_means_over_the_seeds_that_were_measured():
    runs = [
        scored(seed=0),
        scored(seed=1, entropy=2.1, norm=0.9, layers=(0.5, None)),
        synthetic_record("QKV", 2.0, seed=2),
    ]
    (entry,) = synthetic_results(runs).summary
    assert entry.softmax.entropy.mean == pytest.approx(1.8)
    assert entry.softmax.entropy.standard_deviation == pytest.approx(0.6 / 2**0.5)
    assert entry.softmax.layers == (0.375, 0.75)
    assert entry.gradient.median.mean == pytest.approx(0.8)
    assert entry.gradient.largest == pytest.approx(17 * 0.9)
    (unmeasured,) = synthetic_results([synthetic_record("QKV", 2.0)]).summary
    assert unmeasured.softmax is unmeasured.gradient is None


def test_the_table_has_every_variant_or_none_at_all():
    table = score_table(
        synthetic_results([scored(seed=0), scored(seed=1, layers=(None, 0.5)), synthetic_record("MQA", 2.1)])
    )
    assert table.headings == ["variant", *HEADINGS]
    assert [row[0] for row in table.rows] == ["QKV", "MQA"]
    assert set(table.rows[1][1:]) == {"–"}
    row = dict(zip(table.headings, table.rows[0], strict=True))
    assert (row["entropy, nats"], row["of log n"]) == ("1.500 ± 0.000", "0.500 ± 0.000")
    assert (row["of log n, by layer"], row["saturated"]) == ("0.25 0.62", "12.5 %")
    assert (row["gradient norm"], row["first tenth"], row["largest"]) == ("0.70 ± 0.00", "2.10", "11.90")
    assert score_table(synthetic_results([synthetic_record("QKV", 2.0)])).rows == []


def test_a_familys_table_has_its_axes_in_front():
    members = [
        (Member({"context": size}, f"members/{size}", None), synthetic_results([scored()])) for size in (1009, 2003)
    ]
    gaps = build_gaps("family", members, created="2026-01-02T03:04:05+00:00")
    assert [row[:3] for row in score_table(gaps).rows] == [["1,009", "QKV", "1.500"], ["2,003", "QKV", "1.500"]]
    assert render_family(gaps).count("Softmax and gradient") == 2
    without = build_gaps("family", [(members[0][0], synthetic_results([synthetic_record("QKV", 2.0)]))], created="now")
    assert "Softmax and gradient" not in render_family(without)


def test_a_page_shows_them_only_where_there_are_any():
    assert "0.25 0.75" in render(synthetic_results([scored()]))
    assert "Softmax and gradient" not in render(synthetic_results([synthetic_record("QKV", 2.0)]))


def test_a_line_of_the_csv_has_them_without_the_layers(tmp_path):
    path, table = write_results(synthetic_results([scored(), synthetic_record("MQA", 2.0)]), tmp_path)
    assert read_results(path).runs[0].softmax.layers[1].relative_entropy == 0.75
    measured, other = csv.DictReader(table.read_text().splitlines())
    assert float(measured["softmax_relative_entropy"]) == 0.5
    assert float(measured["gradient_largest"]) == pytest.approx(11.9)
    assert (other["softmax_entropy"], other["gradient_median"]) == ("", "")
    assert not [name for name in measured if name in ("softmax", "gradient") or "layers" in name]


def test_show_has_them_below_the_main_table_and_alone(capsys, family, tmp_path):
    member = family / "members/size=head_dim_6"
    for place, rows in ((family, 6), (member, 3)):
        main, _, below = run(capsys, "study", "show", str(place)).out.rpartition("\n\n")
        assert "bits per byte" in main
        assert "saturated" in below
        assert "saturated" not in main
        assert below.count("p = 0.5") == rows // 3
        lines = run(capsys, "study", "show", str(place), "--scores", "--markdown").out.splitlines()
        assert len(lines) == rows + 2
        assert lines[0].endswith("gradient norm | first tenth | last tenth | largest |")
        assert "entropy" not in run(capsys, "study", "show", str(place), "--markdown").out
        told = json.loads(run(capsys, "study", "show", str(place), "--scores", "--json").out)
        whole = json.loads(run(capsys, "study", "show", str(place), "--json").out)
        first = (whole["members"][0]["variants"] if place == family else whole["summary"])[0]
        assert told[0]["softmax"] == first["softmax"]
        assert told[0].get("size") == ("head_dim 6" if place == family else None)
        assert [one["softmax"] is None for one in told] == [False, False, True] * (rows // 3)
    old, _ = write_results(synthetic_results([synthetic_record("QKV", 2.0)]), tmp_path)
    assert "entropy" not in run(capsys, "study", "show", str(old)).out
    refused = run(capsys, "study", "show", str(old), "--scores")
    assert (refused.code, refused.out) == (2, "")
    assert "the runs of synthetic have no entropy and no gradient's size" in refused.err
