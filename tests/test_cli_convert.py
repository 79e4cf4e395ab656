"""`twofold convert`: folders that other verbs open, there and back, and refusals that leave nothing behind."""

import json

import pytest
import torch
from safetensors.torch import load_file

from command_line import run
from small_checkpoints import checkpoint, equal_tensors
from twofold.data.byte_tokens import VOCABULARY, byte_tokenizer
from twofold.models.load import load_model


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    checkpoint("llama", vocab_size=VOCABULARY).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def converted(source, tmp_path, capsys):
    done = run(capsys, "convert", str(source), "--out", str(tmp_path / "new" / "ours"), "--json")
    assert done.code == 0, done.err
    return tmp_path / "new" / "ours", json.loads(done.out)


def test_the_folder_is_opened_by_other_verbs(capsys, converted, tmp_path):
    folder, record = converted
    assert record["variant"] == load_model(folder).config.variant == "GQA-2"
    assert record["check"]["within_twice_own"] is True
    assert record["check"]["max_logit_difference"] <= 2 * record["check"]["own_difference"]
    assert record["tokenizer"] is True
    made = run(capsys, "generate", str(folder), "ab", "--tokens", "5", "--json")
    assert made.code == 0, made.err
    assert json.loads(made.out)["new_tokens"] <= 5
    text = tmp_path / "text.txt"
    text.write_text("Rows are read once. " * 20)
    scored = run(capsys, "evaluate", str(folder), "--data", str(text), "--json")
    assert scored.code == 0, scored.err
    explained = run(capsys, "explain", str(folder), "--json")
    assert explained.code == 0, explained.err


def test_there_and_back_gives_the_files_tensors(capsys, converted, source, tmp_path):
    folder, _ = converted
    done = run(capsys, "convert", str(folder), "--to", "llama", "--out", str(tmp_path / "back"))
    assert done.code == 0, done.err
    assert "within twice its own" in done.out
    assert "carried along" in done.out
    before, after = (load_file(place / "model.safetensors") for place in (source, tmp_path / "back"))
    assert equal_tensors(before, after)
    assert json.loads((tmp_path / "back" / "config.json").read_bytes())["model_type"] == "llama"
    assert (tmp_path / "back" / "tokenizer_config.json").is_file()


def test_weights_keep_their_dtype(capsys, tmp_path):
    checkpoint("qwen2").bfloat16().save_pretrained(tmp_path / "half")
    done = run(capsys, "convert", str(tmp_path / "half"), "--out", str(tmp_path / "ours"), "--json")
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert (record["dtype"], record["tokenizer"]) == ("bfloat16", False)
    assert record["check"]["within_twice_own"] is True
    assert load_model(tmp_path / "ours").dtype == torch.bfloat16


@pytest.mark.parametrize("kind", ["full", "file"])
def test_what_exists_is_left_alone(capsys, source, tmp_path, kind):
    out = tmp_path / "there"
    if kind == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "notes").write_text("mine")
    done = run(capsys, "convert", str(source), "--out", str(out))
    assert done.code == 2
    assert str(out) in done.err
    assert (out if kind == "file" else out / "notes").read_text() == "mine"


def test_an_empty_folder_is_filled(capsys, source, tmp_path):
    (tmp_path / "empty").mkdir()
    assert run(capsys, "convert", str(source), "--out", str(tmp_path / "empty"), "--no-check").code == 0
    assert load_model(tmp_path / "empty").config.num_hidden_layers == 3


def test_refusals_are_one_line_and_leave_nothing(capsys, converted, source, tmp_path):
    folder, _ = converted
    checkpoint("gpt2", activation_function="silu").save_pretrained(tmp_path / "gpt2")
    for arguments, told in (
        ((str(folder),), "say with --to what to write it as (llama, mistral)"),
        ((str(folder), "--to", "qwen3"), "whose qk_norm is True"),
        ((str(folder), "--to", "bert"), "'bert' model does not convert"),
        ((str(source), "--to", "llama"), "leave it out"),
        ((str(tmp_path / "gpt2"),), "activation_function 'silu' does not convert"),
    ):
        done = run(capsys, "convert", *arguments, "--out", str(tmp_path / "none"))
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert told in done.err
        assert not (tmp_path / "none").exists()
    assert not list(tmp_path.glob(".none*"))


def test_a_fault_writes_nothing(capsys, source, tmp_path, monkeypatch):
    from twofold.conversion import check

    monkeypatch.setattr(check, "_largest", lambda one, other: 1.0 if one is not other else 0.0)
    monkeypatch.setattr(check.Check, "is_within", property(lambda self: False))
    done = run(capsys, "convert", str(source), "--out", str(tmp_path / "none"))
    assert done.code == 2
    assert "nothing was written" in done.err
    assert not (tmp_path / "none").exists()
