"""However the tokens come in, logits are those of one full pass and the cache's bytes are the formula's."""

from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from small_models import STYLES, VARIANTS, formula_bytes, random_ids, small_model, uninitialised_is_nan
from twofold.cache.layer import GROWTH
from twofold.models.configuration import TwofoldConfig
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.initialise import initialise

BATCH, LENGTH = 3, 17
TOLERANCE = 1e-9

every_model = pytest.mark.parametrize(
    "model", [(v, *style) for v in VARIANTS for style in STYLES], ids="/".join, indirect=True
)


@pytest.fixture
def model(request):
    made = small_model(*request.param)
    with torch.no_grad(), uninitialised_is_nan():
        yield made


class Cached:
    """A model with its cache; compares every call with the full pass and counts bytes after it."""

    def __init__(self, model, capacity=None):
        self.model = model
        self.cache = model.model.new_cache(capacity)
        self.capacity = capacity

    def feed(self, ids, of, **arguments):
        """Feed `ids` [B, T]; their logits must be `of` [B, T, V]."""
        logits = self.model(ids, cache=self.cache, **arguments).logits
        torch.testing.assert_close(logits, of, rtol=0, atol=TOLERANCE)
        self.check_bytes(len(ids))

    def check_bytes(self, batch):
        tokens = self.cache.get_seq_length()
        assert self.cache.bytes_used == formula_bytes(self.model, tokens=tokens, batch=batch)
        if self.capacity:
            assert self.cache.bytes_reserved == formula_bytes(self.model, tokens=self.capacity, batch=batch)
        else:
            assert self.cache.bytes_reserved <= GROWTH * self.cache.bytes_used


def full_pass(model, ids, **arguments):
    logits = model(ids, use_cache=False, **arguments).logits
    assert logits.std() >= 1
    return logits


@every_model
def test_one_prefill_token_by_token_and_preallocated(model):
    ids = random_ids(BATCH, LENGTH)
    full = full_pass(model, ids)
    Cached(model).feed(ids, full)
    for capacity in (None, LENGTH + 2):
        cached = Cached(model, capacity)
        for t in range(LENGTH):
            cached.feed(ids[:, t : t + 1], full[:, t : t + 1])


@every_model
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])  # nobody changes the model
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=10))
def test_any_chunks(model, sizes):
    ids = random_ids(BATCH, sum(sizes))
    chunks = zip(ids.split(sizes, dim=1), full_pass(model, ids).split(sizes, dim=1), strict=True)
    cached = Cached(model)
    for chunk, expected in chunks:
        cached.feed(chunk, expected)


@every_model
def test_a_left_padded_batch(model):
    # Each row must give what it gives alone, in one pass, in chunks and token by token.
    ids, pads = random_ids(BATCH, LENGTH), (0, 5, 11)
    mask = torch.ones_like(ids)
    for row, pad in enumerate(pads):
        mask[row, :pad] = 0
    alone = [full_pass(model, ids[row : row + 1, pad:])[0] for row, pad in enumerate(pads)]

    def assert_rows(logits, start, stop):
        for row, pad in enumerate(pads):
            seen = slice(max(start, pad) - start, None)
            expected = alone[row][max(start - pad, 0) : max(stop - pad, 0)]
            torch.testing.assert_close(logits[row, seen], expected, rtol=0, atol=TOLERANCE)

    assert_rows(full_pass(model, ids, attention_mask=mask), 0, LENGTH)
    for cuts in ([0, LENGTH], [0, 2, 7, 8, LENGTH], [0, *range(12, LENGTH + 1)]):
        cached = Cached(model)
        for start, stop in pairwise(cuts):
            logits = model(ids[:, start:stop], attention_mask=mask[:, :stop], cache=cached.cache).logits
            assert_rows(logits, start, stop)
            cached.check_bytes(BATCH)


