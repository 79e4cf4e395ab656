"""Committed explanations are sound, small and shown."""

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


def test_there_are_records():
    assert RECORDS
