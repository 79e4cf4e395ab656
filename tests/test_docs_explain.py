"""Committed explanations are sound, small and shown."""

import statistics
from pathlib import Path

import pytest

from twofold.explain.record import read_explanations

ROOT = Path(__file__).parent.parent
SHOWN = (ROOT / "docs" / "results" / "explain.md").read_text()
RECORDS = sorted((ROOT / "docs" / "results").glob("*/explain.json"))


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.parent.name)
def test_committed_records_are_sound_small_and_shown(record):
    assert record.stat().st_size < 300_000
    assert f"<!-- twofold explain --show docs/results/{record.parent.name}/explain.json " in SHOWN
    for found in read_explanations(record):
        assert found.sharing is not None
        assert not found.maps
        assert "/tmp" not in found.command


@pytest.mark.parametrize(("name", "pairs"), [("smollm2", ("kv", "qk")), ("own", ("kv", "qk"))])
def test_sizes_of_cosines_in_the_text_are_the_records(name, pairs):
    (found,) = read_explanations(ROOT / "docs" / "results" / f"explain-{name}" / "explain.json")
    reading = " ".join(SHOWN.split(f"explain-{name}/explain.json")[1].split("**Reading.**")[1].split("## ")[0].split())
    told = reading.split("of queries and keys" if name == "own" else "Queries and keys", 1)
    for part, pair in zip(told, pairs, strict=True):
        sizes, chance = (
            [abs(value) for value in found.series("similarity", f"cosine_{pair}{end}")] for end in ("", "_random")
        )
        above = sum(size > random for size, random in zip(sizes, chance, strict=True))
        assert f"{above} of {len(sizes)} layers above" in part
        assert f"{statistics.fmean(sizes):.4f}" in part
        if name == "smollm2" or pair == "kv":
            assert f"{statistics.fmean(chance):.4f}" in part
    negative = sum(value < 0 for value in found.series("similarity", "cosine_kv"))
    assert {"smollm2": f"{negative} of 30 layers are negative", "own": f"{negative} negative"}[name] in told[0]


def test_the_file_that_is_unpacked_is_the_file_that_is_explained():
    commands = SHOWN.split("```sh")[1].split("```")[0]
    assert "> smollm2.gguf\ntwofold explain smollm2.gguf " in commands
    assert "(Q4_1)" in SHOWN


def test_there_are_records():
    assert RECORDS
