"""What a study compares: entries with sizes of their own, matched entries, and labels that are true and unique."""

import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from command_line import run as command
from tiny_study import content, make, spec
from twofold.models.load import load_model
from twofold.report.page import render
from twofold.report.tables import summary_rows
from twofold.study.axes import AxesSpec
from twofold.study.collection import collect_results
from twofold.study.contenders import changes_text
from twofold.study.data_spec import DataSpec
from twofold.study.load import builtin_studies, checked, load_study, parse_study
from twofold.study.match import TOLERANCE, cost
from twofold.study.plan import planned_runs
from twofold.study.record import read_record
from twofold.study.results import Failure, read_results
from twofold.study.sizes import ModelSpec, VariantEntry
from twofold.study.spec import MatchSpec, SampleSpec, StudySpec
from twofold.study.statistics import analyse
from twofold.training.settings import TrainingSettings
from twofold.trials.load import load_any_study
from twofold.variants.choices import Sharing

FILE = """\
name: fair
tokens: 1000
model: {width: 24, mlp: 31}
match:
  cache: GQA-2
  parameters: GQA-2
variants:
  - GQA-2
  - K=V GQA-2
  - variant: K=V GQA-2
    cache_by: head_dim
"""
WIDE = "K=V GQA-2 (head_dim 12)"


def study(*variants, **others):
    return checked({"name": "x", "tokens": 1, "variants": list(variants), "model": {"width": 24, "mlp": 31}, **others})


def labels(*variants, **others):
    return [contender.label for contender in study(*variants, **others).contenders]


def fault(*changes):
    text = FILE
    for line, replacement in changes:
        assert text.count(line) == 1
        text = text.replace(line, replacement)
    with pytest.raises(ValueError, match=r"^f\.yaml:") as raised:
        parse_study(text, "f.yaml")
    assert "\n" not in str(raised.value)
    return str(raised.value).removeprefix("f.yaml:")


def test_a_plain_notation_is_its_own_label_and_has_the_studys_sizes():
    (plain,) = study("k=v mqa").contenders
    assert (plain.label, plain.variant, plain.slug) == ("K=V MQA", "K=V MQA", "K=V_MQA")
    assert plain.architecture == study("K=V MQA").model.architecture("K=V MQA")
    assert not plain.changed
    assert not plain.matched


@pytest.mark.parametrize(
    ("entry", "label", "slug"),
    [
        ({"head_dim": 12}, "QKV (head_dim 12)", "QKV_head_dim_12"),
        ({"head_dim": 6}, "QKV", "QKV"),  # as it was
        ({"heads": 2}, "QKV (heads 2, head_dim 12)", "QKV_heads_2_head_dim_12"),
        ({"mlp": 40}, "QKV (mlp 40)", "QKV_mlp_40"),
        ({"rotary": "none"}, "QKV (rotary none)", "QKV_rotary_none"),
        ({"tied": False, "dropout": 0.1}, "QKV (tied no, dropout 0.1)", "QKV_tied_no_dropout_0.1"),
        ({"block": "paper"}, "QKV (block paper)", "QKV_block_paper"),
        ({"variant": "GQA-3", "heads": 6, "head_dim": 6}, "GQA-3 (heads 6)", "GQA-3_heads_6"),
        ({"name": "my own, wide", "head_dim": 12}, "my own, wide", "my_own_wide"),
    ],
)
def test_labels_tell_what_an_entry_changes(entry, label, slug):
    (contender,) = study({"variant": "QKV", **entry}).contenders
    assert (contender.label, contender.slug) == (label, slug)


def test_entries_inherit_what_they_do_not_give():
    (entry,) = study({"variant": "K=V", "head_dim": 10}, model={"width": 24, "mlp": 31, "layers": 3}).contenders
    sizes = entry.architecture
    assert (sizes.width, sizes.mlp, sizes.layers, sizes.heads, sizes.head_dim) == (24, 31, 3, 4, 10)


