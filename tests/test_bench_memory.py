"""The memory bench: what real processes hold, and what is refused before anything is allocated."""

import shutil
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.bench import memory
from twofold.bench.held import LEAST, longest
from twofold.bench.memory import Question
from twofold.bench.sizes import Effort

linux = pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from Linux's /proc")


@given(st.integers(0, 2**21), st.sampled_from([1_000, 2_048, 2**20]))
def test_the_longest_context_is_found_to_one_part_in_sixteen(room, most):
    asked = []

    def fits(context):
        asked.append(context)
        return context <= room

    found = longest(fits, most)
    best = min(room, most) // LEAST * LEAST
    assert found <= best
    assert best - found <= max(LEAST, found // 16)
    assert len(asked) < 20
    assert all(context % LEAST == 0 for context in asked)


@pytest.mark.slow
@linux
@pytest.mark.parametrize("variant", ["QKV", "K=V MQA"])
def test_a_process_grows_by_the_formula(variant):
    row = memory.resident(Question("tiny", context=65_537 if variant == "QKV" else 131_071, batch=2), variant)
    assert row.bytes == (65_537 * 2 * 4 * 256 * 4 if variant == "QKV" else 131_071 * 2 * 4 * 32 * 4)
    assert abs(row.resident_over_formula - 1) < 0.03


@pytest.mark.slow
@linux
def test_a_limit_is_kept_and_the_context_nearly_fills_it():
    limit = 640 * 2**20
    row = memory.fitting(Question("15M", limit=limit), "QKV")
    assert row.context > 0
    assert row.resident_bytes <= limit
    assert row.bytes == row.context * 6 * 2 * 384 * 4
    assert row.resident_bytes + row.bytes / 8 + 2**25 > limit  # an eighth more would not have fitted


@linux
def test_too_much_is_refused_with_the_numbers():
    with pytest.raises(ValueError, match=r"the cache of QKV .* takes [\d.]+ GiB, and this machine has [\d.]+ GiB"):
        memory.measure(Question(context=10**9), Effort(1), lambda *place: None)
    with pytest.raises(ValueError, match="the limit takes"):
        memory.measure(Question("15M", limit=2**60), Effort(1), lambda *place: None)
    with pytest.raises(ValueError, match=r"weights of 1\.2B alone take"):
        memory.measure(Question("1.2B", limit=2**29), Effort(1), lambda *place: None)


@linux
def test_a_process_that_dies_is_named(monkeypatch):
    monkeypatch.setattr(memory.sys, "executable", shutil.which("false"))
    with pytest.raises(OSError, match=r"K=V: .* code 1: it said nothing; perhaps memory ran out"):
        memory._child("resident", Question(), "K=V")


def test_rows_are_compared_with_the_first(monkeypatch):
    monkeypatch.setattr(memory, "check_linux", lambda: None)
    monkeypatch.setattr(memory, "available_bytes", lambda: 2**40)
    grown = {"QKV": 4_096, "K=V": 2_048, "K=V MQA": 512}
    monkeypatch.setattr(memory, "_child", lambda task, question, variant: {"grown": grown[variant]})
    told = []
    rows, _ = memory.measure(Question("tiny", 64), Effort(1, quick=True), lambda *place: told.append(place))
    assert [(row.variant, row.alternative, row.ratio) for row in rows] == [
        ("QKV", None, None),
        ("K=V", "QKV", 2),
        ("K=V MQA", "QKV", 8),
    ]
    assert told[-1][:2] == (3, 3)


@pytest.mark.parametrize("wrong", [{"context": 0}, {"batch": 0}, {"dtype": "int8"}])
def test_impossible_questions_are_refused(wrong):
    with pytest.raises(ValueError, match=r"at least 1|choose one of"):
        Question(**wrong)
