"""The paper's own studies: their settings are those published, and smaller by a few keys alone they train."""

import pytest

from tiny_study import make as make_text
from tiny_trials import make as make_tasks
from twofold.models.presets import architecture
from twofold.study.plan import planned_runs
from twofold.study.record import RECORD_FILE, read_record
from twofold.trials.collection import collect_trials
from twofold.trials.load import load_any_study

SMALLER = ["model.layers=1", "model.width=32", "training.batch=4", "training.accumulation=1"]
HERE = ["data.streaming=false", "data.held_out_split=null", "data.held_out_documents=null", "data.tokenizer=bytes"]


@pytest.mark.parametrize(("name", "rate", "steps"), [("paper-300m", 2e-4, 500), ("paper-1.2b", 6e-5, 1000)])
def test_language_models_have_the_published_settings(name, rate, steps):
    study = load_any_study(name)
    training = study.training
    assert (training.learning_rate, training.minimum, training.beta1, training.beta2) == (rate, 0.1, 0.9, 0.95)
    assert (training.weight_decay, training.clip) == (0.1, 1.0)
    of_run = training.steps(study.tokens, study.data.context)
    assert round(training.warmup * of_run) == pytest.approx(steps, rel=0.02)
    size = study.contenders[0].architecture
    published = architecture({"paper-300m": "300M", "paper-1.2b": "1.2B"}[name], variant="QKV", initial_deviation=0.02)
    assert size == published


@pytest.mark.parametrize("name", ["paper-300m", "paper-1.2b"])
def test_language_models_made_smaller_train_on_real_text(name, texts, tmp_path):
    changes = [*SMALLER, *HERE, "data.context=32", "tokens=8000", f"data.source={texts}", "data.held_out=0.2"]
    study = load_any_study(name, [*changes, "variants=[QKV, K=V]", "training.precision=float32", "sample.tokens=2"])
    make_text(study, tmp_path / "out")
    for run in planned_runs(study, tmp_path / "out"):
        losses = [point.loss for point in read_record(run.folder / RECORD_FILE).curve]
        assert sum(losses[-5:]) < sum(losses[:5])  # at the published rate, which is meant for far more steps


def test_sequence_tasks_made_smaller_train(tmp_path):
    changes = [*SMALLER, "steps=60", "tasks.0.length=8", "looks=2", "variants=[QKV, Q=K=V +]", "seeds=[0]"]
    study = load_any_study("paper-synthetic", [change for change in changes if "accumulation" not in change])
    study = study.model_copy(update={"tasks": study.tasks[:1]})
    make_tasks(study, tmp_path / "out")
    (task,) = collect_trials(tmp_path / "out").tasks
    for run in task.runs:
        losses = [point.loss for point in run.curve]
        assert sum(losses[-5:]) < 0.97 * sum(losses[:5])
