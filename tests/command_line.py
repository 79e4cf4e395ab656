"""Runs the command line inside the test's process: exit code, standard output, standard error."""

from typing import NamedTuple

import pytest

from twofold.cli.main import main


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Outcome:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    return Outcome(int(exit_info.value.code or 0), *capsys.readouterr())
