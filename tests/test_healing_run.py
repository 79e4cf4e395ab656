"""Healing from end to end: what it improves, what it leaves alone, and that interruptions change nothing."""

import json

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from small_healing import (
    BATCH,
    CONTEXT,
    HOW,
    STEPS,
    KilledError,
    Silent,
    healing_texts,
    job,
    settings,
    student,
    teacher,
    watching,
)
from twofold.data.byte_tokens import VOCABULARY
from twofold.data.tokenizer import BYTES
from twofold.healing.control import Control
from twofold.healing.heal import heal
from twofold.healing.objective import Distillation, cross_entropy
from twofold.healing.record import read_heal_record
from twofold.healing.texts import HealingTexts
from twofold.healing.training import EVALUATIONS_FILE, train_on
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.load import load_model
from twofold.study.record import SETTINGS_FILE
from twofold.training.metrics import read_metrics
from twofold.training.run import train

LORA = {"lora": 2, "training": HOW.model_copy(update={"learning_rate": 1e-2})}


@pytest.fixture(scope="module")
def healed(tmp_path_factory):
    """A folder with a healing and its record."""
    folder = tmp_path_factory.mktemp("healing")
    return folder, heal(job(folder), watching())


def weights(model: TwofoldForCausalLM):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def without_times(folder):
    lines = [json.loads(line) for line in (folder / EVALUATIONS_FILE).read_text().splitlines()]
    found = [(one["tokens"], one["loss"]) for one in lines]
    return found, [step._replace(seconds=0) for step in read_metrics(folder)]


def test_the_student_comes_nearer_to_its_teacher(healed):
    folder, record = healed
    curve = [point.loss for point in record.training.curve]
    assert curve[-1] < 0.9 * curve[0]
    assert record.training.steps == len(curve) == STEPS
    assert record == read_heal_record(folder / "healed")
    saved = load_model(folder / "healed")
    texts = healing_texts(folder)
    inputs = {name: torch.stack([texts.windows[n][name] for n in range(4)]) for name in ("input_ids", "shift_labels")}
    distance = Distillation(teacher())
    assert distance(saved, inputs) < 0.9 * distance(student(), inputs)


def test_what_does_not_learn_keeps_its_bits(healed):
    folder, _ = healed
    before, after = student().state_dict(), load_model(folder / "healed").state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if ".attention." in name}


def test_evaluations_begin_at_the_given_models_and_end_with_the_last(healed):
    _, record = healed
    tokens = BATCH * CONTEXT
    between = range(tokens, STEPS * tokens + 1, tokens)
    for trained in (record.training, record.control.training):
        assert [one.tokens for one in trained.evaluations] == [0, *between]
        assert trained.best.loss == min(one.loss for one in trained.evaluations)
    assert record.text.sampled_tokens >= 311 * 0.9


def test_an_interruption_changes_nothing(tmp_path, healed):
    folder, _ = healed
    for stop in (3, 5):
        with pytest.raises(KilledError):
            heal(job(tmp_path, control=False), watching(healing=stop))
    watch = watching()
    record = heal(job(tmp_path, control=False), watch)
    assert watch.watchers["healing"].said == [f"goes on after step 4 of {STEPS}"]
    first, second = (load_model(each / "healed").state_dict() for each in (folder, tmp_path))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert without_times(folder / "healed") == without_times(tmp_path / "healed")
    assert record.control is None
    assert "perplexity_healed_to_control" not in record.ratios


def test_adapters_go_on_as_well(tmp_path):
    whole = job(tmp_path, "whole", control=False, **LORA)
    heal(whole, watching())
    with pytest.raises(KilledError):
        heal(job(tmp_path, "parts", control=False, **LORA), watching(healing=4))
    parts = job(tmp_path, "parts", control=False, **LORA)
    record = heal(parts, watching())
    assert record.training.trained < record.training.parameters / 10
    assert record.packages["peft"]
    before, one, other = weights(student()), whole.model.state_dict(), load_model(tmp_path / "parts").state_dict()
    assert list(one) == list(before)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert {name for name in one if not torch.equal(before[name], one[name])} == {
        name for name in one if "_proj" in name and "mlp" not in name
    }


