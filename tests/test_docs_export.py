"""docs/export.md tells the truth: its commands and its Python run, its table has the formats, fold takes the result."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import twofold
from command_line import run
from small_exports import exportable
from small_models import random_ids
from twofold.data.byte_tokens import VOCABULARY
from twofold.export.export import FORMATS

PAGE = (Path(__file__).parent.parent / "docs" / "export.md").read_text()


@pytest.fixture
def runs(tmp_path, monkeypatch):
    for name, variant in (("mine", "K=V GQA-2 decoupled"), ("gqa", "GQA-2")):
        exportable(variant, vocab_size=VOCABULARY).float().save_pretrained(tmp_path / "runs" / name / "model")
    monkeypatch.chdir(tmp_path)


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_its_table_has_every_format():
    assert re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE) == list(FORMATS)


@pytest.mark.usefixtures("runs")
def test_its_commands_and_its_python_run(capsys):
    pytest.importorskip("llama_cpp")
    commands = blocks("")[0].splitlines()
    assert len(commands) == 4
    for command in commands:
        done = run(capsys, *shlex.split(command)[1:])
        assert done.code == 0, f"{command}: {done.err}"
    (code,) = blocks("python")
    exec(compile(code.replace('"exported"', '"again"'), "export.md", "exec"), {})
    assert capsys.readouterr().out.split()[1] == "24.0"


@pytest.mark.usefixtures("runs")
def test_fold_takes_what_deepseek_exports(capsys):
    assert run(capsys, "export", "runs/mine", "--format", "deepseek", "--out", "out", "--no-check").code == 0
    model = AutoModelForCausalLM.from_pretrained("out").eval()
    ids = random_ids(1, 9)
    before = model.generate(ids, max_new_tokens=7, do_sample=False)
    twofold.fold(model)
    assert torch.equal(model.generate(ids, max_new_tokens=7, do_sample=False), before)
