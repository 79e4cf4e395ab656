"""Only relative positions matter: moving all positions changes nothing, in every variant with rotary."""

import pytest
import torch

from attention_chains import chain
from every_variant import EVERY, every_config, every_model
from small_models import random_ids
from twofold.attention.treatments import Derotated
from twofold.models import sights
from twofold.variants.choices import Treatment

SHIFTS = (1, 1_000, 100_000)
TOLERANCE = {torch.float64: 1e-9, torch.bfloat16: 0.15}
"""Largest change, in units of the outputs' deviation. In bfloat16 cosines themselves are rounded, to 0.4 %."""
LENGTH = 11

ROTARY = [name for name in EVERY if every_config(name).rotary != "none"]
DEROTATED = [
    name
    for name in ROTARY
    if (variant := every_config(name).architecture.variant).sharing.value_is_key
    and variant.treatment is Treatment.DEROTATED
]


def largest_change(layers, dtype=torch.float64):
    """Of what the layers give, in units of its deviation, over all shifts."""
    for seam in layers.seams.values():
        seam.to(dtype)
    with torch.no_grad():
        x = layers.inputs(length=LENGTH).to(dtype)
        positions = torch.arange(LENGTH)[None]
        near = layers.fast(x, positions_BT=positions).double()
        moved = [layers.fast(x, positions_BT=positions + shift).double() for shift in SHIFTS]
    assert (near - x / 2).std() > 0.1
    return max(float((far - near).abs().max() / near.std()) for far in moved)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", ROTARY)
def test_only_relative_positions_matter(name, dtype):
    assert largest_change(chain(name), dtype) < TOLERANCE[dtype]


class LeftTurned(Derotated):
    """The well-known fault: a shared value is the turned key, and what was read is not turned back."""

    def read(self, read_BTHD, by):
        return read_BTHD


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", DEROTATED)
def test_values_left_turned_are_found_out(name, dtype):
    wrong = chain(name)
    for seam in wrong.seams.values():
        assert type(seam.maker) is Derotated
        seam.maker = LeftTurned()
    assert largest_change(wrong, dtype) > 3 * TOLERANCE[dtype]


def logits_in_steps(model, ids, shift):
    """A prompt of 4 and steps of 1 and 3 tokens, all positions moved by `shift`; and the same in one pass."""
    positions = torch.arange(ids.shape[1])[None] + shift
    cache, parts, start = model.model.new_cache(), [], 0
    with torch.no_grad():
        for stop in (4, 5, 8, 9):
            logits = model(ids[:, start:stop], position_ids=positions[:, start:stop], cache=cache).logits
            parts, start = [*parts, logits], stop
        return torch.cat(parts, dim=1), model(ids, position_ids=positions, use_cache=False).logits


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in ROTARY), *((name, torch.float64) for name in ROTARY if "on_read" in name)],
)
def test_a_whole_model_depends_on_relative_positions(name, dtype):
    # In float32 decode steps reach the native kernel, which turns keys that are kept raw by itself.
    model, ids = every_model(name, deviation=0.3).to(dtype), random_ids(2, 9)
    near, _ = logits_in_steps(model, ids, 0)
    assert near.std() > 0.3
    for far in logits_in_steps(model, ids, SHIFTS[-1]):
        limit = 1e-8 if dtype == torch.float64 else 3e-4
        torch.testing.assert_close(far, near, rtol=0, atol=limit * float(near.std()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["torch", "native"])
def test_queries_that_move_without_their_rows_are_found_out(dtype, monkeypatch):
    model, ids = every_model("K=V on_read", deviation=0.3).to(dtype), random_ids(2, 9)
    near, _ = logits_in_steps(model, ids, 0)
    turned, stepped = sights._row_rotation, sights.decode_mask

    def at_zero(config, mask, cache, positions_BT, by, window):
        back_BT = positions_BT % 100
        return turned(config, mask, cache, back_BT, sights.rotation(back_BT, 8, 1e4, dtype), window)

    def from_zero(*arguments, positions_BT, **named):
        return stepped(*arguments, positions_BT=positions_BT % 100, **named)

    monkeypatch.setattr(sights, "_row_rotation", at_zero)
    monkeypatch.setattr(sights, "decode_mask", from_zero)
    far, _ = logits_in_steps(model, ids, SHIFTS[-1])
    assert (far - near).abs().max() / near.std() > 0.3
