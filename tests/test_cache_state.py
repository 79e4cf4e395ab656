"""State layers: any sequence of operations against the sum over all tokens; constant bytes; what is refused."""

import copy

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
from transformers.cache_utils import Cache

from twofold.attention.recurrence import chunked, elu_plus_one, no_state
from twofold.cache.state_layer import StateLayer

HEADS, KV_HEADS, KEY, VALUE = 6, 3, 7, 5
SHAPE = (KV_HEADS, KEY, VALUE + 1)
few = st.integers(1, 11)
filled = precondition(lambda self: self.tokens)


def tokens_of(count, batch=2, dtype=torch.float32):
    sizes = ((HEADS, KEY), (KV_HEADS, KEY), (KV_HEADS, VALUE))
    return [torch.randn(batch, heads, count, width, dtype=dtype) for heads, width in sizes]


def advance(layer, query, key, value):
    return layer.update(key, value, lambda state: chunked(query, key, value, elu_plus_one, state, chunk=4))


def stepped(*counts, **options):
    layer = StateLayer(SHAPE)
    for count in counts:
        advance(layer, *tokens_of(count, **options))
    return layer


def formula(batch, itemsize=4):
    return batch * KV_HEADS * KEY * (VALUE + 1) * itemsize


class Operations(RuleBasedStateMachine):
    """What generation does to a cache, in any order. `keys` and `values` are all tokens, of every sequence."""

    @initialize(batch=st.integers(1, 3), dtype=st.sampled_from([torch.float32, torch.float64]), count=few)
    def start(self, batch, dtype, count):
        self.layer, self.batch, self.dtype = StateLayer(SHAPE), batch, dtype
        self.forget()
        self.step(count)

    def forget(self):
        self.keys, self.values = (torch.empty(self.batch, KV_HEADS, 0, width).double() for width in (KEY, VALUE))

    @property
    def tokens(self):
        return self.keys.shape[2]

    def all_sequences(self, change):
        self.keys, self.values = change(self.keys), change(self.values)
        self.batch = len(self.keys)

    @rule(count=few)
    def step(self, count):
        query, key, value = tokens_of(count, self.batch, self.dtype)
        advance(self.layer, query, key, value)
        self.keys, self.values = torch.cat([self.keys, key], dim=2), torch.cat([self.values, value], dim=2)

    @filled
    @rule(seed=st.integers(0, 99))
    def reorder(self, seed):
        beams = torch.randint(self.batch, (self.batch,), generator=torch.Generator().manual_seed(seed))
        self.layer.reorder_cache(beams)
        self.all_sequences(lambda part: part[beams])

    @precondition(lambda self: self.tokens and self.batch < 5)
    @rule(repeats=st.integers(1, 3))
    def repeat(self, repeats):
        self.layer.batch_repeat_interleave(repeats)
        self.all_sequences(lambda part: part.repeat_interleave(repeats, dim=0))

    @filled
    @rule(seed=st.integers(0, 99))
    def select(self, seed):
        kept = torch.randperm(self.batch, generator=torch.Generator().manual_seed(seed))[: 1 + seed % self.batch]
        self.layer.batch_select_indices(kept)
        self.all_sequences(lambda part: part[kept])

    @filled
    @rule(removed=st.integers(0, 14))
    def crop(self, removed):
        if 0 < removed < self.tokens:
            with pytest.raises(ValueError, match=f"^{removed} of {self.tokens} tokens cannot be cropped"):
                self.layer.crop(-removed)
            return
        self.layer.crop(-removed)
        if removed:
            self.forget()

    @filled
    @rule()
    def offload_and_back(self):
        self.layer.offload()
        self.layer.prefetch()

    @filled
    @rule()
    def restore(self):
        made = StateLayer(SHAPE)
        made.restore(self.layer.kept().clone(), self.layer.length)
        self.layer = made

    @rule()
    def reset(self):
        self.layer.reset()
        self.forget()

    @invariant()
    def it_holds_the_sum_over_all_tokens(self):
        assert self.layer.get_seq_length() == self.tokens
        assert self.layer.get_mask_sizes(3) == (self.tokens + 3, 0)
        assert self.layer.is_initialized == bool(self.tokens)
        if not self.tokens:
            assert self.layer.bytes_used == self.layer.bytes_reserved == 0
            return
        ones = torch.nn.functional.pad(self.values, (0, 1), value=1.0)
        expected = elu_plus_one(self.keys).mT @ ones
        tolerance = 1e-10 if self.dtype == torch.float64 else 1e-3
        torch.testing.assert_close(self.layer.kept().double(), expected, rtol=0, atol=tolerance)
        assert self.layer.bytes_used == self.layer.bytes_reserved == formula(self.batch, self.dtype.itemsize)


def test_any_sequence_of_operations():
    run_state_machine_as_test(Operations, settings=settings(max_examples=40, stateful_step_count=15))


