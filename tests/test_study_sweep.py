"""Sweeps: points are read and refused, the pick follows the picking documents alone, and runs are made in two steps."""

import json
import multiprocessing

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from synthetic_records import bits_by_half, diverge, finish, invent_runs, synthetic_record, synthetic_study
from tiny_study import BATCH, COMMAND, Watched, content, files, make, spec
from twofold.models.architecture import FIELDS
from twofold.study.collection import collect_results
from twofold.study.load import parse_study
from twofold.study.picking import MINIMUM_HELD_OUT, Tried, at_the_edge, halves, picking_bits, reported
from twofold.study.plan import claimed, courses, planned_runs
from twofold.study.record import DocumentRecord, read_record
from twofold.study.runner import run_study
from twofold.study.sweep import point_slug
from twofold.training.settings import TrainingSettings

KEY = "training.learning_rate"
RATES = (0.001, 0.003, 0.01)
SWEEP = {"sweep": {KEY: list(RATES)}}


def fault(texts, **changes):
    with pytest.raises(ValueError, match=r"^f\.yaml") as raised:
        parse_study(yaml.safe_dump(content(texts, **changes)), "f.yaml")
    return str(raised.value).partition(": ")[2]


@pytest.fixture
def swept(texts, tmp_path):
    """A study of two variants at three points with two seeds, and its folder without any run."""
    study = spec(texts, seeds=[4, 7], **SWEEP)
    return study, synthetic_study(study, tmp_path / "out")


def finish_tries(study, out, scores):
    """Finish the first seed's runs: `scores` is label → (picking, reported) bits per byte for each point."""
    for course in courses(study, out):
        for run, halves_of in zip(course.tries, scores[course.contender.label], strict=True):
            finish(run, bits_by_half(*halves_of))


def test_points_are_read_as_their_fields_take_them(texts):
    text = yaml.safe_dump(content(texts)) + "sweep: {training.learning_rate: [1e-3, 3e-3], model.dropout: [0, 0.1]}\n"
    study = parse_study(text, "f.yaml")
    assert study.sweep == {KEY: (0.001, 0.003), "model.dropout": (0.0, 0.1)}
    assert [(p[KEY], p["model.dropout"]) for p in study.points] == [(0.001, 0), (0.003, 0), (0.001, 0.1), (0.003, 0.1)]
    turned = spec(texts, sweep={"model.dropout": [0, 0.1], KEY: [0.001, 0.003]})
    assert [point_slug(p) for p in turned.points] == [point_slug(p) for p in study.points]
    assert turned.comparable() == study.comparable()
    for point in study.points:
        one = study.at(point)
        assert (one.training.learning_rate, one.model.dropout) == (point[KEY], point["model.dropout"])
        assert one.sweep is None
        assert one.training == study.training.model_copy(update={"learning_rate": point[KEY]})


def test_no_field_of_training_shares_a_name_with_one_of_the_model():
    assert not set(TrainingSettings.model_fields) & {*FIELDS, "preset"}


@given(st.lists(st.floats(1e-6, 1e3), unique=True, min_size=2))
def test_no_two_points_share_a_folder(rates):
    names = {point_slug({KEY: rate}) for rate in rates}
    assert len(names) == len(rates)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz_=.+-0123456789") for name in names)


@pytest.mark.parametrize(
    ("sweep", "changes", "message"),
    [
        ({}, {}, "sweep: name what to sweep, by a dotted key such as training.learning_rate"),
        ({"training.lerning_rate": [1, 2]}, {}, "did you mean 'training.learning_rate'? The keys here are"),
        ({"model.variant": ["QKV", "K=V"]}, {}, "no field of training or model"),
        ({"training.compile": [True, False]}, {}, "moves results by rounding only: sweep another"),
        ({KEY: [1, 2, 1.0]}, {}, "sweep.training.learning_rate.2: 1 is named twice: every point is tried once"),
        ({KEY: [1]}, {}, "a sweep needs at least two values"),
        ({KEY: [1, None]}, {}, "sweep.training.learning_rate.1: give a value"),
        ({KEY: [1, -1]}, {}, "sweep.training.learning_rate.1: Input should be greater than 0"),
        ([KEY], {}, "sweep: write a mapping, such as {a: b}"),
        ({KEY: 1}, {}, "sweep.training.learning_rate: write a list, such as [a, b]"),
        ({"model.width": [24, 26]}, {}, "sweep: width 26 is not a multiple of 4 heads"),
        ({"model.mlp": [31, 37]}, {"match": {"parameters": "QKV"}}, "sweep.model.mlp: match sets mlp itself"),
        ({"model.heads": [4, 8]}, {"match": {"cache": "MQA"}}, "sweep.model.heads: match sets heads itself"),
        (
            {"model.head_dim": [6, 12]},
            {"match": {"cache": "MQA", "cache_by": "head_dim"}},
            "sweep.model.head_dim: match sets head_dim itself",
        ),
        (
            {"model.dropout": [0, 0.1]},
            {"variants": ["QKV", {"variant": "K=V", "dropout": 0.3}]},
            "variants.1.dropout: model.dropout is swept, and this entry has its own",
        ),
        (
            {"model.layers": [2, 4]},
            {"variants": ["K=V MQA"], "match": {"cache": "MQA"}},
            "variants.0: K=V GQA-2 becomes K=V MQA with layers 4: give it a name, which stays",
        ),
    ],
)
def test_what_cannot_be_swept_is_refused(texts, sweep, changes, message):
    assert message in fault(texts, **{**changes, "sweep": sweep})


