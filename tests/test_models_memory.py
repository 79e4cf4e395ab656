"""What a step of decoding allocates, as torch's allocator saw it."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from small_models import PAIRED, random_ids, small_model
from twofold.cache.layer import RowLayer

CACHED, HEAD_DIM = 2_003, 32


def allocations(act):
    """Bytes taken (+) and given back (−) while `act` runs, in order. Memory from before is not seen going."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        act()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]


def taken(act):
    """All bytes that `act` allocates, whether it keeps them or not."""
    return sum(size for size in allocations(act) if size > 0)


def peak(act):
    """The most that `act` holds at once of what it allocates."""
    held = most = 0
    for size in allocations(act):
        held += size
        most = max(most, held)
    return most


def filled(variant="K=V", style=("modern", "full"), batch=1, capacity=None, dtype=torch.float64):
    """A model, and its cache with `CACHED` random rows and room for more. In float32 the native kernel reads them."""
    model = small_model(variant, *style, head_dim=HEAD_DIM, max_position_embeddings=CACHED + 9).to(dtype)
    sizes = model.config.architecture
    cache = model.model.new_cache(capacity)
    for index in range(sizes.layers):
        shape = (batch, sizes.kv_heads, CACHED, sizes.row_layout.head_width)
        cache.update(torch.randn(shape, dtype=dtype), None, index)
    return model, cache


def step(model, cache, batch=1, **arguments):
    with torch.no_grad():
        model(random_ids(batch, 1), cache=cache, **arguments)


def storages(cache):
    return [layer.storage_id for layer in cache.layers]


def test_the_counter_sees_what_torch_allocates():
    kept = []
    assert taken(lambda: kept.append(torch.empty(1_000))) == 4_000
    assert taken(lambda: [torch.empty(500) for _ in range(3)]) == 6_000
    assert peak(lambda: [torch.empty(500).sum() for _ in range(30)]) < 8_000


@pytest.mark.parametrize("capacity", [None, CACHED + 5], ids=["growing", "preallocated"])
@pytest.mark.parametrize(("variant", "style"), PAIRED)
def test_a_decode_step_allocates_less_than_a_tenth_of_the_rows(variant, style, capacity):
    model, cache = filled(variant, style, capacity=capacity)
    before = storages(cache)
    assert taken(lambda: step(model, cache)) < cache.bytes_used / 10
    assert storages(cache) == before
    assert cache.get_seq_length() == CACHED + 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("variant", ["QKV", "K=V", "GQA-2", "K=V GQA-2"])
def test_a_step_with_padding_too(variant, dtype):
    model, cache = filled(variant, batch=2, dtype=dtype)
    mask = torch.ones(2, CACHED + 1, dtype=torch.long)
    mask[0, :3] = 0
    assert taken(lambda: step(model, cache, batch=2, attention_mask=mask)) < cache.bytes_used / 10


@pytest.mark.parametrize("variant", ["QKV", "K=V", "GQA-2", "K=V GQA-2"])
def test_a_beam_step_holds_less_than_a_tenth_of_the_rows(variant):
    model, cache = filled(variant, batch=3)
    before = storages(cache)

    def beam_step():
        cache.reorder_cache(torch.tensor([1, 1, 0]))
        step(model, cache, batch=3)

    assert peak(beam_step) < cache.bytes_used / 10
    assert storages(cache) == before


class Concatenating(RowLayer):
    def update(self, key_states, value_states, *args, **kwargs):
        rows, _ = super().update(key_states, value_states)
        return torch.cat([rows[:, :, :-1], key_states], dim=2), None


class Copying(RowLayer):
    def reorder_cache(self, beam_idx):
        self._replace(lambda part: part.index_select(0, beam_idx))


@pytest.mark.parametrize("wrong", [Concatenating, Copying])
def test_what_others_do_would_be_found_out(wrong):
    model, cache = filled(batch=2)
    for layer in cache.layers:
        layer.__class__ = wrong

    def beam_step():
        cache.reorder_cache(torch.tensor([1, 0]))
        step(model, cache, batch=2)

    assert peak(beam_step) > cache.bytes_used / 3
