"""The attention bench: contenders compute what they claim, bytes are the tensors', rows come in turn."""

import math

import pytest
import torch

from bench_records import machine
from twofold.attention.scores import keys_and_values
from twofold.bench import attention
from twofold.bench.attention import HEAD_DIM, HEADS, Case
from twofold.bench.sizes import Effort
from twofold.cache.kept import KeptRows

CASES = [
    Case(variant, 37, dtype, 3)
    for variant in ("QKV", "K=V", "GQA-4", "K=V GQA-4", "MQA", "K=V MQA")
    for dtype in attention.DTYPES
]


def in_float64(case, query_BHTD, heads_BGSW, scales_BGS):
    """softmax(q kᵀ / √D) v, head by head."""
    rows = heads_BGSW.double() * (1 if scales_BGS is None else scales_BGS.double()[..., None])
    key, value = keys_and_values(case.layout, KeptRows(rows))
    group = HEADS // case.kv_heads
    scores = query_BHTD.double() @ key.repeat_interleave(group, 1).mT / math.sqrt(HEAD_DIM)
    return scores.softmax(-1) @ value.repeat_interleave(group, 1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_contenders_agree_with_float64(case):
    rows, scales = attention._rows(case)
    dtype = torch.float32 if case.dtype == "int8" else rows.dtype
    query = torch.randn(case.batch, HEADS, 1, HEAD_DIM, dtype=dtype)
    expected = in_float64(case, query, rows, scales)
    tolerance = {"rtol": 0, "atol": (2e-2 if case.dtype == "bfloat16" else 1e-5) * float(expected.abs().max())}
    ours = attention.kernel(case.layout, query, rows, scales)
    torch.testing.assert_close(ours.double(), expected, **tolerance)
    if scales is None:
        theirs = attention.fused(query, *keys_and_values(case.layout, KeptRows(rows)))
        torch.testing.assert_close(theirs.double(), expected, **tolerance)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bytes_are_those_of_the_tensors(case):
    assert case.bytes == sum(part.nbytes for part in attention._rows(case) if part is not None)


def test_every_case_is_named_once_and_quick_is_a_part():
    names = [case.name for case in attention.cases(quick=False)]
    assert len(set(names)) == len(names)
    assert {case.name for case in attention.cases(quick=True)} < set(names)
    assert {case.dtype for case in attention.cases(quick=False)} == set(attention.DTYPES)
    assert {case.batch for case in attention.cases(quick=False)} == {1, 8, 32}


def test_variants_with_equal_rows_are_measured_once():
    rows = [(case.layout, case.kv_heads, *case[1:]) for case in attention.cases(quick=False)]
    assert len(set(rows)) == len(rows)


def test_sets_take_turns_until_the_caches_are_full(monkeypatch):
    monkeypatch.setattr(attention, "AT_LEAST", 1_000)
    assert [attention._sets(size) for size in (1, 400, 500, 999, 1_000, 10**6)] == [attention.MOST_SETS, 3, 2, 2, 1, 1]
    seen = []
    contender = attention._in_turn(seen.append, ["a", "b", "c"])
    for _ in range(4):
        assert contender() > 0
    assert seen == ["a", "b", "c", "a", "b", "c", "a", "b"]  # each measurement after a call that is not timed


def test_every_case_is_measured_against_torch(monkeypatch):
    monkeypatch.setattr(attention, "AT_LEAST", 1)
    monkeypatch.setattr(attention, "cases", lambda quick: [Case("K=V", 31, d, 1) for d in ("bfloat16", "int8")])
    rows, _ = attention.measure(Effort(2), machine(), lambda *place: None)
    assert [(row.name, row.alternative) for row in rows] == [
        ("attention/K=V/31/bfloat16", "torch SDPA, two tensors"),
        ("attention/K=V/31/bfloat16", "torch SDPA, one tensor"),
        ("attention/K=V/31/int8", "torch SDPA, two tensors"),
    ]
    assert all(row.ratio > 0 and row.roof_fraction > 0 for row in rows)
