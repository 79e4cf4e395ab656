"""docs/folding.md tells the truth: what its scripts measured is in records, and its forms and families exist."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from twofold.folding.families import FAMILIES
from twofold.folding.forms import FORMS
from twofold.folding.tiny import TINY
from twofold.folding.versions import TESTED

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/folding.md").read_text()
BLOCK = re.compile(r"<!-- python (tests/\S+) --show (\S+) -->\n(.*?)<!-- end of it -->", re.DOTALL)


def record(name):
    return json.loads((ROOT / "docs/results" / name).read_text())


@pytest.mark.parametrize(("script", "path", "table"), BLOCK.findall(PAGE), ids=["inverse", "input rows"])
def test_tables_are_what_the_scripts_print(script, path, table):
    command = [sys.executable, ROOT / script, "--show", ROOT / path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == table.strip()


def test_sentences_say_what_the_records_hold():
    inverse = record("folding-inverse.json")
    errors = [layer["value_error"]["bfloat16"] for layer in inverse["layers"]]
    assert f"off by {100 * min(errors):.0f} to {100 * max(errors):.0f} % of their size" in " ".join(PAGE.split())
    assert f"output by {100 * inverse['output_error']['bfloat16']:.0f} %" in PAGE
    assert f"costs it {100 * inverse['output_rounded']['bfloat16']:.1f} %" in PAGE
    steps = [row["folded_over"]["static"] for row in record("folding-input.json")["rows"]]
    assert f"{min(steps):.1f} to {max(steps):.1f} times as long folded" in " ".join(PAGE.split())


def test_the_parity_that_is_shown_is_within_what_is_promised():
    rows = record("fold-parity.json")["rows"]
    assert {row["family"] for row in rows} == set(TINY)
    for row in rows:
        if row["dtype"] == "float32":
            assert row["max_logit_difference"] <= 2 * max(row["stock_difference"], 1e-6)
            assert row["greedy_equal"]
            assert row["beam_equal"]
        share = {"gemma4 row": 0.63, "gemma4 value": 0.51, "gpt2 input": 0.51, "opt input": 0.51}
        most = share.get(f"{row['family']} {row['form']}", 1)
        assert row["bytes_after"] <= most * row["bytes_before"]


def test_every_form_version_and_family_is_named():
    for form in set(FORMS) - {"window"}:
        assert f"`{form}`" in PAGE
    for version in TESTED:
        assert version in PAGE
    assert {"gemma4", "deepseek_v2", "deepseek_v3", "deepseek_v4", "gpt2", "opt", "whisper"} <= set(FAMILIES)
