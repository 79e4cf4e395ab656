"""What must not happen to a table: other data, other settings, a test set read too early, runs that are not counted."""

import json
import shutil

import numpy as np
import pytest

from synthetic_trials import synthetic_run
from tiny_trials import RECALL, REVERSE, make, spec
from twofold.evaluation.task_score import TaskScore
from twofold.models.load import load_model
from twofold.study.record import RECORD_FILE
from twofold.study.settings import apply_settings
from twofold.tasks.batches import some
from twofold.tasks.images import ImagesTask
from twofold.tasks.recall import RecallTask
from twofold.tasks.task import IGNORED, Examples
from twofold.training.task_set import LookOften
from twofold.trials import execute
from twofold.trials.collection import collect_trials
from twofold.trials.load import load_any_study
from twofold.trials.plan import is_of_tasks, places_of, runs_of
from twofold.trials.published import published_score
from twofold.trials.record import TEST_FILE, is_of_a_task, read_trial_record
from twofold.trials.results import TaskResults, summarise
from twofold.trials.trial import Trial

ONE = {"variants": ["QKV"], "seeds": [0, 1]}


def runs(study, out):
    return [run for _, run in runs_of(places_of(study, out))]


def letters(folder, count=13):
    """Two classes of small files."""
    draw = np.random.default_rng(0)
    for label in ("ant", "bee"):
        (folder / label).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            (folder / label / f"{index}.txt").write_text(label + "".join(draw.choice(list("abc"), 5)) + str(index))
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("faults") / "out"
    study = spec(tasks=[REVERSE, "copy"], **ONE, steps=4, looks=2)
    study = study.model_copy(update={"tasks": spec(tasks=[REVERSE, REVERSE | {"task": "copy"}]).tasks})
    make(study, out)
    return study, out


def test_runs_on_files_that_changed_are_not_mixed_with_others(tmp_path):
    files = letters(tmp_path / "letters")
    study = spec(tasks=[{"task": "files", "folder": str(files), "length": 9, "validation": 0.2, "test": 0.2}], **ONE)
    make(study, tmp_path / "out")
    letters(files, count=19)
    for path in (tmp_path / "out").rglob(TEST_FILE):
        path.unlink()
    with pytest.raises(ValueError, match="the examples of files are not those"):
        make(study, tmp_path / "out")
    assert not list((tmp_path / "out").rglob(TEST_FILE))


def test_settings_are_those_of_the_runs_also_where_the_study_forgot_them(finished, tmp_path):
    study, out = finished
    copy = shutil.copytree(out, tmp_path / "copy")
    make(study.model_copy(update={"tasks": study.tasks[:1]}), copy)  # the study in the folder is of reverse alone now
    other = study.model_copy(update={"steps": 5})
    with pytest.raises(ValueError, match="on reverse: steps is 4 there and 5 here"):
        make(other, copy)
    with pytest.raises(ValueError, match="on copy: steps is 4 there and 5 here"):
        make(other.model_copy(update={"tasks": other.tasks[1:]}), copy)


def test_what_diverged_is_made_again_with_other_settings(tmp_path):
    wild = spec(**ONE, training={"batch": 5, "learning_rate": 1e38})
    make(wild, tmp_path / "out")
    (task,) = collect_trials(tmp_path / "out").tasks
    assert (len(task.runs), len(task.diverged)) == (0, 2)
    tame = spec(**ONE, training={"batch": 5, "learning_rate": 1e-3})
    make(tame, tmp_path / "out")
    (task,) = collect_trials(tmp_path / "out").tasks
    assert (len(task.runs), len(task.diverged)) == (2, 0)


def test_a_loss_that_is_no_number_ends_the_run_and_not_the_study(tmp_path, monkeypatch):
    monkeypatch.setattr(execute, "score_task", lambda *_, **__: TaskScore(0.1, 0.1, float("nan"), 3, 3))
    monkeypatch.setattr(execute, "_look", lambda *_: {"score": 0.0, "parts": {}})
    watching = make(spec(**ONE), tmp_path / "out")
    assert sum("diverged" in message for message in watching.said) == 2