def test_what_is_matched_stays_so_at_every_point(texts):
    entries = [{"variant": "MQA", "name": "whole"}, {"variant": "K=V GQA-2", "name": "halved"}]
    sizes = {"layers": 2, "width": 48, "heads": 8, "mlp": 31}
    study = spec(texts, variants=entries, match={"cache": "MQA"}, model=sizes, sweep={"model.layers": [1, 2]})
    found = [contender for point in study.points for contender in study.at(point).contenders]
    assert [c.matched["cache"] for c in found] == [(96, 96)] * 4
    assert [c.architecture.kv_heads for c in found] == [2, 4, 1, 2]


documents = st.lists(
    st.tuples(st.text("abc/", max_size=5), st.integers(1, 10**6)).map(
        lambda each: DocumentRecord(name=each[0], nats=1.0, tokens=3, bytes=each[1])
    ),
    min_size=MINIMUM_HELD_OUT,
    max_size=40,
)


@given(documents, st.randoms())
def test_halves_are_disjoint_whole_balanced_and_the_same_in_any_order(given_documents, draw):
    named = [d.model_copy(update={"name": f"{i} {d.name}"}) for i, d in enumerate(given_documents)]
    picking, rest = halves(named)
    assert picking
    assert rest
    assert {d.name for d in picking}.isdisjoint(d.name for d in rest)
    assert sorted(named, key=lambda d: named.index(d)) == sorted([*picking, *rest], key=lambda d: named.index(d))
    sizes = [sum(d.bytes for d in half) for half in (picking, rest)]
    assert abs(sizes[0] - sizes[1]) <= max(d.bytes for d in named)
    mixed = draw.sample(named, len(named))
    assert {d.name for d in halves(mixed)[0]} == {d.name for d in picking}


def test_a_record_is_whole_and_its_halves_say_what_their_documents_say():
    record = synthetic_record("QKV", bits_by_half(1.7, 2.3))
    assert picking_bits(record) == pytest.approx(1.7)
    half = reported(record)
    assert half.validation.bits_per_byte == pytest.approx(2.3)
    assert type(record).model_validate(half.model_dump()) == half  # its totals are those of its documents
    assert half.validation.bytes + sum(d.bytes for d in halves(record.documents)[0]) == record.validation.bytes


def test_the_other_seeds_are_planned_when_the_last_point_has_ended(swept):
    study, out = swept
    tries = planned_runs(study, out)
    assert [(run.label, run.seed, run.point[KEY]) for run in tries] == [
        (label, 4, rate) for rate in RATES for label in ("QKV", "K=V MQA")
    ]
    assert tries[1].folder.name == "K=V_MQA_seed4_learning_rate=0.001"
    assert study.run_count == 8
    for run in tries[:4]:
        finish(run, 2.0 + run.number / 10)
    finish(tries[4], 2.05)
    assert [run.number for run in planned_runs(study, out)] == [1, 2, 3, 4, 5, 6, 7]
    assert str(planned_runs(study, out)[-1]) == "QKV, seed 7, learning_rate 0.01"
    assert collect_results(out).unfinished == 1 + 1 + 1  # a point of K=V MQA, and the second seed of both
    finish(tries[5], 2.9)
    last = planned_runs(study, out)[-1]
    assert (str(last), last.number) == ("K=V MQA, seed 7, learning_rate 0.001", 8)