def test_matched_sizes_labels_and_what_was_changed():
    reference, heads, dims = parse_study(FILE, "f.yaml").contenders
    assert [reference.label, heads.label, dims.label] == ["GQA-2", "K=V GQA-4", WIDE]
    assert dict(reference.changed) == {}
    assert heads.changed == {"kv_heads": (2, 4)}
    # 2·24·24 for queries and output; MLP columns have 72 weights each: 16 columns for 1152.
    assert dims.changed == {"head_dim": (6, 12), "mlp": (31, 31 - 16)}
    assert changes_text(dims.changed) == "head_dim 6 → 12, mlp 31 → 15"
    for contender in (reference, heads, dims):
        for name, (wanted, reached) in contender.matched.items():
            assert wanted == cost(name, reference.architecture, 256)
            assert reached == cost(name, contender.architecture, 256)


def test_costs_may_be_numbers_and_the_way_may_be_the_studys():
    match = {"cache": 2048, "compute": "MQA", "cache_by": "head_dim"}
    variants = ["GQA-2", "K=V GQA-2", {"variant": "K=V MQA", "cache_by": "heads"}]
    assert labels(*variants, match=match, model={}) == ["GQA-2", "K=V GQA-2 (head_dim 64)", "K=V GQA-4"]


def test_a_study_survives_its_file():
    one = parse_study(FILE, "f.yaml")
    again = StudySpec.model_validate_json(one.model_dump_json())
    assert again == one
    assert again.contenders == one.contenders
    assert one.comparable()["match"] == {"cache": "GQA-2", "parameters": "GQA-2", "compute": None, "cache_by": None}


LAST = ("    cache_by: head_dim\n", "")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            [("cache_by", "cach_by")],
            "11: unknown key 'variants.2.cach_by': did you mean 'cache_by'? The keys here are ",
        ),
        ([("cache_by: head_dim", "cache_by: width")], "11: variants.2.cache_by: Input should be 'heads' or 'head_dim'"),
        ([("- variant: K=V GQA-2\n    cache", "- cache")], "10: the key 'variants.2.variant' is missing"),
        ([("- variant: K=V GQA-2", "- variant: K=W")], "10: variants.2.variant: unknown variant 'K=W': did you mean"),
        ([("  - GQA-2\n", "  - [QKV]\n")], "8: variants.0: Input should be a valid string, or a mapping"),
        ([("cache_by: head_dim", "variant: QKV")], "11: the key 'variant' is given twice"),
        ([("cache_by: head_dim", "name: QKV")], "11: variants.2.name: 'QKV' is a variant's notation, which"),
        ([("cache_by: head_dim", "name: ../x")], "11: variants.2.name: use letters, digits, "),
        ([("cache_by: head_dim", "layers: 0")], "11: variants.2.layers: layers must be at least 1, not 0"),
        ([LAST], "10: variants.2: K=V GQA-4 is named twice in variants, once matched"),
        (
            [("cache_by: head_dim", "head_dim: 8\n    cache_by: head_dim")],
            "11: variants.2.head_dim: K=V GQA-2 cannot be matched to 384 cached bytes per token within 0.5 % by "
            "head_dim (head_dim is given and stays): the nearest, head_dim 8, has 256 (33.33 % less). Match to that, "
            "or leave head_dim out",
        ),
        ([("  cache: GQA-2", "  cache: GQA-3")], "5: match.cache: GQA-3: 4 query heads cannot be shared out evenly"),
        ([("  cache: GQA-2", "  cache: K=W")], "5: match.cache: unknown variant 'K=W'"),
        ([("  cache: GQA-2", "  cache: 0")], "5: match.cache: give a variant, or a number of at least 1"),
        ([("  cache: GQA-2", "  cache: yes")], "5: match.cache: give a variant, or a number of at least 1"),
        ([("  cache: GQA-2", "  cash: GQA-2")], "5: unknown key 'match.cash': did you mean 'cache'? The keys here are"),
        ([("  cache: GQA-2\n", "")], "10: variants.2.cache_by: match.cache is not given: there is nothing to match"),
        ([("  cache: GQA-2", "  cache_by: heads"), LAST], "5: match.cache_by: match.cache is not given, and nothing"),
        ([("  cache: GQA-2\n  parameters: GQA-2", "  cache_by: heads")], "4: match: name what to match: cache, param"),
        ([("  cache: GQA-2", "  cache: 1000")], "8: variants.0: GQA-2 cannot be matched to 1,000 cached bytes"),
        ([("parameters: GQA-2", "parameters: 5")], "8: variants.0: GQA-2 cannot be matched to 5 parameters within 0"),
    ],
)
def test_a_fault_names_its_line_and_what_is_possible(changes, message):
    assert fault(*changes).startswith(message)