def test_what_is_missing_is_counted(finished, tmp_path):
    study, out = finished
    copy = shutil.copytree(out, tmp_path / "copy")
    first, *_ = runs(study, copy)
    (first.folder / TEST_FILE).unlink()
    shutil.rmtree(copy / "copy")
    reverse, other = collect_trials(copy).tasks
    assert (reverse.unfinished, len([run for run in reverse.runs if run.test])) == (1, 1)
    assert (other.unfinished, other.summary) == (2, ())
    make(study, copy)
    assert [task.unfinished for task in collect_trials(copy).tasks] == [0, 0]


def test_runs_that_read_the_test_set_before_the_sweep_grew_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(Trial, "picking_loss", lambda trial, folder: (-float(folder.name.rpartition("=")[2]),))
    rates = [0.001, 0.002]
    make(spec(**ONE, sweep={"training.learning_rate": rates}), tmp_path / "out")
    assert collect_trials(tmp_path / "out").tasks[0].further_tests == 0
    make(spec(**ONE, sweep={"training.learning_rate": [*rates, 0.003]}), tmp_path / "out")
    (task,) = collect_trials(tmp_path / "out").tasks
    assert [one.chosen for one in task.sweep] == [False, False, True]
    assert (len(task.runs), task.further_tests) == (2, 2)