def test_bytes_do_not_depend_on_tokens():
    used = set()
    for counts in ([1], [1_000], [7, 1, 900, 1]):
        layer = stepped(*counts)
        assert layer.length == sum(counts)
        used.add((layer.bytes_used, layer.bytes_reserved))
    assert used == {(formula(2), formula(2))}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_tokens_have_a_float32_state(dtype):
    layer = stepped(7, 1, dtype=dtype)
    assert layer.kept().dtype == torch.float32
    assert layer.bytes_reserved == formula(2)


def test_in_a_cache_of_transformers():
    cache = Cache(layers=[StateLayer(SHAPE), StateLayer(SHAPE)])
    query, key, value = tokens_of(9)
    for index in range(2):
        read, state = cache.update(key, value, index, lambda state: chunked(query, key, value, elu_plus_one, state))
        assert read.shape == (2, 9, HEADS, VALUE)
        assert state is cache.layers[index].kept()
    assert cache.get_seq_length() == 9
    assert cache.get_max_length() == -1
    assert cache.get_mask_sizes(4, 0) == (13, 0)
    assert not cache.is_croppable
    assert not cache.is_compileable
    assert cache.is_sliding == [False, False]
    cache.crop(0)
    assert cache.get_seq_length() == 9
    cache.crop(-9)
    assert cache.get_seq_length() == 0
    assert not any(layer.is_initialized for layer in cache.layers)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda layer: layer.crop(-1), "1 of 8 tokens cannot be cropped: .* Start again"),
        (lambda layer: layer.crop(3), "minus the number of tokens to remove, not 3"),
        (lambda layer: layer.activate_past_recording(), "assisted generation .* use a model with softmax attention"),
        (lambda layer: advance(layer, *tokens_of(1, batch=3)), "states of 2 sequences and got tokens of 3"),
        (lambda layer: advance(layer, *tokens_of(1, dtype=torch.float64)), "float32 state and torch.float64 is needed"),
        (lambda layer: layer.update(*tokens_of(1)[1:]), "use it with the model that made it"),
    ],
)
def test_what_a_state_cannot_do_is_refused_and_changes_nothing(fault, message):
    layer = stepped(7, 1)
    before = copy.deepcopy(layer)
    with pytest.raises(ValueError, match=message):
        fault(layer)
    assert torch.equal(layer.kept(), before.kept())
    assert layer.length == before.length == 8


def test_a_reset_layer_takes_other_sequences():
    layer = stepped(7)
    layer.reset()
    advance(layer, *tokens_of(5, batch=3, dtype=torch.float64))
    assert layer.length == 5
    assert layer.bytes_reserved == formula(3, itemsize=8)


def test_a_copy_goes_its_own_way():
    layer = stepped(7)
    twin = copy.deepcopy(layer)
    before = layer.kept().clone()
    advance(twin, *tokens_of(1))
    assert torch.equal(layer.kept(), before)
    assert (layer.length, twin.length) == (7, 8)


def test_gradients_flow_through_the_state():
    layer, first, second = StateLayer(SHAPE), tokens_of(7, dtype=torch.float64), tokens_of(1, dtype=torch.float64)
    for part in first:
        part.requires_grad_()
    advance(layer, *first)
    read, _ = advance(layer, *second)
    whole, _ = chunked(*(torch.cat(parts, dim=2) for parts in zip(first, second, strict=True)), elu_plus_one)
    of_state = torch.autograd.grad(read.sum(), first[1:])
    of_whole = torch.autograd.grad(whole[:, -1].sum(), first[1:])
    torch.testing.assert_close(of_state, of_whole, rtol=0, atol=1e-12)
    assert all(bool(gradient.any()) for gradient in of_state)


@pytest.mark.parametrize("first", [torch.no_grad, torch.inference_mode])
def test_a_state_from_a_mode_without_gradients_is_continued_with_them(first):
    layer = StateLayer(SHAPE)
    with first():
        advance(layer, *tokens_of(7))
        layer.batch_repeat_interleave(2)
        layer.reorder_cache(torch.tensor([1, 0, 2, 3]))
    for _ in range(2):
        later = [part.requires_grad_() for part in tokens_of(2, batch=4)]
        read, _ = advance(layer, *later)
        read.sum().backward(retain_graph=True)
        assert all(bool(part.grad.any()) for part in later)


def test_the_first_state_is_that_of_no_tokens():
    query, key, value = tokens_of(1, dtype=torch.bfloat16)
    seen = []

    def watched(state):
        seen.append(state)
        return chunked(query, key, value, elu_plus_one, state)

    StateLayer(SHAPE).update(key, value, watched)
    expected = no_state(key, value)
    assert torch.equal(seen[0], expected)
    assert seen[0].dtype == expected.dtype
