"""docs/healing.md tells the truth: its commands and its Python run, on models that are small enough."""

import re
import shlex
from pathlib import Path

import pytest

from command_line import run
from small_healing import original, student
from tiny_study import write_texts
from twofold.conversion.source import write_model
from twofold.data.byte_tokens import byte_tokenizer

PAGE = (Path(__file__).parent.parent / "docs" / "healing.md").read_text()
SMALLER = {"path/to/SmolLM2-135M": "teacher", "1M": "300"}
FASTER = ("--context", "31", "--batch", "2")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def models(tmp_path, monkeypatch):
    original().save_pretrained(tmp_path / "teacher")
    byte_tokenizer().save_pretrained(tmp_path / "teacher")
    write_model(student(), tmp_path / "converted", byte_tokenizer())
    write_texts(tmp_path / "texts")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("models")
def test_its_commands_and_its_python_run(capsys):
    commands = blocks("bash")[0].splitlines()
    assert len(commands) == 3
    for command in commands:
        _, verb, *words = shlex.split(command, comments=True)
        words = [SMALLER.get(word, word) for word in words]
        faster = FASTER if verb == "heal" and "--show" not in words else ()
        done = run(capsys, verb, *words, *faster)
        assert done.code == 0, done.err
    exec(compile(blocks("python")[0], "docs/healing.md", "exec"), {})
    perplexity, ratio = map(float, capsys.readouterr().out.split())
    assert 1 < perplexity < 1000
    assert 0.1 < ratio < 10


def test_its_options_are_the_commands(capsys):
    healing = re.sub(r"^twofold convert .*$|^<!-- .*$", "", PAGE, flags=re.MULTILINE)
    told = set(re.findall(r"--[a-z-]+[a-z]", healing))
    help_text = run(capsys, "heal", "--help").out
    assert told
    assert all(option in help_text for option in told)