def test_looks_survive_an_interruption_after_the_last_step(tmp_path, monkeypatch):
    study = spec(**ONE | {"seeds": [0]})
    monkeypatch.setattr(execute, "save_model", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        make(study, tmp_path / "out")
    monkeypatch.undo()
    make(study, tmp_path / "out")
    (run,) = runs(study, tmp_path / "out")
    assert [look.step for look in read_trial_record(run.folder / RECORD_FILE).looks] == [3, 5, 7]


def test_a_look_that_was_enough_still_is_when_the_run_goes_on(tmp_path):
    looking = LookOften(tmp_path, 2, lambda model: {"score": 0.9}, until=0.9)
    (tmp_path / "looks.jsonl").write_text(json.dumps({"step": 4, "score": 0.95}) + "\n")
    assert looking.ended(4)
    assert not looking.ended(3)
    assert not LookOften(tmp_path, 2, lambda model: {}, until=None).ended(4)


def test_what_ended_early_is_not_told_apart_by_its_score():
    found = [synthetic_run("QKV", 0.9951 + seed / 1e5, seed) for seed in range(3)]
    found += [synthetic_run("K=V", 0.9999, seed) for seed in range(3)]
    summary = summarise(found, "QKV", ("QKV", "K=V"), lambda label: None)
    assert summary[1].to_baseline.separable
    told = {"name": "a", "task": {}, "metric": "accuracy", "chance": 0.1, "deciding_part": None, "baseline": "QKV"}
    told |= {"threshold": 0.99, "solved": True, "steps": 9, "answers": 9, "summary": summary, "runs": tuple(found)}
    assert TaskResults(**told).told_apart(summary[1])
    assert not TaskResults(**told, until=0.995).told_apart(summary[1])
    assert TaskResults(**told | {"threshold": 0.999}, until=0.995).told_apart(summary[1])


def test_chance_at_recall_is_a_guess_among_the_values_shown():
    for questions in ("throughout", "once"):
        task = RecallTask(pairs=(2, 5), length=17, questions=questions, training=10, validation=10, test=400)
        test = task.load().test
        asked = (test.labels != IGNORED).sum(axis=1)
        pairs = np.array(task.pairs)[test.parts]
        assert task.chance == pytest.approx((asked / pairs).sum() / asked.sum(), rel=1e-9)


def test_looks_are_taken_all_over_and_always_at_the_same_examples():
    examples = Examples(np.arange(700)[:, None], np.repeat(np.arange(7), 100), np.arange(700))
    taken = some(examples, 70)
    assert set(taken.labels) == set(range(7))
    assert (taken.inputs[:, 0] // 100 == taken.labels).all()
    np.testing.assert_array_equal(taken.parts, some(examples, 70).parts)
    assert some(examples, 700) is examples


def test_training_keeps_its_defaults_where_one_is_given():
    training = spec(training={"batch": 7}).trials[0].training
    assert (training.batch, training.learning_rate, training.checkpoints) == (7, 1e-3, 1)


def test_a_task_may_switch_off_the_study_s_sweep_and_its_end():
    entries = [REVERSE, REVERSE | {"name": "plain", "sweep": None, "until": None}]
    swept, plain = spec(tasks=entries, sweep={"training.learning_rate": [0.1, 0.2]}, until=0.9).trials
    assert (len(swept.points), swept.until) == (2, 0.9)
    assert (len(plain.points), plain.until) == (1, None)
    again = type(spec()).model_validate_json(spec(tasks=entries, until=0.9).model_dump_json())
    assert [trial.until for trial in again.trials] == [0.9, None]


def test_files_of_published_images_may_lie_anywhere():
    assert published_score("images", "mnist:/some/folder", "K=V") == 0.976
    assert ImagesTask(source="digits").solved == 0.95


def test_a_study_of_text_may_be_called_tasks(tmp_path):
    (tmp_path / "study.json").write_text('{"name": "tasks", "variants": ["QKV"]}')
    (tmp_path / "results.json").write_text("[")
    assert not is_of_tasks(tmp_path / "study.json")
    assert not is_of_tasks(tmp_path / "results.json")
    assert not is_of_tasks(tmp_path / "nothing.json")


def test_a_record_knows_whether_it_is_of_a_task(finished):
    study, out = finished
    folder = runs(study, out)[0].folder
    assert is_of_a_task(folder / RECORD_FILE)
    with pytest.raises(ValueError, match="holds an encoder"):
        load_model(folder)


def test_a_setting_reaches_one_place_alone():
    first = load_any_study("synthetic", ["tasks.0.variants.1=K=V MQA"])
    labels = [[one.label for one in trial.contenders] for trial in first.trials]
    assert labels[0][1] == "K=V MQA"
    assert labels[1][1] == "Q=K"
    shared = [1, 2]
    content = {"a": shared, "b": shared}
    apply_settings(content, ["a.0=9"])
    assert content == {"a": [9, 2], "b": [1, 2]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tasks": [REVERSE | {"model": {"layrs": 2}}]}, "unknown key 'layrs': did you mean 'layers'"),
        ({"tasks": [REVERSE | {"solved": 95}]}, "solved"),
        (
            {"tasks": [{"task": "anomaly", "model": {"positions": "learned"}}], "variants": ["QKV"]},
            "a set has no order",
        ),
        ({"tasks": ["anomaly"], "variants": ["QKV", "QKV +"]}, "a set has no order"),
        (
            {"tasks": [RECALL | {"model": RECALL["model"] | {"rotary": "none", "positions": 5}}]},
            "12 tokens, and the model has 5 learned positions",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(changes, said):
    with pytest.raises(ValueError, match=said):
        spec(**changes)


def test_terms_on_the_scores_are_not_decayed():
    from twofold.models.encoder_build import encoder_config, encoder_model
    from twofold.training.trainer import decayed_parameters

    sizes = {"reads": "tokens", "classes": 3, "vocabulary": 7, "length": 5, "hidden_size": 12}
    for variant in ("Q=K +", "Q=K +key-bias", "Q=K +relative", "Q=K +temperature"):
        named = decayed_parameters(encoder_model(encoder_config(variant, **sizes), "positions"))
        assert named
        assert not [name for name in named if "position_term" in name]
