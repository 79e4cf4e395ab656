"""Models that cache their layers' input: every way to generate, everything that is done to a cache, and its bytes."""

import copy

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

from small_inputs import FAMILIES, audio, gpt2, inputs, opt, random_ids, whisper
from twofold.cache.layer import RowLayer
from twofold.folding.fold import fold, new_cache

NEW, PROMPT = 17, 13
MODES = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "sampling": {"do_sample": True, "temperature": 1.3, "num_return_sequences": 2},
    "static": {"cache_implementation": "static"},
    "chunks": {"prefill_chunk_size": 5},
    "lookup": {"prompt_lookup_num_tokens": 3, "batch": 1},
}


def generated(model, *, batch=2, seed=0, **mode):
    ids = random_ids(batch, PROMPT, seed)
    mask = torch.ones_like(ids)
    mask[0, : 4 if batch > 1 else 0] = 0
    torch.manual_seed(seed)
    return model.generate(ids, attention_mask=mask, max_new_tokens=NEW, **{"do_sample": False, **mode})


@pytest.mark.parametrize("make", [gpt2, opt])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_every_way_to_generate_gives_the_same_tokens(make, mode, dtype):
    model = make(dtype)
    expected = generated(model, **MODES[mode])
    fold(model)
    assert torch.equal(generated(model, **MODES[mode]), expected)
    assert len(expected.unique()) > 5


@pytest.mark.parametrize("make", [gpt2, opt])
def test_assisted_generation_with_both_models_folded(make):
    model, assistant = make(), make()
    with torch.no_grad():
        for parameter in assistant.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    expected = generated(model, batch=1)
    fold(model)
    fold(assistant)
    assert torch.equal(generated(model, batch=1, assistant_model=assistant), expected)


@pytest.mark.parametrize("mode", [{}, {"num_beams": 3}, {"cache_implementation": "static"}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_whisper_hears_the_same(mode, dtype):
    model = whisper(dtype)
    heard = {"input_features": audio(2, dtype), "max_new_tokens": NEW, "do_sample": False}
    expected = model.generate(**heard, **mode)
    folding = fold(model)
    assert [one.name for one in folding.folds] == [f"model.decoder.layers.{n}.self_attn" for n in (0, 1)]
    assert folding.stays == ()
    assert torch.equal(model.generate(**heard, **mode), expected)
    assert expected.shape == (2, NEW)
    told = model.generate(**heard, **mode, return_dict_in_generate=True)  # takes keys and values out of the cache
    assert torch.equal(told["sequences"][:, 1:], expected)


def of_self(cache):
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def crop(cache):
    cache.crop(-5)


def repeat(cache):
    cache.batch_repeat_interleave(2)


def select(cache):
    cache.batch_select_indices(torch.tensor([1]))


def reorder(cache):
    cache.reorder_cache(torch.tensor([1, 1]))


def reset(cache):
    cache.reset()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("change", [crop, repeat, select, reorder, reset])
def test_what_is_done_to_a_cache_is_done_to_its_rows(family, change):
    """The next step's logits are those of a stock cache to which the same was done; each layer has one storage."""
    model, ids = FAMILIES[family](), random_ids(2, PROMPT)

    def logits():
        cache = model(**inputs(family, ids)).cache
        untouched = copy.deepcopy(cache)
        change(cache)
        batch = {repeat: 4, select: 1}.get(change, 2)
        once = model(**inputs(family, random_ids(batch, 3, seed=1)), cache=cache)
        twice = model(**inputs(family, random_ids(2, 3, seed=1)), cache=untouched)
        return torch.cat([once.logits, twice.logits]), once.cache

    with torch.no_grad():
        expected, _ = logits()
        fold(model)
        got, cache = logits()
    torch.testing.assert_close(got, expected, atol=1e-10, rtol=0)
    assert all(isinstance(layer, RowLayer) for layer in of_self(cache).layers)
    assert len({layer.storage_id for layer in of_self(cache).layers}) == len(of_self(cache).layers)


def held(layer):
    """Bytes of the storages behind a layer's keys and values, each counted once."""
    storages = {part.untyped_storage().data_ptr(): part.untyped_storage() for part in (layer.keys, layer.values)}
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_half_of_the_bytes(family, dtype):
    """Rows in use are half of keys and values to the byte; so is what is reserved, where that is known beforehand."""
    model, ids, tokens = FAMILIES[family](dtype), random_ids(3, 31), 31
    config = model.config.get_text_config(decoder=True)

    def caches():
        growing, fixed = new_cache(model), StaticCache(config=config, max_cache_len=tokens)
        if family == "whisper":
            fixed = EncoderDecoderCache(fixed, DynamicCache(config=model.config))
        for cache in (growing, fixed):
            model(**inputs(family, ids[:, :20], None, dtype), cache=cache)
            model(**inputs(family, ids[:, 20:], None, dtype), cache=cache)
        return of_self(growing).layers, of_self(fixed).layers

    with torch.no_grad():
        stock_growing, stock_fixed = caches()
        folds = fold(model).folds
        growing, fixed = caches()
    for one, layer, before, room, room_before in zip(folds, growing, stock_growing, fixed, stock_fixed, strict=True):
        assert one.numbers * 2 == one.stock
        assert layer.bytes_used * 2 == held(before)
        assert layer.bytes_reserved <= 1.5 * layer.bytes_used
        assert held(room) == room.bytes_reserved == room.bytes_used
        assert held(room) * 2 == held(room_before)
