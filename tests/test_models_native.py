"""Whole models on the native kernels: decode steps equal the full pass, and equal those without the library."""

import pytest
import torch

from small_models import PAIRED, VOCAB, random_ids, randomise, small_model
from twofold.attention import decoding
from twofold.kernels import linear, native
from twofold.kernels.decode import choose
from twofold.models import stepping

LENGTH, PROMPT = 23, 11

pytestmark = pytest.mark.skipif(not native.AVAILABLE, reason=native.why_not() or "built")


@pytest.fixture
def taken(monkeypatch):
    """Sizes (T, S) of the steps that reach the native kernel, and how many products do."""
    seen = {"steps": [], "products": 0}
    attend, product = decoding.decode_checked, linear.native_product

    def spy(step):
        assert choose(step)[0] == "native"
        seen["steps"].append((step.query.shape[2], step.heads.shape[2]))
        return attend(step)

    def count(*arguments):
        seen["products"] += 1
        return product(*arguments)

    monkeypatch.setattr(stepping, "step", lambda *arguments: None)  # which takes all blocks at once
    monkeypatch.setattr(decoding, "decode_checked", spy)
    monkeypatch.setattr(linear, "native_product", count)
    return seen


def model(variant, style, **fields):
    made = small_model(variant, *style, head_dim=16, **fields).float()
    randomise(made, 0.2)
    return made


def steps(made, ids, sizes, mask=None, cache=None):
    """Logits of the last positions, fed in steps of these sizes after the prompt."""
    logits, start = [], PROMPT
    with torch.no_grad():
        cache = made(ids[:, :PROMPT], attention_mask=None if mask is None else mask[:, :PROMPT], cache=cache).cache
        for size in sizes:
            stop = start + size
            seen = None if mask is None else mask[:, :stop]
            logits.append(made(ids[:, start:stop], attention_mask=seen, cache=cache).logits)
            start = stop
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("sizes", [[1] * 12, [5, 1, 6], [8, 4]], ids=str)
@pytest.mark.parametrize(("variant", "style"), PAIRED)
def test_native_steps_equal_the_full_pass(variant, style, sizes, taken):
    made, ids = model(variant, style), random_ids(3, LENGTH)
    with torch.no_grad():
        whole = made(ids, use_cache=False).logits[:, PROMPT:]
    torch.testing.assert_close(steps(made, ids, sizes), whole, rtol=1e-4, atol=1e-4)
    ends = [PROMPT + sum(sizes[: number + 1]) for number in range(len(sizes))]
    assert taken["steps"] == [(size, end) for size, end in zip(sizes, ends, strict=True) for _ in range(2)]


@pytest.mark.parametrize(("variant", "style"), PAIRED)
def test_padding_on_the_left_is_never_read(variant, style, taken):
    made, ids = model(variant, style), random_ids(3, LENGTH)
    mask = torch.ones_like(ids)
    mask[0, :7] = mask[2, :1] = 0
    padded = steps(made, ids, [1] * 12, mask)
    alone = steps(made, ids[:1, 7:], [1] * 5)  # its prompt reaches as far as PROMPT of the shortened sequence
    torch.testing.assert_close(padded[:1, -1:], alone[:, -1:], rtol=1e-4, atol=1e-4)
    assert {size for size, _ in taken["steps"]} == {1}


def test_a_mask_with_holes_takes_the_general_path(taken):
    made, ids = model("K=V", ("modern", "full")), random_ids(2, LENGTH)
    mask = torch.ones_like(ids)
    mask[1, 4] = 0
    holed = steps(made, ids, [1] * 12, mask)
    assert not taken["steps"]
    with torch.no_grad():
        whole = made(ids, attention_mask=mask, use_cache=False).logits[:, PROMPT:]
    torch.testing.assert_close(holed, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize("variant", ["QKV", "K=V GQA-2"])
def test_rounded_rows_are_read_as_they_are_kept(variant, dtype, taken, monkeypatch):
    made, ids = model(variant, ("modern", "full")), random_ids(2, LENGTH)
    fast = steps(made, ids, [1] * 12, cache=made.model.new_cache(dtype=dtype))
    assert len(taken["steps"]) == 24
    monkeypatch.setattr(native, "AVAILABLE", False)  # rows are then converted, and go through torch
    slow = steps(made, ids, [1] * 12, cache=made.model.new_cache(dtype=dtype))
    assert len(taken["steps"]) == 24
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-4)


def test_generation_without_the_library_gives_the_same_tokens(taken, monkeypatch):
    made, ids = model("K=V", ("modern", "full")), random_ids(2, PROMPT)
    options = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": VOCAB - 1}
    fast = made.generate(ids, attention_mask=torch.ones_like(ids), **options)
    assert taken["steps"]
    monkeypatch.setattr(native, "AVAILABLE", False)
    assert torch.equal(made.generate(ids, attention_mask=torch.ones_like(ids), **options), fast)


def test_small_weights_stay_with_torch_and_large_ones_do_not(taken):
    made = small_model("K=V", "modern", "full", hidden_size=256, head_dim=16, intermediate_size=2048).float()
    with torch.no_grad():
        made(random_ids(1, 2))
    assert taken["products"] == 3 * 2  # the matrices of the MLP, in each of two layers


def test_gradients_through_a_cache_take_the_general_path(taken):
    made, ids = model("K=V", ("modern", "full")), random_ids(1, LENGTH)
    cache = made(ids[:, :PROMPT], use_cache=True).cache
    made(ids[:, PROMPT : PROMPT + 1], cache=cache).logits.sum()
    assert not taken["steps"]


@pytest.mark.filterwarnings("ignore:.torch.jit.*deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of sizes, which a trace fixes
@pytest.mark.parametrize("variant", ["QKV", "K=V"])
def test_a_traced_decode_step_is_right_for_other_tokens(variant, taken):
    made = model(variant, ("modern", "full")).requires_grad_(False)

    def last(ids):
        cache = made(ids[:, :PROMPT], use_cache=True).cache
        return made(ids[:, PROMPT:], cache=cache).logits

    ids = random_ids(2, PROMPT + 1)
    with torch.no_grad():
        traced = torch.jit.trace(last, ids, check_trace=False)
        assert not taken["steps"]
        others = (ids + 1) % (VOCAB - 1)
        torch.testing.assert_close(traced(others), last(others), rtol=1e-4, atol=1e-4)
    assert taken["steps"]
