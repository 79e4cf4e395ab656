"""docs/benchmarks.md: tables are what the command above them prints, and its commands exist."""

import re
import shlex
from pathlib import Path

import pytest

from command_line import run
from twofold.bench.record import read_bench

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/benchmarks.md").read_text()
BLOCK = re.compile(r"<!-- twofold (bench show .*?) -->\n(.*?)<!-- end -->", re.DOTALL)


def test_tables_are_made_from_committed_records(capsys):
    assert PAGE.count("<!-- twofold bench show ") == len(BLOCK.findall(PAGE))
    for command, table in BLOCK.findall(PAGE):
        made = run(capsys, *[word.replace("docs/", f"{ROOT}/docs/") for word in shlex.split(command)])
        assert table.strip() == made.out.strip(), command


def test_every_committed_record_is_whole_and_shown():
    for path in (ROOT / "docs/results/bench").glob("*.json"):
        assert not read_bench(path).quick
        assert f"docs/results/bench/{path.name} " in PAGE


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
