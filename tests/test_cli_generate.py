"""`twofold generate`: text on standard output, its cost beside it."""

import io
import json

import pytest

from command_line import run
from twofold.data.byte_tokens import END, decode_text
from twofold.evaluation.generation import generate
from twofold.models.load import load_model


@pytest.fixture
def folder(finished_study):
    return finished_study / "runs/K=V_MQA_seed0"


def refused(capsys, *words):
    """The one line on standard error, less the verb."""
    outcome = run(capsys, "generate", *map(str, words))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    return outcome.err.removeprefix("twofold generate: ").rstrip("\n")


def as_json(capsys, *words):
    outcome = run(capsys, "generate", *map(str, words), "--json")
    assert (outcome.code, outcome.err) == (0, "")
    return json.loads(outcome.out)


def test_json_has_text_cache_and_speed(capsys, folder):
    made = as_json(capsys, folder, "naïve", "--tokens", "17", "--temperature", "0")
    assert made.pop("decode_tokens_per_second") > 0
    assert made.pop("bytes_reserved") >= made["bytes_used"]
    prompt = [END, *"naïve".encode()]
    new = generate(load_model(folder), prompt, new_tokens=17, temperature=0).token_ids
    cached = len(prompt) + len(new) - 1
    assert made == {
        "prompt": "naïve",
        "text": decode_text(new),
        "new_tokens": len(new),
        "cached_tokens": cached,
        "bytes_formula": cached * 2 * 6 * 4,
        "bytes_used": cached * 2 * 6 * 4,
    }


def test_text_goes_to_standard_output_and_its_cost_to_standard_error(capsys, folder):
    outcome = run(capsys, "generate", str(folder), "def ", "--tokens", "9", "--temperature", "0")
    made = as_json(capsys, folder, "def ", "--tokens", "9", "--temperature", "0")
    assert outcome.code == 0
    assert outcome.out == f"def {made['text']}\n"
    assert outcome.err.startswith(f"cache: {made['bytes_used']:,} bytes (")
    assert outcome.err.count("\n") == 1


def test_the_seed_decides(capsys, folder):
    drawn = [as_json(capsys, folder, "x", "--tokens", "30", "--seed", seed)["text"] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_bytes_come_from_standard_input_as_they_are(capsys, folder, monkeypatch):
    for raw in (b"import os\n", b"\xff not UTF-8 \xc3"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))
        made = as_json(capsys, folder, "-", "--tokens", "3")
        assert made["prompt"] == raw.decode(errors="replace")
        assert made["cached_tokens"] == 1 + len(raw) + made["new_tokens"] - 1


def test_an_empty_prompt_starts_a_new_document(capsys, folder):
    made = as_json(capsys, folder, "", "--tokens", "5")
    assert made["prompt"] == ""
    assert made["cached_tokens"] == made["new_tokens"] >= 1


def test_what_cannot_be_is_refused(capsys, folder, tmp_path):
    assert refused(capsys, tmp_path / "no", "x").startswith(f"{tmp_path}/no is not a folder: give a folder that ")
    assert refused(capsys, tmp_path, "x").startswith(f"{tmp_path} holds no model (no config.json)")
    assert refused(capsys, folder, "x", "--temperature", "-1").startswith("the temperature must be at least 0, not -1")
    assert refused(capsys, folder, "x", "--tokens", "0").startswith("invalid value for '--tokens'")
    assert refused(capsys, folder).startswith("missing argument 'prompt'")
