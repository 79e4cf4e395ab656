"""Whole models of every variant: steps with a cache equal the full pass, and its bytes are arithmetic."""

import pytest
import torch
from transformers.cache_utils import DynamicCache

from every_variant import EVERY, HEAD_DIM, HEADS, KINDS, WINDOWED, every_model
from small_models import random_ids, small_model, uninitialised_is_nan
from twofold.analysis import costs
from twofold.attention import decoding
from twofold.kernels import native
from twofold.kernels.decode import choose
from twofold.models import stepping

LENGTH, PROMPT, PADS = 11, 5, (0, 3, 6)
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4}
"""Largest difference, in units of the logits' deviation."""

needs_native = pytest.mark.skipif(not native.AVAILABLE, reason=native.why_not() or "built")


def numbers_of_a_row(sizes):
    """By the table of docs/architecture.md."""
    words, d, r = str(sizes.variant).split(), HEAD_DIM, sizes.rotated_dims
    groups = next((int(word[4:]) for word in words if word.startswith("GQA-")), 1 if "MQA" in words else HEADS)
    if "MLA" in words:
        return sizes.latent_dims + (0 if "on_read" in words else r)
    if "simplified" in words:
        return d * groups
    if not words[0].endswith("K=V"):
        return 2 * d * groups
    if "decoupled" in words:
        return d * groups + r
    return (d + r if "kept" in words else d) * groups


def bytes_by_hand(sizes, tokens, *, slack=False):
    """Of float64 rows of all sequences. With `slack`: of a cache made for so many tokens."""
    total = 0
    for layer, window in enumerate(sizes.windows):
        row = len(PADS) * numbers_of_a_row(sizes.at(layer)) * 8
        if layer % sizes.variant.row_layers == 0:
            room = tokens if window is None else window + window // 8 * slack
            total += row * min(tokens, room)
    return total


def left_padding():
    mask = torch.ones(len(PADS), LENGTH, dtype=torch.long)
    for sequence, pad in enumerate(PADS):
        mask[sequence, :pad] = 0
    return mask


def in_steps(model, ids, size, mask=None, cache=None, check=lambda tokens: None):
    """Logits of a prompt, then of steps of `size` tokens."""
    parts, start = [], 0
    for stop in range(PROMPT, LENGTH + 1, size):
        seen = None if mask is None else mask[:, :stop]
        parts.append(model(ids[:, start:stop], attention_mask=seen, cache=cache).logits)
        check(stop)
        start = stop
    return torch.cat(parts, dim=1)


def assert_close(logits, expected, unit):
    largest = float((logits - expected).abs().max() / unit)
    assert largest < TOLERANCE[logits.dtype]


def assert_steps_equal_the_full_pass(model, cases, check=lambda cache, tokens: None):
    ids = random_ids(len(PADS), LENGTH)
    with torch.no_grad():
        full = model(ids, use_cache=False).logits
        alone = [model(ids[n : n + 1, pad:], use_cache=False).logits[0] for n, pad in enumerate(PADS)]
        unit = float(full.std())
        assert unit > 0.3
        for size, padded, capacity in cases:
            cache = model.model.new_cache(capacity)
            mask = left_padding() if padded else None
            logits = in_steps(model, ids, size, mask, cache, lambda tokens, cache=cache: check(cache, tokens))
            if padded:
                for n, pad in enumerate(PADS):
                    assert_close(logits[n, pad:], alone[n][: logits.shape[1] - pad], unit)
            else:
                assert_close(logits, full[:, : logits.shape[1]], unit)


@pytest.mark.parametrize("name", EVERY)
def test_steps_equal_the_full_pass(name):
    model = every_model(name, deviation=0.3)
    sizes = model.config.architecture

    def check(cache, tokens):
        assert cache.bytes_used == bytes_by_hand(sizes, tokens) == costs.cache_bytes(sizes, tokens, "float64", 3)
        if cache.layers[0].capacity:
            assert cache.bytes_reserved == bytes_by_hand(sizes, LENGTH, slack=True)

    with uninitialised_is_nan():
        assert_steps_equal_the_full_pass(model, [(1, False, None), (1, True, LENGTH), (3, True, None)], check)


@needs_native
@pytest.mark.parametrize("name", EVERY)
def test_native_steps_equal_the_full_pass(name, monkeypatch):
    attend, taken = decoding.decode_checked, []

    def spy(step):
        assert choose(step)[0] == "native"
        taken.append(step)
        return attend(step)

    monkeypatch.setattr(stepping, "step", lambda *arguments: None)  # block by block: see test_models_stepping.py
    monkeypatch.setattr(decoding, "decode_checked", spy)
    model = every_model(name, deviation=0.3).float()
    assert_steps_equal_the_full_pass(model, [(1, False, None), (1, True, None), (3, True, None)])
    sizes = model.config.architecture
    made_on_read = sizes.rotary != "none" and any(variant.latent and variant.on_read for variant in sizes.variants)
    assert bool(taken) != (sizes.sinks or made_on_read)
    if taken:
        assert {step.window for step in taken} == set(sizes.windows)
        assert (taken[0].frequencies is not None) == ("on_read" in name and sizes.rotary != "none")