def test_the_pick_follows_the_picking_documents_and_reverses_with_them(swept):
    study, out = swept
    good, bad, worst = (1.9, 2.5), (2.2, 2.1), (2.7, 1.5)  # what picks worst would look best
    finish_tries(study, out, {"QKV": [bad, good, worst], "K=V MQA": [good, bad, worst]})
    results = collect_results(out)
    assert {run.label: run.point[KEY] for run in results.runs} == {"QKV": 0.003, "K=V MQA": 0.001}
    finish_tries(study, out, {"QKV": [good, bad, worst], "K=V MQA": [bad, good, worst]})
    results = collect_results(out)
    assert {run.label: run.point[KEY] for run in results.runs} == {"QKV": 0.001, "K=V MQA": 0.003}
    for entry in results.summary:
        assert entry.bits_per_byte.mean == pytest.approx(2.5)
    assert sorted(one.bits_per_byte for one in results.sweep if one.chosen) == pytest.approx([1.9, 1.9])
    assert len(results.sweep) == 6
    assert results.summary[1].difference_to_baseline.samples < len(synthetic_record("QKV", 2.0).documents)


def test_nothing_reported_depends_on_how_far_the_pick_won(swept):
    study, out = swept
    shown = []
    for won in (1.9, 1.2):
        finish_tries(study, out, {label: [(won, 2.5), (2.2, 2.1), (2.7, 1.5)] for label in ("QKV", "K=V MQA")})
        results = collect_results(out)
        shown.append((results.summary, results.comparisons, [run.validation for run in results.runs]))
    assert shown[0] == shown[1]


def test_a_point_that_diverged_is_lost_and_a_variant_without_any_is_told(swept):
    study, out = swept
    first, second = courses(study, out)
    for run, level in zip(first.tries[:2], (2.2, 2.1), strict=True):
        finish(run, level)
    for run in (first.tries[2], *second.tries):
        diverge(run)
    assert [str(run) for run in planned_runs(study, out)[6:]] == ["QKV, seed 7, learning_rate 0.003"]
    results = collect_results(out)
    assert [(one.label, one.diverged, one.chosen) for one in results.sweep] == [
        *(("QKV", diverged, chosen) for diverged, chosen in ((False, False), (False, True), (True, False))),
        *[("K=V MQA", True, False)] * 3,
    ]
    assert [(f.label, f.seed, f.reason.partition(";")[0]) for f in results.diverged] == [
        ("K=V MQA", 4, "at every point of the sweep")
    ]
    assert (results.unfinished, results.total) == (1, 3)
    assert at_the_edge(results.sweep) == []  # beyond 0.003 lies what diverged


def test_no_result_before_a_variant_was_tried_everywhere(swept):
    study, out = swept
    finish(planned_runs(study, out)[0], 2.0)
    with pytest.raises(ValueError, match="no variant was tried at every point of the sweep yet"):
        collect_results(out)


def tried(value, chosen, bits=2.0, key=KEY):
    return Tried(variant="QKV", point={key: value}, seed=0, bits_per_byte=bits, chosen=chosen)


@pytest.mark.parametrize(
    ("chosen", "edge"), [(0.001, ["learning_rate 0.001"]), (0.003, []), (0.01, ["learning_rate 0.01"])]
)
def test_a_choice_at_the_edge_is_told(chosen, edge):
    assert [value for _, value in at_the_edge([tried(rate, rate == chosen) for rate in RATES])] == edge


def test_where_nothing_lies_beyond_there_is_no_edge():
    assert at_the_edge([tried(value, value == 0, key="training.weight_decay") for value in (0, 1)]) == []
    assert at_the_edge([tried(True, True, key="model.tied"), tried(False, False, key="model.tied")]) == []
    assert at_the_edge([tried(0.01, True), tried(0.1, False, bits=None)]) == [("QKV", "learning_rate 0.01")]


@pytest.fixture
def invented(monkeypatch):
    """Runs are not trained but get a score that their learning rate decides."""

    def score(run, study):
        assert study.training.learning_rate == run.point.get(KEY, 0.003)
        return 2.0 + abs(study.training.learning_rate - 0.003)

    invent_runs(monkeypatch, score)


def test_a_sweep_is_made_in_two_steps_and_goes_on_where_it_was(texts, tmp_path, invented):
    study, out, made = spec(texts, seeds=[4, 7], **SWEEP), tmp_path / "out", []

    def stop_at(number):
        def look(run):
            if len(made) == number:
                raise KeyboardInterrupt
            made.append((run.label, run.seed, run.point[KEY]))

        return look

    for number in (3, 7):  # within the sweep, and after it
        with pytest.raises(KeyboardInterrupt):
            make(study, out, at_step=stop_at(number))
    make(study, out, at_step=stop_at(-1))
    tries = [(label, 4, rate) for rate in RATES for label in ("QKV", "K=V MQA")]
    assert made == [*tries, ("QKV", 7, 0.003), ("K=V MQA", 7, 0.003)]
    before = files(out / "runs")
    assert make(study, out) == []
    assert files(out / "runs") == before


