"""Axes: a family's members are ordinary studies in folders of their own, and its gaps are what they say."""

import json
import math
import multiprocessing
import shutil

import pytest
import yaml

from synthetic_records import invent_runs, synthetic_record
from tiny_study import content, files, make, spec
from twofold.study.collection import collect_family, collect_results
from twofold.study.gaps import read_gaps
from twofold.study.load import parse_study
from twofold.study.plan import places_of, planned_runs
from twofold.study.record import read_record
from twofold.study.statistics import analyse, perplexity_gap

AXES = {"context": [19, 37], "size": [{"layers": 1}, {"layers": 2, "mlp": 29}]}
FOLDERS = [
    "members/context=19,size=layers_1",
    "members/context=19,size=layers_2_mlp_29",
    "members/context=37,size=layers_1",
    "members/context=37,size=layers_2_mlp_29",
]


def fault(texts, **changes):
    with pytest.raises(ValueError, match=r"^f\.yaml") as raised:
        parse_study(yaml.safe_dump(content(texts, **changes)), "f.yaml")
    return str(raised.value).partition(": ")[2]


@pytest.fixture
def invented(monkeypatch):
    """Runs are not trained but get a score that the variant, the seed and the context decide."""
    invent_runs(monkeypatch, lambda run, study: 2.0 + len(run.label) / study.data.context + run.seed / 100)


def test_members_are_ordinary_studies_that_differ_in_the_axes_alone(texts):
    family = spec(texts, axes={**AXES, "packing": ["packed", "padded"]})
    assert len(family.members) == 8
    seen = set()
    for member in family.members:
        one = member.spec
        seen.add((one.data.context, one.data.packing, one.model.layers, one.model.mlp))
        assert one.axes is None
        assert one.members[0].spec == one
        assert type(one).model_validate_json(one.model_dump_json()) == one
        same = {"variants", "seeds", "tokens", "training", "sample", "match", "sweep", "baseline"}
        assert all(getattr(one, name) == getattr(family, name) for name in same)
    assert len(seen) == 8
    assert len({one.spec.name for one in family.members}) == len({one.folder for one in family.members}) == 8
    assert family.run_count == 16


def test_a_study_without_axes_is_its_own_member(texts, tmp_path):
    study = spec(texts)
    assert places_of(study, tmp_path) == [(study, tmp_path)]


def test_a_preset_brings_all_its_sizes_and_a_mapping_only_what_it_names(texts):
    family = spec(texts, axes={"size": ["tiny", {"layers": 1}]}, model={"layers": 2, "width": 24, "block": "paper"})
    tiny, small = (member.spec.model.architecture("QKV") for member in family.members)
    assert (tiny.layers, tiny.width, tiny.heads, tiny.mlp, tiny.block) == (4, 128, 4, 344, "paper")
    assert (small.layers, small.width, small.block) == (1, 24, "paper")


@pytest.mark.parametrize(
    ("axes", "changes", "message"),
    [
        ({}, {}, "axes: name at least one axis: context, packing, size"),
        ({"context": [37]}, {}, "axes.context: an axis needs at least two values"),
        ({"context": [37, 37]}, {}, "axes.context.1: 37 is named twice: every member is made once"),
        ({"context": [0, 1]}, {}, "axes.context.0: Input should be greater than or equal to 1"),
        ({"contxt": [1, 2]}, {}, "unknown key 'axes.contxt': did you mean 'context'?"),
        ({"packing": ["packed", "loose"]}, {}, "axes: packing: Input should be 'packed', 'separate' or 'padded'"),
        ({"size": ["tiny", "huge"]}, {}, "axes.size: unknown preset 'huge': choose one of tiny"),
        ({"size": [{"layers": 2}, {"layrs": 3}]}, {}, "unknown key 'axes.size.1.layrs': did you mean 'layers'?"),
        ({"size": [{"layers": 2}, {}]}, {}, "axes.size.1: write a preset's name, or a mapping with keys of model"),
        ({"size": [{"heads": 2}, {"heads": 5}]}, {}, "axes.size: width 24 is not a multiple of 5 heads"),
        (
            {"size": [{"layers": 2}, {"layers": 3}]},
            {"sweep": {"model.layers": [1, 2]}},
            "sweep.model.layers: axes.size sets layers too: leave one of the two out",
        ),
        (
            {"size": [{"heads": 4}, {"heads": 1}]},
            {"variants": ["QKV", "GQA-2"]},
            "1 query heads cannot be shared out evenly among 2 key/value heads",
        ),
        (
            {"context": [19, 64]},
            {"model": {"rotary": "none", "positions": 50}},
            "learned positions: raise model.positions (with context 64)",
        ),
        (
            {"size": [{"heads": 2}, {"heads": 4}]},
            {"variants": ["GQA-2"], "match": {"cache": 96 * 8}},
            "variants.0: GQA-4 (heads 4) becomes GQA-8 (heads 8) with size heads 4: give it a name, which stays",
        ),
    ],
)
def test_what_fits_no_member_is_refused(texts, axes, changes, message):
    assert message in fault(texts, **{**changes, "axes": axes})


