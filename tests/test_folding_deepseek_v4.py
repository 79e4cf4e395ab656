"""DeepSeek-V4 folded: the same bits, of entries that are stored once whatever is done to the cache."""

import copy

import pytest
import torch
from transformers import DynamicCache
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4CSACache

from small_folded import both, deepseek_v4, padded, some_tokens, stepped
from twofold.folding.fold import fold, folded_cache, folding_of, plan, unfold

WINDOW, WIDTH = 7, 10
WAYS = ([26], [2] + [1] * 24, [6, 1, 11, 5, 1, 2])
SLIDING, COMPRESSED = (0, 3), (1, 2)


@pytest.fixture(scope="module")
def v4():
    return deepseek_v4()


@pytest.fixture
def folded(v4):
    fold(v4)
    yield v4
    if folding_of(v4):
        unfold(v4)


def window_storages(layer):
    """The storages behind a layer's keys and values, and their bytes together."""
    found = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in (layer.keys, layer.values)}
    return len(found), sum(found.values())


def waiting_bytes(layer):
    """Bytes of the storages behind the tokens that wait to be compressed."""
    return sum(
        part.untyped_storage().nbytes() for states in (layer.buffer_kv, layer.buffer_gate) for part in states.values()
    )


@pytest.mark.parametrize(
    ("dtype", "left_padded"), [(torch.float64, True), (torch.float32, False), (torch.bfloat16, True)]
)
def test_chunks_of_any_size_past_the_window_give_the_same_bits(dtype, left_padded):
    ids, mask = padded(some_tokens(3, 26), (0, 9, 4)) if left_padded else (some_tokens(2, 26), None)

    def run(model):
        return [stepped(model, ids, chunks, mask)[0] for chunks in WAYS]

    model = deepseek_v4(dtype)
    for stock, own in zip(*both(model, run), strict=True):
        assert torch.equal(stock, own)


@pytest.mark.parametrize(
    "named",
    [{"do_sample": False}, {"do_sample": False, "num_beams": 3}, {"do_sample": True, "top_k": 20}],
    ids=["greedy", "beams", "sampled"],
)
def test_generate_gives_the_same_tokens(v4, named):
    ids, mask = padded(some_tokens(2, 9), (0, 4))

    def run(model):
        torch.manual_seed(5)
        return model.generate(ids, attention_mask=mask, max_new_tokens=12, **named)

    stock, own = both(v4, run)
    assert own.shape[1] == 21
    assert torch.equal(stock, own)


def reordered(cache):
    cache.reorder_cache(torch.tensor([2, 2, 1]))


def repeated(cache):
    cache.batch_repeat_interleave(2)


def selected(cache):
    cache.batch_select_indices(torch.tensor([2, 0]))


def moved(cache):
    for layer in cache.layers:
        layer.offload()
        layer.prefetch()


def cropped_by_nothing(cache):
    cache.crop(0)


@pytest.mark.parametrize(
    ("change", "sequences"),
    [
        (reordered, [2, 2, 1]),
        (repeated, [0, 0, 1, 1, 2, 2]),
        (selected, [2, 0]),
        (moved, [0, 1, 2]),
        (cropped_by_nothing, [0, 1, 2]),
        (copy.deepcopy, [0, 1, 2]),
    ],
)
def test_a_changed_cache_is_that_of_the_sequences_it_now_holds_in_one_storage(folded, change, sequences):
    ids = some_tokens(3, 19)
    _, cache = stepped(folded, ids, [14, 1, 1, 3])
    cache = change(cache) or cache
    for number, layer in enumerate(cache.layers):
        storages, held = window_storages(layer)
        assert storages == 1
        most = WINDOW if number in SLIDING else WINDOW + 2  # what a step of three tokens saw
        assert held <= len(sequences) * most * WIDTH * 8
    more = some_tokens(len(sequences), 8, seed=2)
    own, _ = stepped(folded, more, [1, 5, 2], cache=cache)
    unfold(folded)
    true, _ = stepped(folded, torch.cat([ids[sequences], more], dim=1), [14, 1, 1, 3, 1, 5, 2])
    assert float((own - true[:, 19:]).abs().max()) <= 1e-10


