"""docs/conversion.md tells the truth: its commands and its Python run, on a model that is small enough."""

import re
import shlex
from pathlib import Path

import pytest

import sharing_methods
from command_line import run
from small_checkpoints import checkpoint
from tiny_study import write_texts
from twofold.conversion.families import FAMILIES
from twofold.conversion.sharing_plan import METHODS
from twofold.data.byte_tokens import VOCABULARY, byte_tokenizer

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "conversion.md").read_text()
SMALLER = {"32": "2", "4-11": "1-2", "1M": "60"}
FIT = ("--tokens", "700", "--context", "53")
HEAL = ("--context", "31", "--batch", "2", "--no-control")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def model(tmp_path, monkeypatch):
    place = tmp_path / "path" / "to" / "SmolLM2-135M"
    checkpoint("llama", vocab_size=VOCABULARY).save_pretrained(place)
    byte_tokenizer().save_pretrained(place)
    write_texts(tmp_path / "texts")
    write_texts(tmp_path / "others", seed=1)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("model")
def test_its_commands_and_its_python_run(capsys):
    codes, printed = iter(blocks("python")), ""
    for block in blocks("bash"):
        for command in block.splitlines():
            _, verb, *words = shlex.split(command, comments=True)
            faster = HEAL if verb == "heal" else FIT if "--text" in words else ()
            done = run(capsys, verb, *(SMALLER.get(word, word) for word in words), *faster)
            assert done.code == 0, f"{command}: {done.err}"
        if (code := next(codes, None)) is not None:
            exec(compile(code, "docs/conversion.md", "exec"), {})
            printed = capsys.readouterr().out
    assert 0.5 < float(printed.split()[0]) < 1


def test_its_tables_name_every_family_and_method():
    named = set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)))
    assert set(FAMILIES) <= named
    assert set(METHODS) <= named
    assert {method for methods in METHODS.values() for method in methods} <= named


def test_its_options_are_the_commands(capsys):
    own = re.sub(r"^.*python tests/.*$", "", PAGE, flags=re.MULTILINE)
    told = set(re.findall(r"--[a-z-]+[a-z]", own))
    help_text = "".join(run(capsys, verb, "--help").out for verb in ("convert", "heal", "export"))
    assert told
    assert all(option in help_text for option in told)


def test_its_measured_table_is_that_of_the_record(capsys):
    block = re.compile(r"<!-- python tests/sharing_methods.py (.*?) -->\n(.*?)<!-- made -->", re.DOTALL)
    command, table = block.search(PAGE).groups()
    sharing_methods.main([word.replace("docs/", f"{ROOT}/docs/") for word in shlex.split(command)])
    assert capsys.readouterr().out.strip() == table.strip()
