"""Any sequence of operations on a row layer against a cache that concatenates and indexes: contents and bytes."""

import numpy as np
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
from twofold.variants.layout import RowLayout, cache_bytes, scale_bytes

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


def rounded(part):
    """int8 and back, part by part: whole multiples of a 127th of the largest number, as float32."""
    if part is None or part.numel() == 0:
        return part
    numbers = part.numpy()
    scales = np.abs(numbers).max(axis=-1, keepdims=True).astype(np.float32) / np.float32(127)
    return torch.from_numpy(np.rint(numbers / scales) * scales.astype(numbers.dtype))


class Operations(RuleBasedStateMachine):
    """What generation does to a cache, in any order. `whole` is the naive cache: all tokens, one tensor per part of
    the row; `held` counts those that a window keeps.
    """

    layout: RowLayout
    capacity: int | None = None
    cache_dtype: str | None = None
    window: int | None = None

    @initialize(batch=st.integers(1, 3), dtype=st.sampled_from([torch.float32, torch.float64]), tokens=few)
    def start(self, batch, dtype, tokens):
        self.layer = self.new_layer()
        self.batch, self.dtype = batch, dtype
        self.whole, self.held, self.recording = self.rows(0), 0, False
        self.append(tokens)

    def new_layer(self):
        return RowLayer(self.layout, KV_HEADS, self.capacity, self.cache_dtype, self.window)

    def rows(self, tokens):
        heads = torch.randn(self.batch, KV_HEADS, tokens, self.layout.head_width, dtype=self.dtype)
        width = self.layout.shared_width
        return heads, torch.randn(self.batch, tokens, width, dtype=self.dtype) if width else None

    def change(self, operation):
        """Apply `operation`(tensor with tokens second to last) to both parts of the naive cache."""
        heads, shared = self.whole
        self.whole = operation(heads), None if shared is None else operation(shared)

    @property
    def tokens(self):
        return self.whole[0].shape[2]

    def newest(self, tokens):
        start = self.tokens - tokens
        return [None if part is None else part[..., start:, :] for part in self.whole]

    @precondition(lambda self: self.capacity is None or self.tokens < self.capacity)
    @rule(tokens=few)
    def append(self, tokens):
        room = tokens if self.capacity is None else min(tokens, self.capacity - self.tokens)
        new, start, before = self.rows(room), self.tokens, self.layer.storage_id
        fits = self.window is None and self.layer.bytes_reserved >= self.formula(self.tokens + room)
        with uninitialised_is_nan():
            seen = self.layer.update(*new)
        if self.cache_dtype == "int8":
            new = [rounded(part) for part in new]
        shared = None if self.whole[1] is None else torch.cat([self.whole[1], new[1]], dim=1)
        self.whole = torch.cat([self.whole[0], new[0]], dim=2), shared
        visible = start if self.window is None else min(start, self.window - 1)
        self.assert_seen(seen, visible + room)
        self.held += room
        if self.window is not None and not self.recording:
            self.held = min(self.held, self.window)
        assert not (fits and start) or self.layer.storage_id == before, "there was room, and the rows moved"

    @filled
    @rule(share=st.floats(0, 1), few=few)
    def crop(self, share, few):
        left = round(share * self.tokens) if self.window is None else max(0, self.tokens - few)
        removed = self.tokens - left
        if left and self.window is not None and self.held - removed < min(left, self.window - 1):
            with pytest.raises(ValueError, match=f"a window of {self.window} tokens has dropped what .* {removed} of"):
                self.layer.crop(-removed)
            return
        with uninitialised_is_nan():
            self.layer.crop(-removed)
        self.change(lambda part: part[..., :left, :])
        self.held = self.held - removed if left else 0
        if self.window is not None:
            self.held = min(self.held, self.window)

    @precondition(lambda self: self.window is not None)
    @rule()
    def record_the_past(self):
        self.layer.activate_past_recording()
        self.recording = True

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
        self.whole, self.held = self.rows(0), 0

    @rule()
    def to_the_cpu_and_back(self):
        self.layer.offload()
        self.layer.prefetch()

    @filled
    @rule()
    def taken_over_by_another_layer(self):
        twin = self.new_layer()
        twin.restore(self.layer.kept(), self.layer.length)
        if self.recording:
            twin.activate_past_recording()
        self.layer = twin

    def some_sequences(self, data, fewest, most):
        return torch.tensor(data.draw(st.lists(st.integers(0, self.batch - 1), min_size=fewest, max_size=most)))

    def formula(self, tokens):
        kept_in = self.cache_dtype or str(self.dtype).removeprefix("torch.")
        itemsize = getattr(torch, kept_in).itemsize
        return cache_bytes(
            self.layout,
            KV_HEADS,
            tokens=tokens,
            itemsize=itemsize,
            batch=self.batch,
            scale_bytes=scale_bytes(kept_in),
        )

    def assert_seen(self, seen, tokens):
        for part, expected in zip(seen, self.newest(tokens), strict=True):
            assert (part is None) == (expected is None)
            if expected is not None:
                assert torch.equal(part, expected)

    @invariant()
    def contents_and_bytes(self):
        assert self.layer.get_seq_length() == self.tokens
        assert self.layer.is_croppable == (self.window is None or self.recording)
        visible = self.tokens if self.window is None else min(self.tokens, self.window - 1)
        assert self.layer.get_mask_sizes(3) == (visible + 3, self.tokens - visible)
        assert self.layer.bytes_used == self.formula(self.held)
        if not self.tokens:
            return
        kept = self.layer.kept()
        self.assert_seen(kept.to(self.dtype), self.held)
        stored = {part.untyped_storage().data_ptr() for part in kept[:2] if part is not None and part.numel()}
        scales = {part.untyped_storage().data_ptr() for part in kept[2:] if part is not None and part.numel()}
        assert stored <= {self.layer.storage_id}, "one storage holds all parts of all rows"
        assert len(scales) == (self.cache_dtype == "int8" and self.held > 0), "and one their scales"
        if self.capacity is None:
            assert self.layer.bytes_reserved <= GROWTH * self.layer.bytes_used
        elif not self.recording:
            room = self.capacity if self.window is None else min(self.capacity, self.window + self.window // 8)
            assert self.layer.bytes_reserved == self.formula(room)


KINDS = {
    **{layout: (layout, None, None) for layout in LAYOUTS},
    "int8": ("shared", "int8", None),
    "int8 in two parts": ("decoupled", "int8", None),
    "a window of 1": ("shared", None, 1),
    "a window of 17": ("separate", None, 17),
    "a window of 17 in int8": ("decoupled", "int8", 17),
}


@pytest.mark.parametrize("capacity", [None, CAPACITY], ids=["growing", "preallocated"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_operations(kind, capacity):
    layout, cache_dtype, window = KINDS[kind]
    of = {"layout": LAYOUTS[layout], "capacity": capacity, "cache_dtype": cache_dtype, "window": window}
    run_state_machine_as_test(
        type("Machine", (Operations,), of), settings=settings(max_examples=12, stateful_step_count=20)
    )