def test_two_labels_in_one_folder_are_refused():
    with pytest.raises(ValueError, match="A b and a_b would share a folder: rename one"):
        study({"variant": "QKV", "name": "a_b"}, {"variant": "K=V", "name": "A b"})


@given(st.text(max_size=70))
def test_any_name_that_is_accepted_is_safe_as_a_folder(name):
    try:
        (contender,) = study({"variant": "QKV", "name": name}).contenders
    except ValueError:
        return
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9=+._-]*", contender.slug)


@pytest.mark.parametrize("name", [name for name in builtin_studies() if name.startswith("equal")])
def test_built_in_fair_studies_compare_equals(name):
    built_in = load_study(name)
    reference, more, wider, *controls = built_in.contenders
    assert not reference.changed
    assert (more.architecture.kv_heads, more.architecture.head_dim) == (2 * reference.architecture.kv_heads, 32)
    assert (wider.architecture.kv_heads, wider.architecture.head_dim) == (reference.architecture.kv_heads, 64)
    assert all((c.architecture.head_dim, c.architecture.variant.sharing) == (64, Sharing.QKV) for c in controls)
    for contender in built_in.contenders:
        assert cost("cache", contender.architecture, 1) == cost("cache", reference.architecture, 1)
        wanted, reached = contender.matched["parameters"]
        assert abs(reached / wanted - 1) <= TOLERANCE
    assert len(built_in.seeds) == 3


FAIR = {
    "match": {"cache": "GQA-2", "parameters": "GQA-2"},
    "variants": ["GQA-2", {"variant": "K=V GQA-2", "cache_by": "head_dim"}],
}


@pytest.fixture(scope="module")
def finished(texts, tmp_path_factory):
    out = tmp_path_factory.mktemp("studies") / "fair"
    assert make(spec(texts, **FAIR), out) == [("GQA-2", 0), (WIDE, 0)]
    return out


def test_records_results_and_reports_tell_what_was_run(finished, texts, capsys):
    runs = planned_runs(spec(texts, **FAIR), finished)
    records = [read_record(run.folder / "record.json") for run in runs]
    assert [(r.label, r.variant) for r in records] == [("GQA-2", "GQA-2"), (WIDE, "K=V GQA-2")]
    for run, record in zip(runs, records, strict=True):
        assert load_model(run.folder).config.architecture == run.contender.architecture
        assert record.parameters["total"] == record.configuration["matched"]["parameters"][1]
        assert record.cache.bytes_per_token == record.configuration["matched"]["cache"][0]
        assert record.configuration["sizes"]["mlp"] == run.contender.architecture.mlp
    assert records[1].changed == {"head_dim": [6, 12], "mlp": [31, 15]}
    results = collect_results(finished)
    assert read_results(finished / "results.json") == results
    assert {(e.label, e.variant) for e in results.summary} == {(r.label, r.variant) for r in records}
    rows = {row.label: row for row in summary_rows(results)}
    assert (rows["GQA-2"].changed, rows["GQA-2"].paper_name) == ("–", "GQA-2")
    assert (rows[WIDE].changed, rows[WIDE].paper_name) == ("head_dim 6 → 12, mlp 31 → 15", "–")
    page = render(results)
    words = f"192 cached bytes per token (±0 %) and {records[0].parameters['total']:,} parameters (±0 %)"
    assert f"All models were matched to {words}." in " ".join(page.split())
    assert "head_dim 6 → 12, mlp 31 → 15" in page
    shown = command(capsys, "study", "show", str(finished), "--markdown").out.splitlines()
    assert shown[0].endswith("| verdict | changed |")
    assert shown[3].startswith(f"| {WIDE} | ")
    assert shown[3].endswith(" | head_dim 6 → 12, mlp 31 → 15 |")


