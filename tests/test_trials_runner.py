"""Runs of a study of tasks: what is made, what is left alone, when the test set is read, how runs go on."""

import shutil

import pytest
import torch
from safetensors.torch import load_file

from tiny_trials import RECALL, REVERSE, make, spec
from twofold.evaluation.task_score import score_task
from twofold.study.record import RECORD_FILE
from twofold.trials.build import build
from twofold.trials.collection import collect_trials
from twofold.trials.plan import holds_tasks, places_of, runs_of
from twofold.trials.record import TEST_FILE, read_test, read_trial_record
from twofold.variants.layout import cache_bytes

SWEPT = {"sweep": {"training.learning_rate": [1e-3, 1e-2]}}


def runs(study, out):
    return [run for _, run in runs_of(places_of(study, out))]


def weights(run):
    return load_file(run.folder / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("trials") / "study"
    study = spec(tasks=[REVERSE, RECALL], **SWEPT)
    return study, out, make(study, out)


def test_every_run_is_made_once_and_then_left_alone(finished, tmp_path):
    study, out, watching = finished
    assert len(watching.made) == study.run_count == len(runs(study, out))
    copy = shutil.copytree(out, tmp_path / "copy")
    again = make(study, copy)
    assert again.made == again.tested == []


def test_only_runs_that_are_reported_read_the_test_set(finished):
    study, out, watching = finished
    tested = {run.folder for run in runs(study, out) if (run.folder / TEST_FILE).exists()}
    reported = [one for task in collect_trials(out).tasks for one in task.runs]
    assert len(tested) == len(watching.tested) == len(reported) == 2 * 2 * 2
    assert all(one.test for one in reported)
    tries = [run for run in runs(study, out) if run.seed == 0]
    assert len(tries) == 8  # two tasks, two variants, two points, half of which are chosen
    assert sum(run.folder in tested for run in tries) == 4


def test_the_best_point_is_the_one_with_the_best_validation_score(finished):
    _study, out, _ = finished
    for task in collect_trials(out).tasks:
        for label in {one.label for one in task.sweep}:
            tried = [one for one in task.sweep if one.label == label]
            (chosen,) = (one for one in tried if one.chosen)
            assert chosen.score == max(one.score for one in tried)
            assert all(one.point == chosen.point for one in task.runs if one.label == label)


def test_scores_are_those_of_the_saved_model(finished):
    study, out, _ = finished
    for trial, run in runs_of(places_of(study, out)):
        data = trial.task.load()
        model = build(run.contender, data.form)
        model.load_state_dict(weights(run), strict=False)
        record = read_trial_record(run.folder / RECORD_FILE)
        again = score_task(model, data.form, data.validation, part_names=data.part_names)
        assert record.validation.score == again.score
        assert record.validation.loss == pytest.approx(again.loss, rel=1e-6)
        assert record.parameters["total"] == sum(p.numel() for p in model.parameters())
        test = read_test(run.folder)
        if test:
            assert test.score == score_task(model, data.form, data.test).score


def test_a_decoder_s_cache_is_measured_and_an_encoder_has_none(finished):
    study, out, _ = finished
    for trial, run in runs_of(places_of(study, out)):
        cache = read_trial_record(run.folder / RECORD_FILE).cache
        if not trial.task.form.causal:
            assert cache is None
            continue
        sizes = run.contender.architecture(trial.task.form)
        formula = cache_bytes(sizes.row_layout, sizes.kv_heads, tokens=cache.tokens, itemsize=4, layers=1)
        assert cache.bytes_used == cache.bytes_formula == formula


def test_looks_are_taken_evenly_and_the_last_is_of_the_last_step(finished):
    study, out, _ = finished
    record = read_trial_record(runs(study, out)[0].folder / RECORD_FILE)
    assert [look.step for look in record.looks] == [3, 5, 7]


def test_a_run_that_was_interrupted_ends_as_if_nothing_had_happened(finished, tmp_path):
    study, whole, _ = finished
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        make(study, out, stop_at=6)
    watching = make(study, out)
    assert any("goes on after step" in message for message in watching.said)
    for theirs, ours in zip(runs(study, whole), runs(study, out), strict=True):
        for (name, one), other in zip(weights(theirs).items(), weights(ours).values(), strict=True):
            assert torch.equal(one, other), name
        before, after = (read_trial_record(run.folder / RECORD_FILE) for run in (theirs, ours))
        assert (before.looks, before.curve, before.validation) == (after.looks, after.curve, after.validation)


def test_a_run_ends_once_a_look_reaches_what_is_enough(tmp_path):
    study = spec(variants=["QKV"], seeds=[0], until=0.01)
    make(study, tmp_path / "out")
    (run,) = runs(study, tmp_path / "out")
    record = read_trial_record(run.folder / RECORD_FILE)
    assert [look.step for look in record.looks] == [3]
    assert record.curve[-1].tokens == 3 * 5 * 7


def test_a_variant_a_task_and_a_seed_may_be_added(finished, tmp_path):
    _study, out, _ = finished
    copy = shutil.copytree(out, tmp_path / "copy")
    more = spec(tasks=[REVERSE | {"variants": ["QKV", "Q=K +", "K=V"]}, RECALL, "copy"], seeds=[0, 1, 2], **SWEPT)
    watching = make(more.model_copy(update={"tasks": more.tasks[:2]}), copy)
    assert ("reverse", "K=V", 0) in watching.made
    assert ("reverse", "QKV", 2) in watching.made
    assert ("reverse", "QKV", 0) not in watching.made


@pytest.mark.parametrize(
    "changes",
    [{"steps": 8}, {"training": {"batch": 6, "checkpoints": 3}}, {"model": {"layers": 1, "width": 12, "heads": 2}}],
)
def test_other_settings_are_refused_and_nothing_is_lost(finished, tmp_path, changes):
    _, out, _ = finished
    copy = shutil.copytree(out, tmp_path / "copy")
    before = {path: path.read_bytes() for path in copy.rglob("*.json")}
    with pytest.raises(ValueError, match="holds runs of other settings, on reverse"):
        make(spec(tasks=[REVERSE, RECALL], **SWEPT, **changes), copy)
    assert before == {path: path.read_bytes() for path in copy.rglob("*.json")}


def test_a_folder_with_something_else_is_refused(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="holds no study"):
        make(spec(), tmp_path)
    assert not holds_tasks(tmp_path)


def test_a_model_that_cannot_be_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="reverse, QKV linear"):
        make(spec(variants=["QKV", "linear"]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_source_that_is_missing_is_told_before_anything_is_written_whichever_task_needs_it(tmp_path):
    images = {"task": "images", "source": "mnist:/nowhere", "model": {"patch": 7}}
    with pytest.raises(ValueError, match="/nowhere"):
        make(spec(tasks=[REVERSE, images]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_that_diverges_is_left_out_and_the_others_are_made(tmp_path):
    wild = spec(sweep={"training.learning_rate": [1e-3, 1e38]}, variants=["QKV"])
    watching = make(wild, tmp_path / "out")
    assert any("diverged" in message for message in watching.said)
    (task,) = collect_trials(tmp_path / "out").tasks
    assert [one.score is None for one in task.sweep] == [False, True]
    assert len(task.runs) == 2