def test_a_reset_cache_starts_again(folded):
    _, cache = stepped(folded, some_tokens(3, 19), [14, 5])
    cache.reset()
    own, _ = stepped(folded, some_tokens(2, 11, seed=2), [8, 3], cache=cache)
    assert torch.equal(own, stepped(folded, some_tokens(2, 11, seed=2), [8, 3])[0])


def test_bytes_are_those_of_one_window_and_nothing_of_the_prompt(v4):
    ids = some_tokens(2, 50)
    for chunks in ([44], [44, 1, 1]):
        (_, stock), (_, own) = both(v4, lambda model, chunks=chunks: stepped(model, ids[:, : sum(chunks)], chunks))
        once = 2 * WINDOW * WIDTH * 8
        for number in SLIDING:
            assert own.layers[number].bytes_reserved == own.layers[number].bytes_used == once
            assert window_storages(own.layers[number]) == (1, once)
            assert window_storages(stock.layers[number])[1] >= 2 * once
        for number in COMPRESSED:
            assert window_storages(own.layers[number])[1] <= once
            assert waiting_bytes(own.layers[number]) <= waiting_bytes(stock.layers[number])
        rate = 5  # of the heavily compressed layer: 44 tokens leave 4 that wait, 46 leave 1
        assert waiting_bytes(own.layers[2]) == 2 * 2 * (sum(chunks) % rate) * WIDTH * 8


def test_keys_are_stocks_window(v4):
    (_, stock), (_, own) = both(v4, lambda model: stepped(model, some_tokens(2, 19), [14, 5]))
    for theirs, ours in zip(stock.layers, own.layers, strict=True):
        assert torch.equal(theirs.keys, ours.keys[:, :, -WINDOW + 1 :])
        assert torch.equal(ours.keys, ours.values)
        assert ours.get_seq_length() == theirs.get_seq_length() == 19
        assert ours.get_mask_sizes(3) == theirs.get_mask_sizes(3)


def test_tokens_of_a_sliding_layer_can_be_cropped_and_those_of_a_compressed_one_are_refused(folded):
    _, cache = stepped(folded, some_tokens(2, 5), [5])
    with pytest.raises(ValueError, match="2 tokens cannot be cropped from a compressed layer"):
        cache.crop(-2)
    assert not cache.is_croppable
    unfold(folded)
    sliding = deepseek_v4(layer_types=["sliding_attention"] * 2)

    def run(model):
        _, cache = stepped(model, some_tokens(2, 6), [4, 2])
        cache.crop(-3)
        return stepped(model, some_tokens(2, 6, seed=2), [1, 5], cache=cache)[0]

    assert torch.equal(*both(sliding, run))


def test_unfold_restores_classes_and_bits_and_other_models_keep_the_stock_cache(v4):
    classes = [type(module) for module in v4.modules()]
    ids = some_tokens(2, 26)
    before, _ = stepped(v4, ids, [20, 1, 5])
    folding = fold(v4)
    assert [(one.form, one.stock, one.numbers, one.window) for one in folding.folds] == [
        ("row", 20, 10, WINDOW),
        ("window", 10, 10, WINDOW),
        ("window", 10, 10, WINDOW),
        ("row", 20, 10, WINDOW),
    ]
    stepped(v4, ids, [26])
    assert type(DynamicCache(config=v4.config).layers[1]) is DeepseekV4CSACache
    unfold(v4)
    after, cache = stepped(v4, ids, [20, 1, 5])
    assert torch.equal(before, after)
    assert [type(module) for module in v4.modules()] == classes
    assert type(cache.layers[1]) is DeepseekV4CSACache


def test_a_cache_without_the_models_configuration_is_refused(folded):
    with pytest.raises(ValueError, match="use a DynamicCache of the model's configuration"):
        stepped(folded, some_tokens(2, 5), [5], cache=DynamicCache())


def test_a_folded_cache_serves_the_stock_model(v4):
    ids = some_tokens(2, 26)
    stock, _ = stepped(v4, ids, [20, 1, 5])
    own, cache = stepped(v4, ids, [20, 1, 5], cache=folded_cache(v4))
    assert torch.equal(stock, own)
    assert all(cache.layers[number].bytes_used == 2 * WINDOW * WIDTH * 8 for number in SLIDING)


def test_another_form_is_answered_with_the_one_there_is(v4):
    with pytest.raises(ValueError, match="a deepseek_v4 model folds by form row, and not by latent"):
        plan(v4, "latent")