@every_model
def test_after_a_crop(model):
    ids, other = random_ids(BATCH, LENGTH), random_ids(BATCH, LENGTH, seed=1)
    for kept in (1, 6, 11, LENGTH - 1):
        both = torch.cat([ids[:, :kept], other[:, kept:]], dim=1)
        full = full_pass(model, both)
        cached = Cached(model)
        model(ids, cache=cached.cache)
        cached.cache.crop(kept - LENGTH)
        cached.check_bytes(BATCH)
        cached.feed(both[:, kept : kept + 1], full[:, kept : kept + 1])
        if kept + 1 < LENGTH:
            cached.feed(both[:, kept + 1 :], full[:, kept + 1 :])


@every_model
def test_after_a_beam_reorder(model):
    ids, after = random_ids(BATCH, LENGTH), random_ids(BATCH, 4, seed=1)
    for beams in ([2, 0, 0], [1, 2, 0], [1, 1, 1]):
        both = torch.cat([ids[beams], after], dim=1)
        full = full_pass(model, both)
        cached = Cached(model)
        cached.feed(ids, full_pass(model, ids))
        cached.cache.reorder_cache(torch.tensor(beams))
        cached.check_bytes(BATCH)
        cached.feed(after[:, :1], full[:, LENGTH : LENGTH + 1])
        cached.feed(after[:, 1:], full[:, LENGTH + 1 :])


@every_model
def test_after_repeating_and_selecting_sequences(model):
    ids, after = random_ids(BATCH, LENGTH), random_ids(4, 2, seed=1)
    cached = Cached(model)
    cached.feed(ids, full_pass(model, ids))
    cached.cache.batch_repeat_interleave(2)
    cached.check_bytes(2 * BATCH)
    cached.cache.batch_select_indices(torch.tensor([5, 0, 2, 2]))
    both = torch.cat([ids[[2, 0, 1, 1]], after], dim=1)
    cached.feed(after, full_pass(model, both)[:, LENGTH:])


SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 60,
    "num_attention_heads": 6,
    "intermediate_size": 172,
    "vocab_size": 257,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "initializer_range": 0.1,
    "attn_implementation": "sdpa",
}


def cached_error(model):
    """Root mean square and largest difference of cached and uncached logits, in units of the logits' deviation."""
    ids = torch.randint(257, (4, 41), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        full = model(ids, use_cache=False).logits
        cache, steps = None, []
        for t in range(ids.shape[1]):
            outputs = model(ids[:, t : t + 1], cache=cache, use_cache=True)
            cache, steps = outputs.cache, [*steps, outputs.logits]
    difference = (torch.cat(steps, dim=1).double() - full.double()) / full.double().std()
    return torch.stack([difference.square().mean().sqrt(), difference.abs().max()])


def test_float32_is_as_exact_as_llama():
    llamas = (LlamaForCausalLM(LlamaConfig(**SIZES)).eval() for _ in range(3))
    limit = 2 * torch.stack([cached_error(llama) for llama in llamas]).amax(0)
    for variant in VARIANTS:
        for block, rotary in STYLES:
            config = TwofoldConfig(**SIZES, variant=variant, block=block, rotary=rotary)
            model = TwofoldForCausalLM(config).eval()
            initialise(model, seed=0)
            assert (cached_error(model) <= limit).all(), (variant, block, rotary)


HALF_TOLERANCE = {torch.bfloat16: (0.02, 0.15), torch.float16: (0.003, 0.02)}
"""Root mean square and largest difference, in deviations of the logits: a few roundings of 2⁻⁹ and 2⁻¹²."""


@pytest.mark.parametrize("dtype", HALF_TOLERANCE, ids=str)
def test_half_precision_stays_within_its_tolerance(dtype):
    for variant in VARIANTS:
        model = TwofoldForCausalLM(TwofoldConfig(**SIZES, variant=variant)).to(dtype).eval()
        initialise(model, seed=0)
        assert (cached_error(model) <= torch.tensor(HALF_TOLERANCE[dtype])).all(), variant