@needs_native
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "int8") for name in dict.fromkeys([*KINDS, *WINDOWED])), *((name, "bfloat16") for name in KINDS[::5])],
)
def test_rounded_rows_are_the_same_with_and_without_the_library(name, dtype, monkeypatch):
    # In one the kernel reads rows as they are kept; in the other they are converted, and go through torch.
    model, ids = every_model(name, deviation=0.3).float(), random_ids(len(PADS), LENGTH)
    sizes, logits = model.config.architecture, {}
    with torch.no_grad():
        full = model(ids, use_cache=False).logits
        for available in (True, False):
            monkeypatch.setattr(native, "AVAILABLE", available)
            cache = model.model.new_cache(dtype=dtype)
            logits[available] = in_steps(model, ids, 3, left_padding(), cache)[left_padding().bool()]
            assert cache.bytes_used == costs.cache_bytes(sizes, LENGTH, dtype, len(PADS))
    rounding = float((logits[True][:LENGTH] - full[0]).square().mean().sqrt() / full.std())
    assert 1e-4 < rounding < 0.2
    # What differs in the last bit may be rounded to two sides, and then differs by as much as rounding does.
    assert float((logits[True] - logits[False]).square().mean().sqrt() / full.std()) < rounding / 10


@pytest.mark.parametrize("name", dict.fromkeys([*KINDS[::4], *WINDOWED, *(n for n in EVERY if "on_read" in n)]))
def test_holes_in_the_mask(name):
    # Positions count what is not padding, also those of keys that are turned when they are read.
    model, ids = every_model(name, deviation=0.3), random_ids(len(PADS), LENGTH)
    mask = left_padding()
    mask[0, 2] = mask[1, 7] = mask[2, 8] = 0
    with torch.no_grad():
        full = model(ids, attention_mask=mask, use_cache=False).logits
        steps = in_steps(model, ids, 3, mask, model.model.new_cache())
    assert_close(steps[mask.bool()], full[mask.bool()], full.std())


@pytest.mark.parametrize("name", [*KINDS[::5], *WINDOWED, *(name for name in KINDS if "CLA" in name)])
def test_a_cache_of_transformers_is_adopted(name):
    model, ids = every_model(name, deviation=0.3), random_ids(len(PADS), LENGTH)
    cache = DynamicCache()
    with torch.no_grad():
        full = model(ids, use_cache=False).logits
        assert_close(in_steps(model, ids, 3, None, cache), full, full.std())
    sizes = model.config.architecture
    assert sum(layer.bytes_used for layer in cache.layers) == bytes_by_hand(sizes, LENGTH)


@pytest.mark.parametrize("variant", ["K=V on_read", "Q=K=V on_read"])
def test_cached_keys_that_turn_when_read_need_positions_that_count(variant):
    model, ids = small_model(variant), random_ids(2, 10)
    gaps = torch.tensor([[0, 1, 2, 3, 4, 20, 21, 22, 23, 24]])
    with torch.no_grad():
        cache = model(ids[:, :5], position_ids=gaps[:, :5]).cache
        with pytest.raises(ValueError, match="these position_ids leave gaps or begin elsewhere"):
            model(ids[:, 5:], position_ids=gaps[:, 5:], cache=cache)
        shifted = torch.arange(10)[None] + 1_000
        whole = model(ids, position_ids=shifted, use_cache=False).logits
        cache = model(ids[:, :5], position_ids=shifted[:, :5]).cache
        steps = [model(ids[:, n : n + 1], position_ids=shifted[:, n : n + 1], cache=cache).logits for n in range(5, 10)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole[:, 5:], rtol=0, atol=1e-9)


@pytest.mark.parametrize("variant", ["MLA", "K=V decoupled", "K=V kept"])
def test_a_window_shorter_than_the_text_takes_gradients(variant):
    model, ids = small_model(variant, rotary="partial", rotary_dims=4, sliding_window=3), random_ids(1, 7)
    loss = model(ids, use_cache=True).logits.square().sum()
    wanted = torch.autograd.grad(model(ids, use_cache=False).logits.square().sum(), list(model.parameters()))
    for found, of_all in zip(torch.autograd.grad(loss, list(model.parameters())), wanted, strict=True):
        torch.testing.assert_close(found, of_all, rtol=1e-9, atol=1e-9)
