"""Sliding layers of any model free what they drop."""

import copy

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, MistralConfig
from transformers.cache_utils import DynamicSlidingWindowLayer

from small_folded import randomised, some_tokens, stepped
from twofold.folding.fold import fold, folded_cache, folding_of, unfold
from twofold.folding.parity import stored_bytes

WINDOW = 7


@pytest.fixture(scope="module")
def mistral():
    sizes = {"hidden_size": 24, "intermediate_size": 31, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = MistralConfig(**sizes, num_key_value_heads=1, vocab_size=61, sliding_window=WINDOW, pad_token_id=0)
    return randomised(config, torch.float64)


@pytest.fixture
def folded(mistral):
    twin = copy.deepcopy(mistral)
    folding = fold(twin)
    assert folding.windows == {0: WINDOW, 1: WINDOW}
    assert not folding.folds
    return twin


def test_storage_after_a_long_prompt_is_the_windows(mistral, folded):
    ids_BT = some_tokens(2, 53)
    row = 2 * 2 * 8 * 8  # key and value of two texts, 8 dims, float64
    _, stock = stepped(mistral, ids_BT, [53])
    _, ours = stepped(folded, ids_BT, [53])
    assert [stored_bytes(layer) for layer in stock.layers] == [53 * row] * 2
    assert [stored_bytes(layer) for layer in ours.layers] == [(WINDOW - 1) * row] * 2


@pytest.mark.parametrize("chunks", [[31], [3] + [1] * 28, [13, 1, 9, 8]], ids=["whole", "one by one", "chunks"])
def test_logits_are_the_same_bits(mistral, folded, chunks):
    ids_BT = some_tokens(2, 31)
    assert torch.equal(stepped(mistral, ids_BT, chunks)[0], stepped(folded, ids_BT, chunks)[0])


def test_single_tokens_are_not_copied_again(folded, monkeypatch):
    copies = []
    clone = torch.Tensor.clone
    monkeypatch.setattr(torch.Tensor, "clone", lambda self, *a, **k: copies.append(1) or clone(self, *a, **k))
    cache = DynamicCache(config=folded.config)
    ids_BT = some_tokens(1, 29)
    stepped(folded, ids_BT[:, :20], [20], cache=cache)
    assert len(copies) == 4
    stepped(folded, ids_BT[:, 20:], [1] * 9, cache=cache)
    assert len(copies) == 4


def test_a_recorded_past_is_freed_by_the_next_crop(mistral, folded):
    ids_BT = some_tokens(1, 30)
    caches = [DynamicCache(config=mistral.config) for _ in range(2)]
    logits = []
    for model, cache in zip((mistral, folded), caches, strict=True):
        cache.activate_past_recording()
        stepped(model, ids_BT[:, :20], [20], cache=cache)
        cache.crop(-3)
        logits.append(stepped(model, ids_BT[:, 17:], [4, 9], cache=cache)[0])
    assert torch.equal(*logits)
    caches[1].crop(-2)
    row = 2 * 8 * 8
    assert [stored_bytes(layer) for layer in caches[1].layers] == [(WINDOW - 1) * row] * 2


def test_assisted_decoding_gives_stocks_tokens(mistral, folded):
    ids_BT = some_tokens(1, 19)
    named = {"max_new_tokens": 12, "do_sample": False, "prompt_lookup_num_tokens": 3, "pad_token_id": 0}
    assert torch.equal(mistral.generate(ids_BT, **named), folded.generate(ids_BT, **named))


def test_a_stock_model_takes_a_cache_that_frees(mistral):
    cache = folded_cache(mistral)
    stepped(mistral, some_tokens(1, 40), [40], cache=cache)
    assert stored_bytes(cache.layers[0]) == (WINDOW - 1) * 2 * 8 * 8


def test_unfolding_gives_stock_caches_back(mistral, folded):
    unfold(folded)
    assert folding_of(folded) is None
    _, cache = stepped(folded, some_tokens(1, 9), [9])
    assert [type(layer) for layer in cache.layers] == [DynamicSlidingWindowLayer] * 2
    with pytest.raises(ValueError, match="not folded"):
        unfold(folded)


def test_windows_have_no_form(mistral):
    with pytest.raises(ValueError, match="no layer of this mistral model has a form: leave it out, and its 2 sliding"):
        fold(mistral, "row")
    assert folding_of(mistral) is None


def test_a_model_without_windows_and_shared_numbers_is_refused_with_what_was_looked_for():
    config = LlamaConfig(hidden_size=16, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=9)
    with pytest.raises(ValueError, match=r"nothing in this llama model folds: looked for gemma4, .* conversion"):
        fold(LlamaForCausalLM(config))
    with pytest.raises(ValueError, match="can be stored once as it is"):
        folded_cache(LlamaForCausalLM(config))