@pytest.fixture(scope="module")
def family(texts, tmp_path_factory):
    """A real family of two members, and its folder. Read only."""
    study = spec(texts, axes={"context": [19, 37]}, variants=["QKV", "K=V MQA"])
    out = tmp_path_factory.mktemp("family") / "out"
    assert make(study, out) == [("QKV", 0), ("K=V MQA", 0)] * 2
    return study, out


def test_a_member_is_what_the_study_run_alone_makes(family, tmp_path):
    study, out = family
    one, folder = places_of(study, out)[0]
    make(one, tmp_path / "alone")
    for run, twin in zip(planned_runs(one, folder), planned_runs(one, tmp_path / "alone"), strict=True):
        records = [read_record(each.folder / "record.json") for each in (run, twin)]
        assert records[0].configuration["data"]["context"] == 19
        assert (records[0].validation, records[0].curve) == (records[1].validation, records[1].curve)
        weights = [(each.folder / "model/model.safetensors").read_bytes() for each in (run, twin)]
        assert weights[0] == weights[1]


def test_gaps_are_what_the_members_results_say(family, tmp_path):
    study, out = family[0], shutil.copytree(family[1], tmp_path / "out")
    gaps, of_members = collect_family(out)
    assert read_gaps(out / "gaps.json") == gaps
    assert list(of_members) == [folder for _, folder in places_of(study, out)]
    for member, (folder, results) in zip(gaps.members, of_members.items(), strict=True):
        assert out / member.folder == folder
        assert json.loads((folder / "results.json").read_text()) == results.model_dump(mode="json")
        for gap, entry in zip(member.variants, results.summary, strict=True):
            assert gap.difference == entry.difference_to_baseline
            assert gap.cache_bytes_per_token == entry.cache_bytes_per_token
            assert gap.bits_per_byte == entry.bits_per_byte.mean
        baseline, shared = member.variants
        ratio = shared.perplexity / baseline.perplexity
        assert shared.perplexity_gap.percent == pytest.approx(100 * (ratio - 1))
        assert baseline.perplexity_gap is baseline.difference is None
    assert gaps.axes == {"context": [19, 37]}
    with pytest.raises(ValueError, match="holds a family of studies: give the folder of one member, such as"):
        collect_results(out)


