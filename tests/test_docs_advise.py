"""docs/advise.md tells the truth: its table is what the command above it prints, and its commands run."""

import re
import shlex
from pathlib import Path

import pytest

from command_line import run
from twofold.analysis.devices import builtin_devices, parse_devices

PAGE = (Path(__file__).parent.parent / "docs" / "advise.md").read_text()


def test_the_table_is_what_the_command_prints(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    ((command, table),) = re.findall(r"<!-- made by: twofold (.*?) -->\n```text\n(.*?)```", PAGE, flags=re.DOTALL)
    outcome = run(capsys, *shlex.split(command))
    printed = "\n".join(line.rstrip() for line in outcome.out.splitlines())
    assert table.strip() in printed


@pytest.mark.parametrize("command", re.findall(r"^twofold (.*)$", PAGE, flags=re.MULTILINE))
def test_commands_run(capsys, command):
    outcome = run(
        capsys, *[word.replace("docs/", f"{Path(__file__).parent.parent}/docs/") for word in shlex.split(command)]
    )
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out


def test_every_device_is_named_and_the_example_is_one():
    for device in builtin_devices():
        assert device.name in PAGE.replace("\n", " ")
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    assert parse_devices(example, "example")[0].name == "My board"