def test_a_control_serves_every_conversion_of_its_teacher(tmp_path, healed):
    folder, first = healed
    watch = watching()
    record = heal(job(folder, "other", student(seed=2), temperature=2.0), watch)
    assert "control" not in watch.watchers
    assert record.control_was_there
    assert not first.control_was_there
    assert record.control == first.control
    assert record.healed != first.healed
    assert record.before == first.before
    for others, is_there in (
        ({"train": "all"}, False),
        ({"control_lr": 1e-4}, False),
        ({"control_lr": HOW.learning_rate, "layer_loss": 0.5}, True),
        ({"training": HOW.model_copy(update={"learning_rate": 1e-4})}, False),
        ({"training": HOW.model_copy(update={"learning_rate": 1e-4}), "control_lr": HOW.learning_rate}, True),
    ):
        third = job(folder, "third", **others)
        control = Control(third.teacher, third.texts, third.settings, third.controls)
        assert (control.found() is not None) == is_there
        assert control.settings.training.learning_rate == (
            third.settings.control_lr or third.settings.training.learning_rate
        )


def test_a_control_goes_on_where_it_was_interrupted(tmp_path, healed):
    _, whole = healed
    with pytest.raises(KilledError):
        heal(job(tmp_path), watching(control=4))
    watch = watching()
    record = heal(job(tmp_path), watch)
    assert watch.watchers["healing"].steps == []
    assert watch.watchers["control"].said == [f"goes on after step 3 of {STEPS}"]
    assert record.control.after == whole.control.after
    assert record.healed == whole.healed


def test_the_control_is_training_on_the_text_and_nothing_else(tmp_path):
    steps = 3
    chosen = settings(train="all", tokens=steps * BATCH * CONTEXT)
    texts = healing_texts(tmp_path, chosen)
    one, other = teacher(), teacher()
    train_on(one, cross_entropy, texts, chosen, tmp_path / "one", Silent())
    train(other, texts.windows, chosen.training, steps=steps, length=CONTEXT, seed=0, folder=tmp_path / "other")
    for name, tensor in other.state_dict().items():
        torch.testing.assert_close(one.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)
    assert not torch.equal(one.lm_head.weight, teacher().lm_head.weight)


def test_batches_of_a_step_are_added_up(tmp_path):
    """Three windows at once, or one after another: the same step."""
    made = []
    for batch, accumulation in ((3, 1), (1, 3)):
        how = HOW.model_copy(update={"batch": batch, "accumulation": accumulation})
        model, chosen = student().double(), settings(training=how, tokens=2 * BATCH * CONTEXT)
        loss = Distillation(teacher().double())
        train_on(model, loss, healing_texts(tmp_path), chosen, tmp_path / f"{batch}", Silent())
        made.append(model.state_dict())
    torch.testing.assert_close(*made, rtol=1e-6, atol=1e-9)


def test_another_healing_s_folder_is_refused(tmp_path, healed):
    folder, _ = healed
    with pytest.raises(ValueError, match="no interrupted healing"):
        heal(job(folder), watching())
    with pytest.raises(KilledError):
        heal(job(tmp_path), watching(healing=2))
    for other in (job(tmp_path, layer_loss=0.5), job(tmp_path, model=student(seed=2))):
        with pytest.raises(ValueError, match="no interrupted healing"):
            heal(other, watching())
    (tmp_path / "healed" / SETTINGS_FILE).unlink()
    with pytest.raises(ValueError, match="no interrupted healing"):
        heal(job(tmp_path), watching())


def test_vocabularies_must_be_equal(tmp_path):
    other = job(tmp_path).__dict__ | {"model": student()}
    other["model"].config.vocab_size = 300
    with pytest.raises(ValueError, match="300 tokens and the teacher 257"):
        type(job(tmp_path))(**other)


def test_a_teacher_that_makes_no_control_may_only_teach(tmp_path):
    whole = job(tmp_path, control=False)
    other = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=12, n_layer=1, n_head=2, n_positions=CONTEXT))
    fields = whole.__dict__ | {"teacher": other}
    assert heal(type(whole)(**fields), watching()).before.variant == "gpt2"
    with pytest.raises(ValueError, match="--no-control"):
        type(whole)(**fields | {"settings": settings()})


def test_a_text_on_both_sides_is_refused(tmp_path):
    source = str(healing_texts(tmp_path).record.sources[0])
    with pytest.raises(ValueError, match="11 of 11 held-out documents are trained on"):
        HealingTexts.read([source], source, BYTES, settings())