def test_a_name_cannot_come_to_mean_other_sizes(texts, tmp_path):
    def named(**sizes):
        return spec(texts, tokens=1, variants=["QKV", {"variant": "K=V", "name": "wide", **sizes}])

    out = tmp_path / "out"
    assert make(named(head_dim=8), out) == [("QKV", 0), ("wide", 0)]
    assert make(spec(texts, tokens=1, variants=["QKV"]), out) == []
    with pytest.raises(ValueError, match=r"wide_seed0 holds another wide: head_dim is 8 there and 10 here\. Give this"):
        make(named(head_dim=10), out)
    assert make(named(head_dim=8), out) == []


def test_matching_is_a_setting_of_the_study(finished, texts):
    with pytest.raises(ValueError, match="holds runs of other settings: match"):
        make(spec(texts, variants=["GQA-2"]), finished)
    with pytest.raises(ValueError, match=r"match\.parameters is GQA-2 there and None here"):
        make(spec(texts, variants=["GQA-2"], match={"cache": "GQA-2"}), finished)


def test_dry_run_shows_the_matched_sizes(texts, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "fair.yaml"
    file.write_text(yaml.safe_dump(content(texts, **FAIR)))
    arguments = ("study", "run", str(file), "--out", "new", "--dry-run")
    rows = json.loads(command(capsys, *arguments, "--json").out)
    fair = spec(texts, **FAIR)
    for row, contender in zip(rows, fair.contenders, strict=True):
        sizes = contender.architecture
        assert (row["label"], row["variant"]) == (contender.label, contender.variant)
        assert (row["heads"], row["kv_heads"], row["head_dim"], row["mlp"]) == (4, 2, sizes.head_dim, sizes.mlp)
        assert row["macs_per_window"] == cost("compute", sizes, fair.data.context)
        assert row["changed"] == {name: list(pair) for name, pair in contender.changed.items()}
    shown = command(capsys, *arguments).out
    for part in ("kv heads", "MACs/window", WIDE, "mlp 31 → 15", "new/runs/K=V_GQA-2_head_dim_12_seed0"):
        assert part in shown


def test_what_was_written_before_labels_is_called_by_its_variant(finished, texts):
    old = [
        read_record(run.folder / "record.json").model_dump(exclude={"label"})
        for run in planned_runs(spec(texts, **FAIR), finished)
    ]
    made = [type(read_record(finished / "runs/GQA-2_seed0/record.json")).model_validate(data) for data in old]
    assert [entry.label for entry in analyse(made).summary] == ["GQA-2", "K=V GQA-2"]
    assert Failure.model_validate({"variant": "MQA", "seed": 0, "reason": "x"}).label == "MQA"


DOCUMENT = (Path(__file__).parent.parent / "docs/studies.md").read_text()


def test_the_documents_studies_are_valid_and_its_example_is_the_built_in_one(tmp_path):
    texts = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    of_text, (of_tasks,) = ([text for text in texts if ("tasks:" in text) == is_of] for is_of in (False, True))
    own, fair, swept, family = (parse_study(text, "studies.md") for text in of_text)
    (tmp_path / "tasks.yaml").write_text(of_tasks)
    assert load_any_study(str(tmp_path / "tasks.yaml")).run_count == 3 * 4 * (2 + 2)
    assert [c.label for c in own.contenders] == [
        "QKV",
        "K=V GQA-2",
        "K=V GQA-2 (head_dim 64)",
        "K=V MQA on eight",
    ]
    built_in = load_study("equal-cache")
    assert fair == built_in.model_copy(update={"description": "", "training": fair.training})
    assert [point["training.learning_rate"] for point in swept.points] == [0.001, 0.003, 0.01]
    assert len(family.members) == 3 * 2 * 2
    assert "members/context=128,packing=padded" in family.members[2].folder


@pytest.mark.parametrize(
    "part", [StudySpec, DataSpec, ModelSpec, VariantEntry, MatchSpec, SampleSpec, TrainingSettings, AxesSpec]
)
def test_the_document_names_every_key(part):
    assert not [key for key in part.model_fields if f"`{key}`" not in DOCUMENT]
