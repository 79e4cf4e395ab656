"""The Triton kernels in Triton's interpreter, against the same laws as the other paths. Not collected by itself:
test_kernels_decode_triton.py runs it in a process of its own, with TRITON_INTERPRET=1.
"""

import pytest
import torch
from hypothesis import given, settings

import gpu_checks
from decode_steps import LAYOUTS, cases, reference, spans, strided
from test_kernels_decode import (  # noqa: F401  these run here, on the path of this module
    close,
    step,
    test_equal_to_torch_with_two_tensors,
    test_few_or_no_rows,
    test_half_queries_come_back_as_they_are,
    test_large_scores_do_not_overflow,
    test_nan_in_a_row_that_is_seen_shows,
    test_rows_that_nobody_sees_may_hold_anything,
    test_turning_on_read_depends_on_differences_only,
)
from twofold.kernels import decode_triton
from twofold.kernels.decode import decode_attention
from twofold.kernels.step import Step


@pytest.fixture
def path():
    return "triton"


@settings(max_examples=20)
@given(case=cases().filter(lambda case: case.heads.shape[2] <= 331))  # the interpreter is slow
def test_the_definition(case):
    args, options = case.arguments(path="triton")
    close(decode_attention(*args, **options), reference(case))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_of_16_bit_numbers(layout, dtype):
    """float16 queries and rows are multiplied as they are, and only the weights are rounded. bfloat16, which the
    interpreter cannot multiply, is checked up to there: loads, conversions and the output's dtype.
    """
    case = step(layout, dtype=dtype, rows=61, per_group=5)
    (query, *rows), options = case.arguments(path="triton", starts_B=torch.tensor([0, 19]))
    query = query.to(dtype)
    wanted = reference(type(case)(query, case.heads, case.shared, options))
    close(decode_attention(query, *rows, **options), wanted, 2**-8 if dtype == torch.bfloat16 else 2**-11)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_int8_rows_are_exact_in_16_bits(dtype):
    case = step("decoupled", dtype=torch.int8, rows=61)
    (query, *rows), options = case.arguments(path="triton", softcap=5.0)
    query = query.to(dtype)
    wanted = reference(type(case)(query, case.heads, case.shared, options))
    close(decode_attention(query, *rows, **options), wanted, 2**-8 if dtype == torch.bfloat16 else 2**-11)


def test_a_split_context_is_an_unsplit_one():
    """Threads stand for multiprocessors: the more there are, the more programs share one context."""
    case = strided(step("decoupled", rows=211, dtype=torch.bfloat16, batch=1, groups=1, positions=2), "token-major")
    args, options = case.arguments(path="triton", softcap=5.0, starts_B=torch.tensor([41]), frequencies=torch.ones(3))
    results = [decode_attention(*args, **options)]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        results += [decode_attention(*args, **options) for _ in range(2)]
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[1], results[2])
    close(results[1], results[0].double(), 1e-6)


def test_more_queries_than_one_program_takes():
    case = step("K=V", rows=31, groups=1, per_group=23, positions=5)
    args, options = case.arguments(path="triton")
    close(decode_attention(*args, **options), reference(case))


def test_a_value_that_is_not_a_number_does_not_touch_the_weights():
    """Of the tile that covers both, what lies outside a head's key must not enter its scores, even times 0."""
    case = step("partial", rows=31)
    case.heads[..., 4, 35] = torch.nan  # the value's own part begins at 32
    args, options = case.arguments(path="triton")
    spoilt = decode_attention(*args, **options).isnan()
    assert spoilt[..., 35 - 8].all()
    assert spoilt.sum() == spoilt[..., 35 - 8].sum()


@pytest.mark.parametrize("limits", [{"lengths_B": [31, 98]}, {"starts_B": [-1, 3]}])
def test_limits_outside_the_rows_are_refused_on_a_cpu(limits):
    args, options = step().arguments(path="triton", **{name: torch.tensor(value) for name, value in limits.items()})
    with pytest.raises(ValueError, match="97 rows are there"):
        decode_attention(*args, **options)


def test_limits_outside_the_rows_are_their_border_on_a_device():
    """There they are not checked; nothing outside the rows may be read for them."""
    case = step()
    limits = {"lengths_B": torch.tensor([97, 1000]), "starts_B": torch.tensor([-5, 0])}
    (query, heads, _), _ = case.arguments()
    layout = spans(LAYOUTS["K=V"])
    given_step = Step(
        query, heads, None, layout["key"], layout["value"], None, 40**-0.5, 0.0, limits["starts_B"],
        limits["lengths_B"], None, None, None, None, 0,
    )  # fmt: skip
    close(decode_triton.attend(given_step), reference(case))


def test_the_checks_for_a_gpu_do_what_they_say(monkeypatch):
    """All of them but the clock and the graphs, on the device that the interpreter plays."""
    monkeypatch.setattr(gpu_checks, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_checks, "graphed", lambda call: call)
    monkeypatch.setattr(gpu_checks, "compared", lambda ours, theirs, repeats: (1.0, 2.0, 2.0))
    monkeypatch.setattr(gpu_checks, "call_microseconds", lambda call: 1.0)
    for name in ("QKV", "K=V MQA", "MLA"):
        found = gpu_checks.measured(name, "bfloat16", 61, 2, 1)
        assert found["holds"], found
        assert found["bytes"] == 61 * 2 * {"QKV": 16 * 128, "K=V MQA": 64, "MLA": 576}[name] * 2
    assert all(check["holds"] for check in gpu_checks.model_checks())
