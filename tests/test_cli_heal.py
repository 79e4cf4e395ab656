"""`twofold heal`: a folder that other verbs open, tables again from the record, and mistakes in one line."""

import json

import pytest

from command_line import run
from small_checkpoints import checkpoint
from small_healing import original, student
from tiny_study import write_texts
from twofold.conversion.source import write_model
from twofold.data.byte_tokens import byte_tokenizer
from twofold.models.load import load_model

HOW = ("--tokens", "500", "--context", "23", "--batch", "4", "--held-out", "0.2", "--sample", "200")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A teacher as transformers saves it, what was made of it, and texts."""
    folder = tmp_path_factory.mktemp("models")
    original().save_pretrained(folder / "teacher")
    byte_tokenizer().save_pretrained(folder / "teacher")
    write_model(student(), folder / "student", byte_tokenizer())
    write_texts(folder / "texts")
    return folder


def arguments(models, out, *others):
    files = (str(models / "student"), "--teacher", str(models / "teacher"), "--data", str(models / "texts"))
    return ("heal", *files, *HOW, "--out", str(out), *others)


def test_a_folder_that_other_verbs_open(capsys, models, tmp_path):
    out = tmp_path / "healed"
    done = run(capsys, *arguments(models, out, "--no-control", "--json"))
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert record["command"].startswith("twofold heal ")
    assert record["settings"]["tokens"] == 500
    assert record["training"]["tokens"] == 552  # whole steps
    assert {each.name for each in out.iterdir()} == {
        *("model", "metrics.jsonl", "evaluations.jsonl", "settings.json", "heal.json", "heal.html")
    }
    assert (out / "model" / "tokenizer_config.json").is_file()
    assert load_model(out).config.variant == "GQA-2"
    made = run(capsys, "generate", str(out), "def", "--tokens", "3", "--json")
    assert made.code == 0, made.err
    again = run(capsys, "heal", "--show", str(out), "--json")
    assert json.loads(again.out) == record
    (out / "heal.html").unlink()
    shown = run(capsys, "heal", "--show", str(out))
    assert (out / "heal.html").is_file()
    assert shown.code == 0
    for part in ("teacher", "converted", "healed", f"{record['healed']['validation']['perplexity']:,.3f}"):
        assert part in shown.out
    assert "control" not in shown.out
    repeated = run(capsys, *arguments(models, out))
    assert (repeated.code, repeated.err.count("\n")) == (2, 1)
    assert "no interrupted healing" in repeated.err


def test_a_control_is_made_beside_and_used_again(capsys, models, tmp_path):
    first = run(capsys, *arguments(models, tmp_path / "one", "--lora", "2"))
    assert first.code == 0, first.err
    assert "adapters of rank 2" in first.out
    assert "perplexity, healed to control" in first.out
    assert "made earlier" not in first.out
    second = run(capsys, *arguments(models, tmp_path / "two", "--lora", "2", "--temperature", "2"))
    assert second.code == 0, second.err
    assert "made earlier" in second.out
    assert len(list((tmp_path / "controls").iterdir())) == 1


def test_mistakes_are_one_line_and_leave_nothing(capsys, models, tmp_path):
    out = tmp_path / "none"
    other = tmp_path / "other"
    checkpoint("llama", vocab_size=263).save_pretrained(other)
    capsys.readouterr()
    for given, told in (
        (("heal",), "DIR is missing"),
        (("heal", str(models / "student"), "--out", str(out)), "--teacher is missing"),
        (("heal", "--show", str(models)), "heal.json is not there"),
        (("heal", "--show", str(models), "--tokens", "1M"), "give it alone"),
        (arguments(models, out, "--lr", "-1"), "--lr is -1"),
        (arguments(models, out, "--tokens", "0"), "--tokens is 0"),
        (arguments(models, out, "--layer-loss", "nan"), "--layer-loss is nan"),
        (arguments(models, out, "--threads", "0"), "--threads must be at least 1"),
        (arguments(models, out, "--context", "3"), "--context is 3"),
        (arguments(models, out, "--lora", "2", "--train", "all"), "give one of the two"),
        (arguments(models, out, "--controls", str(models / "teacher" / "config.json")), "is no folder"),
        (arguments(models, out, "--data", str(models / "nothing")), "There is no file or folder"),
        (arguments(models, out, "--context", "100000"), "Too little text"),
        (arguments(models, out, "--held-out", str(models / "texts")), "are trained on as well"),
        (arguments(models, out, "--teacher", str(other)), "257 tokens and the teacher 263"),
        (("heal", str(models / "teacher"), *arguments(models, out)[2:]), "is a 'llama' model"),
        (arguments(models, models / "texts"), "no interrupted healing"),
    ):
        done = run(capsys, *given)
        assert done.code == 2, done
        assert told in done.err
        assert done.err.strip().count("\n") == 0
        assert not out.exists()
