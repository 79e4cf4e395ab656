"""The numbers in the page on benchmark tasks are those of the record beside it."""

import json
import re
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_every_number_of_the_example_is_the_record_s():
    record = json.loads((DOCS / "results" / "downstream.json").read_text())
    page = (DOCS / "downstream.md").read_text()
    (block,) = re.findall(r"```\n\$ twofold evaluate runs/mine --tasks twofold_local.*?\n(.*?)```", page, re.DOTALL)
    rows = [line.split() for line in block.splitlines() if line.startswith("twofold_")]
    assert len(rows) == len(record["scores"])
    for row, score in zip(rows, record["scores"], strict=True):
        numbers = [score["value"], score["error"], score["chance"]]
        shown = [f"{number:.4f}" for number in numbers if number is not None]
        arrow = "↑" if score["higher_is_better"] else "↓"
        assert row == [score["task"], score["metric"], arrow, *shown, str(score["documents"]), str(score["fewshot"])]
    assert f"lm-evaluation-harness {record['harness']}" in block
    assert block.count("Warning") == sum(
        score["chance"] is not None and abs(score["value"] - score["chance"]) <= 2 * score["error"]
        for score in record["scores"]
    )
