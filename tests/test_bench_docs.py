"""docs/benchmarks.md: its records are whole and shown, and its commands exist."""

import re
import shlex
from pathlib import Path

import pytest

from command_line import run
from twofold.bench.record import read_bench

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/benchmarks.md").read_text()
OTHERS = "".join((ROOT / f"docs/{name}.md").read_text() for name in ("folding", "export"))


def test_every_committed_record_is_whole_and_shown():
    for path in (ROOT / "docs/results/bench").glob("*.json"):
        assert not read_bench(path).quick
        assert f"docs/results/bench/{path.name} " in PAGE + OTHERS


@pytest.mark.parametrize("command", re.findall(r"^twofold (bench .*)$", PAGE, flags=re.MULTILINE))
def test_commands_exist(command, capsys):
    words = shlex.split(command)
    outcome = run(capsys, *words[:2], "--help")
    assert outcome.code == 0
    assert all(word in outcome.out for word in words[2:])


def test_the_model_is_the_one_that_is_described():
    from twofold.analysis.costs import parameters
    from twofold.bench.sizes import fifteen_million

    arch = fifteen_million()
    for number in (arch.layers, arch.width, arch.heads, arch.mlp, arch.vocab, parameters(arch)["total"]):
        assert f"{number:,}" in PAGE