def test_two_runners_share_a_sweep(texts, tmp_path, invented):
    study, out = spec(texts, seeds=[4, 7, 9], **SWEEP), tmp_path / "out"
    make(study.model_copy(update={"variants": ("QKV",)}), out)
    fork = multiprocessing.get_context("fork")
    both, made = fork.Barrier(2), fork.SimpleQueue()

    def look(run):
        if run.number <= 6 and not made_here:
            both.wait(30)  # until the other has one too
        made_here.append(run)
        made.put(str(run))

    made_here = []
    runners = [fork.Process(target=make, args=(study, out, look)) for _ in range(2)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join(60)
        assert runner.exitcode == 0
    lines = [made.get() for _ in range(5)]
    assert made.empty()
    tries = [f"K=V MQA, seed 4, learning_rate {rate:g}" for rate in RATES]
    assert sorted(lines) == [*tries, *(f"K=V MQA, seed {seed}, learning_rate 0.003" for seed in (7, 9))]
    assert all(run.finished for run in planned_runs(study, out))
    assert len(planned_runs(study, out)) == study.run_count == 10


def test_the_last_try_of_another_process_is_waited_for(texts, tmp_path, invented):
    study, out = spec(texts, seeds=[4, 7], variants=["QKV"], **SWEEP), tmp_path / "out"
    last = planned_runs(study, out)[-1]
    claim = claimed(last)
    run_study(study.model_copy(update={"variants": ("K=V",)}), out, COMMAND, Watched())
    assert claim.__enter__() is True
    seen = []

    def look(run):
        seen.append(run.point[KEY])
        if len(seen) == 2:
            finish(last, 1.0)
            claim.__exit__(None, None, None)

    assert make(study, out, at_step=look) == [("QKV", 4)] * 2 + [("QKV", 7)]
    assert seen == [0.001, 0.003, 0.01]


def test_points_may_be_added_and_another_sweep_is_refused(texts, tmp_path, invented):
    study, out = spec(texts, **SWEEP), tmp_path / "out"
    make(study, out)
    before = files(out / "runs")
    assert make(spec(texts, sweep={KEY: [*RATES, 0.002]}), out) == [("QKV", 0), ("K=V MQA", 0)]
    after = files(out / "runs")
    assert all(after[name] == file for name, file in before.items())
    assert make(spec(texts, sweep={KEY: [0.01, 0.001]}), out) == []
    assert {run.point[KEY] for run in collect_results(out).runs} == {0.001}
    for changes, difference in (
        ({"sweep": {"training.batch": [1, 2]}}, "sweep is training.learning_rate there and training.batch here"),
        ({}, "sweep is training.learning_rate there and not given here"),
        ({**SWEEP, "tokens": 5}, "tokens is 1221 there and 5 here"),
    ):
        with pytest.raises(ValueError, match="holds runs of other settings") as raised:
            make(spec(texts, **changes), out)
        assert difference in str(raised.value)


def test_one_held_out_document_cannot_both_pick_and_report(texts, tmp_path, invented):
    with pytest.raises(ValueError, match="needs at least 2 held-out documents, one to pick by and one to report"):
        make(spec(texts, data={"source": str(texts), "context": 37, "held_out": 1e-5}, **SWEEP), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_real_sweep_reports_what_an_ordinary_study_at_its_best_point_makes(texts, tmp_path):
    out = tmp_path / "out"
    study = spec(texts, variants=["K=V MQA"], seeds=[0, 3], sweep={KEY: [1e-6, 3e-3]})
    assert make(study, out) == [("K=V MQA", 0)] * 2 + [("K=V MQA", 3)]
    results = collect_results(out)
    assert [(run.seed, run.point) for run in results.runs] == [(0, {KEY: 0.003}), (3, {KEY: 0.003})]
    alone = spec(texts, variants=["K=V MQA"], training={"batch": BATCH, "learning_rate": 0.003})
    make(alone, tmp_path / "alone")
    (own,), swept_runs = planned_runs(alone, tmp_path / "alone"), planned_runs(study, out)
    twin = next(run for run in swept_runs if run.seed == 0 and run.point[KEY] == 0.003)
    weights = [(run.folder / "model/model.safetensors").read_bytes() for run in (twin, own)]
    assert weights[0] == weights[1]
    records = [read_record(run.folder / "record.json") for run in (twin, own)]
    assert records[0].validation == records[1].validation
    assert results.runs[0].validation == reported(records[0]).validation != records[0].validation
    assert records[0].configuration["training"]["learning_rate"] == 0.003
    assert "point_training.learning_rate" in (out / "results.csv").read_text().splitlines()[0]
    kept = json.loads((out / "results.json").read_text())["sweep"]
    assert [(one["point"], one["chosen"]) for one in kept] == [({KEY: 1e-6}, False), ({KEY: 0.003}, True)]
