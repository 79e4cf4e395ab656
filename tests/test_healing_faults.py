"""What goes wrong in a healing is told before it costs anything, and no interruption at any stage costs the result."""

import errno
import shutil
from contextlib import contextmanager

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from small_checkpoints import checkpoint
from small_healing import BATCH, CONTEXT, HOW, KilledError, job, settings, student, watching
from twofold.conversion.convert import convert_in
from twofold.data.byte_tokens import VOCABULARY
from twofold.data.tokenizer import BYTES
from twofold.healing import control, heal, training
from twofold.healing.heal import Healing
from twofold.healing.record import RECORD_FILE, read_heal_record
from twofold.healing.texts import HealingTexts
from twofold.models.load import load_model
from twofold.training.metrics import DivergedError

LORA = {"lora": 2, "training": HOW.model_copy(update={"learning_rate": 1e-2})}
SMALL = {"tokens": 2 * BATCH * CONTEXT, "sample": 60}


def changed(whole: Healing, **others) -> Healing:
    return Healing(**{**whole.__dict__, **others})


def llama(**sizes):
    return convert_in(checkpoint("llama", vocab_size=VOCABULARY, **sizes))


def gpt2(positions: int) -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=12, n_layer=1, n_head=2, n_positions=positions))


@contextmanager
def broken(monkeypatch, module, name: str, at: int, error: Exception, after: bool = False):
    """The `at`-th call of a function fails, before it has done its work or after it."""
    real, calls = getattr(module, name), []

    def failing(*given, **named):
        calls.append(name)
        made = real(*given, **named) if len(calls) != at or after else None
        if len(calls) == at:
            raise error
        return made

    with monkeypatch.context() as patch:
        patch.setattr(module, name, failing)
        yield


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"layer_loss": 0.5, "teacher": lambda: llama(num_hidden_layers=2)}, "has 3 layers and its teacher 2"),
        ({"layer_loss": 0.5, "teacher": lambda: llama(hidden_size=36)}, "has 24 dims of width and its teacher 36"),
        ({"control": False, "teacher": lambda: gpt2(16)}, "the teacher has 16 positions.*windows of 23.*--context 16"),
        ({"teacher": lambda: convert_in(checkpoint("gpt2", vocab_size=VOCABULARY, n_positions=16))}, "--context 16"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused_at_once(tmp_path, others, message):
    made = others.pop("teacher")()
    whole = job(tmp_path, **others)
    with pytest.raises(ValueError, match=message):
        changed(whole, teacher=made)


def test_rotary_models_read_any_context(tmp_path):
    changed(job(tmp_path), teacher=llama(max_position_embeddings=16))


def test_controls_need_a_folder(tmp_path):
    whole, file = job(tmp_path), tmp_path / "file"
    file.write_text("text")
    with pytest.raises(ValueError, match="file is no folder, which controls are kept in"):
        changed(whole, controls=file)
    changed(job(tmp_path, control=False), controls=file)


@pytest.mark.parametrize("name", ["model_name", "teacher_name", "command"])
def test_names_that_no_record_holds_are_refused_at_once(tmp_path, name):
    whole = job(tmp_path)
    with pytest.raises(ValueError, match=r"'a\\udcff' has bytes that are no UTF-8"):
        changed(whole, **{name: "a\udcff"})
    with pytest.raises(ValueError, match="no UTF-8"):
        changed(whole, out=tmp_path / "a\udcff")


def test_adapters_and_all_weights_exclude_each_other():
    with pytest.raises(ValueError, match="give one of the two"):
        settings(lora=2, train="all")


def test_samples_hold_whole_characters(tmp_path):
    """However small the sample: a cut through a character would leave documents without a byte."""
    source = tmp_path / "texts"
    source.mkdir()
    for number in range(30):
        (source / f"{number}.txt").write_text(chr(0x4E00 + number) * 9)
    texts = HealingTexts.read([str(source)], "0.3", BYTES, settings(sample=2, context=5))
    for document in texts.sample:
        assert document.content.decode()
        assert document.size == 3
    assert texts.record.sampled_tokens == 4 * len(texts.sample)


def test_losses_that_are_no_numbers_are_told(tmp_path):
    model = student()
    with torch.no_grad():
        model.model.layers[0].attention.projections.q_proj.weight[0, 0] = float("nan")
    with pytest.raises(DivergedError, match="the converted model: the held-out loss is nan"):
        heal.heal(job(tmp_path, "nan", model, control=False), watching())
    for rate, loss in ((1e30, "nan"), (300.0, r"\d+")):
        high = HOW.model_copy(update={"learning_rate": rate, "clip": 1e30})
        with pytest.raises(DivergedError, match=rf"loss.* is {loss}.*lower the learning rate"):
            heal.heal(job(tmp_path, f"{rate}", control=False, train="all", training=high), watching())


def test_a_control_that_diverged_may_be_another_or_none(tmp_path):
    with pytest.raises(DivergedError):
        heal.heal(job(tmp_path, control_lr=1e30, **SMALL), watching())
    shutil.copytree(tmp_path / "healed", tmp_path / "again")
    for out, others in (("healed", {"control_lr": 1e-4}), ("again", {"control": False})):
        watch = watching()
        record = heal.heal(job(tmp_path, out, **others, **SMALL), watch)
        assert watch.watchers["healing"].steps == []
        assert (record.control is None) == ("control" in others)
        assert record.settings["control_lr"] == others.get("control_lr", 0)


STAGES = (
    (heal, "measure", 1),
    (heal, "measure", 2),
    (training, "train", 1),
    (heal, "measure", 1),
    (heal, "save_model", 1),
    (training, "train", 2),
    (control, "measure", 1),
    (heal, "write_heal_record", 1),
)
"""What ends a healing that goes on each time: the function's call by number, where earlier results are kept."""


@pytest.mark.parametrize(("how", "after"), [({}, False), (LORA, True)], ids=["weights", "adapters"])
def test_interrupted_at_any_stage_it_ends_the_same(how, after, tmp_path, monkeypatch):
    whole = heal.heal(job(tmp_path, "whole", **SMALL | how), watching())
    expected = load_model(tmp_path / "whole").state_dict()
    others = tmp_path / "parts"
    others.mkdir()
    (others / "texts").symlink_to(tmp_path / "texts")
    for module, name, at in STAGES[:-1] if after else STAGES:
        with broken(monkeypatch, module, name, at, KilledError(), after), pytest.raises(KilledError):
            heal.heal(job(others, **SMALL | how), watching())
    found = heal.heal(job(others, **SMALL | how), watching())
    saved = load_model(others / "healed").state_dict()
    assert all(torch.equal(expected[name], saved[name]) for name in expected)
    assert (found.healed, found.converted, found.before) == (whole.healed, whole.converted, whole.before)
    assert found.control.after == whole.control.after
    assert [one.loss for one in found.training.evaluations] == [one.loss for one in whole.training.evaluations]


@pytest.mark.parametrize(
    ("module", "name", "at"),
    [(heal, "write_atomically", 2), (training, "write_atomically", 1), (heal, "save_model", 1)],
)
def test_a_full_disk_costs_no_more_than_an_interruption(module, name, at, tmp_path, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device")
    with broken(monkeypatch, module, name, at, full), pytest.raises(OSError, match="No space left"):
        heal.heal(job(tmp_path, control=False, **SMALL), watching())
    assert not (tmp_path / "healed" / RECORD_FILE).exists()
    record = heal.heal(job(tmp_path, control=False, **SMALL), watching())
    assert record == read_heal_record(tmp_path / "healed")
    assert {each.name for each in (tmp_path / "healed").iterdir()} == {
        *("model", "metrics.jsonl", "evaluations.jsonl", "settings.json", "heal.json")
    }
