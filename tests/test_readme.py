"""The README tells the truth: its commands run, its table is the record's, its Python works."""

import re
import shlex
from pathlib import Path

import pytest

from command_line import run
from twofold.folding import parity

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


SHORT = ["steps=2", "looks=2", "seeds=[0]", "sweep=null", "variants=[QKV]"]
OF_TASKS = {"sentences": SHORT, "synthetic": [*SHORT, "tasks=[{task: reverse, length: 8}]"]}
"""A study of tasks in the README → settings that make it take seconds."""


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    (tmp_path / "README.md").write_text(README)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_commands_and_python_run_in_their_order(workplace, capsys, monkeypatch):
    """With the smoke study in the demo's place, little held-out text and one family to fold: it takes seconds."""
    monkeypatch.setattr(parity.parity, "__defaults__", (("gpt2",), ("float32",), None))
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("twofold ")]
    assert len(commands) >= 10
    for command in commands:
        arguments = [word.replace("demo", "smoke") for word in shlex.split(command)[1:]]
        if arguments[0] == "train":
            arguments += ["--set", "data.held_out=0.001"]
        if arguments[:2] == ["study", "run"]:
            arguments += [word for setting in OF_TASKS.get(arguments[2], ()) for word in ("--set", setting)]
        outcome = run(capsys, *arguments)
        assert outcome.code == 0, f"{command}: {outcome.err}"
        assert outcome.out
    (code,) = blocks("python")
    exec(compile(code, "README.md", "exec"), {})
    assert "bytes of rows" in capsys.readouterr().out


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\S+)$", "\n".join(blocks("sh")), flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def test_study_file_in_the_readme_is_valid():
    from twofold.study.load import parse_study

    (text,) = blocks("yaml")
    assert parse_study(text, "README.md").name == "my-study"
