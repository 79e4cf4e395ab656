"""Any sequence of operations on a row layer against a cache that concatenates and indexes: contents and bytes."""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from small_models import uninitialised_is_nan
from twofold.cache.layer import GROWTH, RowLayer
from twofold.variants.layout import RowLayout, cache_bytes

KV_HEADS = 3
CAPACITY = 61
LAYOUTS = {
    "separate": RowLayout.separate(5),
    "shared": RowLayout.shared(5),
    "partial": RowLayout.partial(7, 2),
    "decoupled": RowLayout.decoupled(5, 2),
}
few = st.integers(1, 11)
filled = precondition(lambda self: self.tokens)


class Operations(RuleBasedStateMachine):
    """What generation does to a cache, in any order. `kept` is the naive cache: one tensor per part of the row."""

    layout: RowLayout
    capacity: int | None = None

    @initialize(batch=st.integers(1, 3), dtype=st.sampled_from([torch.float32, torch.float64]), tokens=few)
    def start(self, batch, dtype, tokens):
        self.layer = RowLayer(self.layout, KV_HEADS, self.capacity)
        self.batch, self.dtype = batch, dtype
        self.kept = self.rows(0)
        self.append(tokens)

    def rows(self, tokens):
        heads = torch.randn(self.batch, KV_HEADS, tokens, self.layout.head_width, dtype=self.dtype)
        width = self.layout.shared_width
        return heads, torch.randn(self.batch, tokens, width, dtype=self.dtype) if width else None

    def change(self, operation):
        """Apply `operation`(tensor with tokens second to last) to both parts of the naive cache."""
        heads, shared = self.kept
        self.kept = operation(heads), None if shared is None else operation(shared)

    @property
    def tokens(self):
        return self.kept[0].shape[2]

    @precondition(lambda self: self.capacity is None or self.tokens < self.capacity)
    @rule(tokens=few)
    def append(self, tokens):
        room = tokens if self.capacity is None else min(tokens, self.capacity - self.tokens)
        new, start, before = self.rows(room), self.tokens, self.layer.storage_id
        fits = self.layer.bytes_reserved >= self.formula(self.tokens + room)
        with uninitialised_is_nan():
            seen = self.layer.update(*new)
        heads, shared = self.kept
        shared = None if shared is None else torch.cat([shared, new[1]], dim=1)
        self.kept = torch.cat([heads, new[0]], dim=2), shared
        self.assert_seen(seen)
        assert not (fits and start) or self.layer.storage_id == before, "there was room, and the rows moved"

    @filled
    @rule(share=st.floats(0, 1))
    def crop(self, share):
        left = round(share * self.tokens)
        with uninitialised_is_nan():
            self.layer.crop(left - self.tokens)
        self.change(lambda part: part[..., :left, :])

    @filled
    @rule(data=st.data())
    def reorder(self, data):
        index = self.some_sequences(data, self.batch, self.batch)
        before = self.layer.storage_id
        self.layer.reorder_cache(index)
        self.change(lambda part: part[index])
        assert self.layer.storage_id == before

    @precondition(lambda self: self.tokens and self.batch <= 3)
    @rule(repeats=st.integers(1, 3))
    def repeat(self, repeats):
        self.layer.batch_repeat_interleave(repeats)
        self.change(lambda part: part.repeat_interleave(repeats, dim=0))
        self.batch *= repeats

    @filled
    @rule(data=st.data())
    def select(self, data):
        index = self.some_sequences(data, 1, 3)
        self.layer.batch_select_indices(index)
        self.change(lambda part: part[index])
        self.batch = len(index)

    @precondition(lambda self: self.tokens > 20)
    @rule(batch=st.integers(1, 3))
    def reset(self, batch):
        self.layer.reset()
        self.batch = batch
        self.kept = self.rows(0)

    @rule()
    def to_the_cpu_and_back(self):
        self.layer.offload()
        self.layer.prefetch()

    def some_sequences(self, data, fewest, most):
        return torch.tensor(data.draw(st.lists(st.integers(0, self.batch - 1), min_size=fewest, max_size=most)))

    def formula(self, tokens):
        return cache_bytes(self.layout, KV_HEADS, tokens=tokens, itemsize=self.dtype.itemsize, batch=self.batch)

    def assert_seen(self, seen):
        for part, kept in zip(seen, self.kept, strict=True):
            assert (part is None) == (kept is None)
            if kept is not None:
                assert torch.equal(part, kept)

    @invariant()
    def contents_and_bytes(self):
        assert self.layer.get_seq_length() == self.tokens
        assert self.layer.bytes_used == self.formula(self.tokens)
        if not self.tokens:
            return
        seen = self.layer.update(*self.rows(0))  # no tokens more, and views of all there are
        self.assert_seen(seen)
        storages = {part.untyped_storage().data_ptr() for part in seen if part is not None}
        assert storages == {self.layer.storage_id}, "one storage holds all parts of all rows"
        if self.capacity is None:
            assert self.layer.bytes_reserved <= GROWTH * self.layer.bytes_used
        else:
            assert self.layer.bytes_reserved == self.formula(self.capacity)


@pytest.mark.parametrize("capacity", [None, CAPACITY], ids=["growing", "preallocated"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_operations(layout, capacity):
    machine = type("Machine", (Operations,), {"layout": LAYOUTS[layout], "capacity": capacity})
    run_state_machine_as_test(machine, settings=settings(max_examples=40, stateful_step_count=20))
