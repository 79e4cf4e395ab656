"""`twofold fold`: what it prints, what it measures, and what it refuses in one line."""

import json

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from command_line import run
from published_configurations import GEMMA_4_31B
from small_inputs import gpt2
from small_models import small_model
from twofold.data.byte_tokens import VOCABULARY, byte_tokenizer


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemma")
    CONFIG_MAPPING["gemma4_text"](**{**GEMMA_4_31B, "model_type": "gemma4_text"}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    model = gpt2(torch.float32, vocab_size=VOCABULARY)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def test_the_table_shows_layers_and_bytes(capsys, gemma):
    done = run(capsys, "fold", str(gemma), "--context", "262144", "--dtype", "bfloat16")
    assert done.code == 0, done.err
    assert "60 layers, 1 × 262,144 tokens in bfloat16: cache 21,280.00 MiB, folded 13,600.00 MiB (63.9%)" in done.out
    assert "5, 11, …, 59 (10)" in done.out
    assert "20,480.00" in done.out
    assert "12,800.00" in done.out


def test_json_is_the_report(capsys, gemma):
    done = run(capsys, "fold", str(gemma), "--form", "value", "--context", "1000", "--batch", "3", "--json")
    report = json.loads(done.out)
    assert (report["form"], report["context"], report["batch"]) == ("value", 1000, 3)
    assert report["bytes_after"] == sum(layer["bytes_after"] for layer in report["layers"])
    assert "check" not in report


def test_check_compares_with_stock_on_the_models_own_weights(capsys, small):
    done = run(capsys, "fold", str(small), "--check", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)["check"]
    assert found["max_logit_difference"] <= 2 * max(found["stock_difference"], 1e-6)
    assert found["greedy_equal"]
    assert found["bytes_after"] * 2 == found["bytes_before"]
    assert found["dtype"] == "float32"
    assert run(capsys, "fold", str(small), "--check").out.count("greedy tokens equal") == 1


def test_check_reads_the_text_that_is_given(capsys, small, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("abc" * 20)  # the model has 97 positions, of which a check leaves 16 to generate
    found = json.loads(run(capsys, "fold", str(small), "--check", "--text", str(text), "--json").out)["check"]
    assert found["text"] == "text.txt"
    text.write_text("ab")
    done = run(capsys, "fold", str(small), "--check", "--text", str(text))
    assert (done.code, done.out) == (2, "")
    assert "a check needs at least 8" in done.err


def test_parity_has_a_row_for_every_family_form_and_dtype(capsys, monkeypatch):
    from twofold.folding import parity, tiny

    monkeypatch.setattr(parity.parity, "__defaults__", (("gpt2",), ("float32",), None))
    found = json.loads(run(capsys, "fold", "--parity", "--json").out)
    keys = {"family", "form", "dtype", "max_logit_difference", "stock_difference"}
    keys |= {"greedy_equal", "beam_equal", "bytes_before", "bytes_after"}
    assert [set(row) for row in found["rows"]] == [keys]
    assert "environment" in found
    assert "gpt2" in run(capsys, "fold", "--parity").out
    assert {"gemma4", "deepseek_v2", "deepseek_v3", "deepseek_v4", "gpt2", "opt"} == set(tiny.TINY)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a model"),
        (("--parity", "MODEL"), "leave the rest out"),
        (("MODEL", "--dtype", "int8"), "unknown --dtype 'int8': choose one of float32"),
        (("MODEL", "--text", "x.txt"), "add --check"),
        (("MODEL", "--form", "row"), "folds by form input, and not by row"),
        (("MODEL", "--form", "melted"), "unknown form 'melted'"),
        (("MODEL", "--context", "0"), "context must be at least 1, not 0"),
        (("MODEL", "--check", "--text", "nowhere.txt"), "nowhere.txt is not a file"),
        (("nowhere.json",), "nowhere.json"),
        (("nowhere.gguf",), "nowhere.gguf is a GGUF file"),
    ],
)
def test_mistakes_are_one_line(capsys, small, arguments, message):
    done = run(capsys, "fold", *(str(small) if part == "MODEL" else part for part in arguments))
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1


def test_a_model_that_cannot_fold_is_told_what_was_looked_for(capsys, tmp_path):
    LlamaConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2).save_pretrained(tmp_path)
    done = run(capsys, "fold", str(tmp_path))
    assert done.code == 2
    assert "nothing in this llama model folds: looked for gemma4" in done.err


def test_own_models_need_no_folding(capsys, tmp_path):
    small_model("K=V").save_pretrained(tmp_path / "model")
    for place in (tmp_path, tmp_path / "model"):
        done = run(capsys, "fold", str(place))
        assert done.code == 2
        assert "a Twofold model stores what is shared once as it is: there is nothing to fold" in done.err


def test_more_tokens_than_positions_are_remarked(capsys, small):
    assert "98 tokens are more than the 97 positions" in run(capsys, "fold", str(small), "--context", "98").out
    assert "positions" not in run(capsys, "fold", str(small), "--context", "97").out


def test_an_unknown_model_type_is_told_so(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "melted"}))
    done = run(capsys, "fold", str(tmp_path))
    assert done.code == 2
    assert "melted" in done.err


def test_help_has_examples(capsys):
    assert "twofold fold --parity" in run(capsys, "fold", "--help").out