def test_a_family_goes_on_and_two_runners_share_it(texts, tmp_path, invented):
    study, out = spec(texts, axes=AXES, seeds=[0, 1]), tmp_path / "out"
    fork = multiprocessing.get_context("fork")
    both, made = fork.Barrier(2), fork.SimpleQueue()
    made_here = []

    def stop(run):
        if len(made_here) == 3:
            raise KeyboardInterrupt
        made_here.append(run)

    with pytest.raises(KeyboardInterrupt):
        make(study, out, stop)
    made_here.clear()

    def look(run):
        if not made_here:
            both.wait(30)  # until the other has one too
        made_here.append(run)
        made.put(str(run.folder.relative_to(out)))

    runners = [fork.Process(target=make, args=(study, out, look)) for _ in range(2)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join(60)
        assert runner.exitcode == 0
    found = [made.get() for _ in range(13)]
    assert made.empty()
    assert len(set(found)) == 13
    assert sorted(path.name for path in out.iterdir()) == ["members", "study.json"]
    assert [f"members/{path.name}" for path in sorted((out / "members").iterdir())] == FOLDERS
    before = files(out)
    assert make(study, out) == []
    assert {name: file[0] for name, file in files(out).items()} == {name: file[0] for name, file in before.items()}


def test_values_may_be_added_and_other_axes_are_refused(texts, tmp_path, invented):
    out = tmp_path / "out"
    make(spec(texts, axes={"context": [19, 37]}), out)
    before = files(out / "members")
    more = {"context": [19, 23, 37]}
    assert make(spec(texts, axes=more), out) == [("QKV", 0), ("K=V MQA", 0)]
    after = files(out / "members")
    assert all(after[name][0] == file[0] for name, file in before.items() if "/runs/" in name)
    for changes, difference in (
        ({"axes": AXES}, "axes is context there and context, size here"),
        ({}, "axes is context there and not given here"),
        ({"axes": more, "tokens": 5}, "tokens is 1221 there and 5 here"),
        ({"axes": more, "sweep": {"training.clip": [1, 2]}}, "sweep is not given there and training.clip here"),
    ):
        with pytest.raises(ValueError, match="holds runs of other settings") as raised:
            make(spec(texts, **changes), out)
        assert difference in str(raised.value)
    assert files(out / "members") == after


def test_a_members_changed_text_is_refused(texts, tmp_path, invented):
    folder, out = shutil.copytree(texts, tmp_path / "texts"), tmp_path / "out"
    make(spec(folder, axes={"context": [19, 37]}), out)
    (folder / "one_more.txt").write_text("text")
    before = files(out)
    with pytest.raises(ValueError, match=r"11 documents of \d+ bytes then, 12 of \d+ now"):
        make(spec(folder, axes={"context": [19, 37]}, seeds=[0, 1]), out)
    assert files(out) == before


def test_settings_of_a_family_may_change_until_a_run_is_finished(texts, tmp_path, invented):
    def stop(run):
        raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        make(spec(texts, axes=AXES), out, stop)
    assert len(make(spec(texts, axes={"context": [19, 41]}, tokens=5), out)) == 4
    assert len(collect_family(out)[0].members) == 2


def test_a_text_too_short_for_one_member_leaves_no_folder(texts, tmp_path):
    with pytest.raises(ValueError, match="Too little text"):
        make(spec(texts, axes={"context": [37, 10**6]}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_family_with_a_sweep_picks_in_every_member(texts, tmp_path, monkeypatch):
    best = {19: 0.001, 37: 0.003}
    invent_runs(monkeypatch, lambda run, study: 2.0 + abs(study.training.learning_rate - best[study.data.context]))
    out = tmp_path / "out"
    study = spec(texts, axes={"context": [19, 37]}, seeds=[0, 1], sweep={"training.learning_rate": [0.001, 0.003]})
    assert len(make(study, out)) == study.run_count == 12
    gaps, _ = collect_family(out)
    points = [[gap.point["training.learning_rate"] for gap in member.variants] for member in gaps.members]
    assert points == [[0.001, 0.001], [0.003, 0.003]]
    assert [[gap.seeds for gap in member.variants] for member in gaps.members] == [[(0, 1)] * 2] * 2


def test_members_without_results_are_there_and_empty(texts, tmp_path, invented):
    study, out = spec(texts, axes={"context": [19, 37]}), tmp_path / "out"

    def stop(run):
        if run.folder.parent.parent.name == "context=37":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(study, out, stop)
    gaps, of_members = collect_family(out)
    assert [len(member.variants) for member in gaps.members] == [2, 0]
    assert gaps.members[1].unfinished is None
    assert list(of_members) == [out / "members/context=19"]
    shutil.rmtree(out / "members/context=19/runs")
    with pytest.raises(ValueError, match="no member of this family has a finished run yet"):
        collect_family(out)


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_the_gap_in_percent_is_that_of_the_mean_perplexities(seeds):
    base = [synthetic_record("QKV", 2.0 + seed / 31, seed=seed) for seed in seeds]
    ours = [synthetic_record("K=V", 2.05 + seed / 29, seed=seed) for seed in seeds]
    found = perplexity_gap(ours, base)
    ratios = [a.validation.perplexity / b.validation.perplexity for a, b in zip(ours, base, strict=True)]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    assert found.percent == pytest.approx(100 * (mean - 1))
    assert found.interval[0] <= found.percent <= found.interval[1]
    back = perplexity_gap(base, ours)
    assert (1 + back.percent / 100) * (1 + found.percent / 100) == pytest.approx(1)
    assert (1 + back.interval[0] / 100) * (1 + found.interval[1] / 100) == pytest.approx(1, rel=1e-3)


def test_a_baseline_has_no_gap_to_itself():
    statistics = analyse([synthetic_record("QKV", 2.0), synthetic_record("K=V", 2.1)])
    assert [entry.perplexity_gap is None for entry in statistics.summary] == [True, False]
