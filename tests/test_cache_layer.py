"""Row layers and row caches: where the memory is, when it moves, what is refused, which caches are adopted."""

import copy

import pytest
import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer, StaticCache

from small_models import formula_bytes, random_ids, small_config, small_model
from twofold.cache.layer import GROWTH, RowLayer
from twofold.cache.row_cache import RowCache, adopt
from twofold.variants.layout import RowLayout, cache_bytes

LAYOUT = RowLayout.shared(5)


def rows(tokens, batch=2, kv_heads=3, width=5, dtype=torch.float32):
    return torch.randn(batch, kv_heads, tokens, width, dtype=dtype)


def filled(tokens, capacity=None):
    layer = RowLayer(LAYOUT, 3, capacity)
    layer.update(rows(tokens), None)
    return layer


def test_growth_is_geometric():
    layer, moves, before = RowLayer(LAYOUT, 3), 0, None
    for _ in range(1_000):
        layer.update(rows(1, batch=1), None)
        moves += layer.storage_id != before
        before = layer.storage_id
    assert moves < 40  # each move makes room for a quarter more
    assert layer.bytes_reserved <= GROWTH * layer.bytes_used


def test_rows_of_one_head_lie_in_a_straight_line():
    layer = filled(7)
    seen, _ = layer.update(rows(4), None)
    assert seen[1, 2].is_contiguous()
    assert seen.stride()[-2:] == (5, 1)


def test_cropping_a_few_tokens_moves_nothing():
    layer = filled(100)
    storage, reserved = layer.storage_id, layer.bytes_reserved
    layer.crop(-7)
    assert (layer.storage_id, layer.bytes_reserved) == (storage, reserved)
    layer.update(rows(7), None)
    assert layer.storage_id == storage


def test_cropping_many_gives_memory_back():
    layer = filled(100)
    layer.crop(-90)
    assert layer.bytes_reserved <= GROWTH * layer.bytes_used


def test_cropping_more_than_there_is_empties():
    layer = filled(7)
    layer.crop(-8)
    assert (layer.get_seq_length(), layer.bytes_used, layer.bytes_reserved) == (0, 0, 0)


def test_a_reset_preallocated_layer_keeps_its_storage_for_the_same_batch():
    layer = filled(7, capacity=11)
    storage = layer.storage_id
    layer.reset()
    layer.update(rows(11), None)
    assert layer.storage_id == storage
    assert layer.bytes_used == layer.bytes_reserved == cache_bytes(LAYOUT, 3, tokens=11, itemsize=4, batch=2)


def test_a_reset_layer_takes_other_batches_and_dtypes():
    for capacity in (None, 11):
        layer = filled(7, capacity)
        layer.reset()
        seen, _ = layer.update(rows(5, batch=3, dtype=torch.float64), None)
        assert (seen.shape, seen.dtype) == ((3, 3, 5, 5), torch.float64)


def test_capacity_is_a_limit():
    layer = filled(7, capacity=11)
    layer.update(rows(4), None)
    with pytest.raises(ValueError, match="made for 11 tokens and 12 are needed"):
        layer.update(rows(1), None)
    assert layer.get_seq_length() == 11
    with pytest.raises(ValueError, match="made for 11 tokens and 12 are needed"):
        filled(12, capacity=11)
    with pytest.raises(ValueError, match="capacity of at least 1 token, not 0"):
        RowCache(1, LAYOUT, 3, capacity=0)
    assert (layer.get_max_length(), filled(7).get_max_length()) == (11, -1)


def test_rows_that_do_not_fit_are_refused():
    layer = filled(7)
    with pytest.raises(ValueError, match="holds rows of 2 sequences and got rows of 3"):
        layer.update(rows(1, batch=3), None)
    with pytest.raises(ValueError, match=r"holds torch\.float32 rows and got torch\.float64"):
        layer.update(rows(1, dtype=torch.float64), None)
    with pytest.raises(ValueError, match="crop takes minus the number of tokens to remove, not 3"):
        layer.crop(3)
    assert layer.get_seq_length() == 7


def test_operations_on_an_empty_layer_do_nothing():
    layer = RowLayer(LAYOUT, 3)
    layer.crop(-3)
    layer.reset()
    layer.reorder_cache(torch.tensor([1, 0]))
    layer.batch_repeat_interleave(2)
    layer.batch_select_indices(torch.tensor([0]))
    layer.offload()
    layer.prefetch()
    assert (layer.bytes_used, layer.bytes_reserved, layer.get_seq_length()) == (0, 0, 0)


def test_a_storage_that_two_layers_read_is_counted_once():
    cache = RowCache(3, LAYOUT, 3)
    for layer in cache.layers[:2]:
        layer.update(rows(7), None)
    once = cache.bytes_reserved
    cache.layers[2] = cache.layers[1]
    assert cache.bytes_reserved == once


def test_a_copied_cache_goes_its_own_way():
    model = small_model("K=V GQA-2")
    ids = random_ids(2, 11)
    with torch.no_grad():
        cache = model(ids[:, :7]).cache
        twin = copy.deepcopy(cache)
        expected = model(ids[:, 7:], cache=cache).logits
        model(ids[:, :3], cache=twin)
        twin.crop(-3)
        torch.testing.assert_close(model(ids[:, 7:], cache=twin).logits, expected, rtol=0, atol=1e-12)


def test_a_cache_from_inference_mode_serves_outside_of_it():
    model, ids = small_model("K=V"), random_ids(2, 11)
    with torch.inference_mode():
        cache = model(ids[:, :7]).cache
        cache.reorder_cache(torch.tensor([0, 1]))
    with torch.no_grad():
        expected = model(ids).logits
        continued = model(ids[:, 7:9], cache=cache).logits
        cache.crop(-1)
        cache.reorder_cache(torch.tensor([0, 1]))
    with torch.inference_mode():
        last = model(ids[:, 8:], cache=cache).logits
    torch.testing.assert_close(continued, expected[:, 7:9], rtol=0, atol=1e-10)
    torch.testing.assert_close(last, expected[:, 8:], rtol=0, atol=1e-10)


@pytest.mark.parametrize("make", [DynamicCache, lambda: DynamicCache(config=small_config())])
def test_empty_dynamic_caches_are_adopted(make):
    model = small_model("K=V")
    cache = make()
    with torch.no_grad():
        result = model(random_ids(2, 7), cache=cache).cache
    assert result is cache
    assert all(isinstance(layer, RowLayer) for layer in cache.layers)
    assert sum(layer.bytes_used for layer in cache.layers) == formula_bytes(model, tokens=7, batch=2)


def test_empty_static_caches_are_adopted_with_their_capacity():
    model = small_model("MQA")
    cache = StaticCache(config=model.config, max_cache_len=19)
    with torch.no_grad():
        model(random_ids(2, 7), cache=cache)
    assert sum(layer.bytes_reserved for layer in cache.layers) == formula_bytes(model, tokens=19, batch=2)


class Quantised(DynamicLayer):
    """Stands for any layer that does more than keep what it is given."""


@pytest.mark.parametrize(
    "cache",
    [
        Cache(layer_class_to_replicate=Quantised),
        Cache(layers=[Quantised(), Quantised()]),
        Cache(layers=[DynamicSlidingWindowLayer(5), DynamicSlidingWindowLayer(5)]),
        Cache(layers=[RowLayer(LAYOUT, 3), DynamicLayer()]),
    ],
)
def test_caches_that_do_more_are_refused(cache):
    with pytest.raises(ValueError, match="this Cache cannot be made to: it must be an empty DynamicCache"):
        small_model()(random_ids(1, 3), cache=cache)


def test_used_caches_are_refused_and_emptied_ones_are_not():
    for cache in (DynamicCache(), StaticCache(config=small_config(), max_cache_len=5)):
        cache.update(rows(3), rows(3), 0)
        with pytest.raises(ValueError, match=f"this {type(cache).__name__} cannot be made to"):
            adopt(cache, 2, LAYOUT, 3)
        cache.reset()
        assert adopt(cache, 2, LAYOUT, 3) is cache


@pytest.mark.parametrize("other", [{"variant": "QKV"}, {"variant": "K=V MQA"}, {"num_hidden_layers": 3}])
def test_another_models_cache_is_refused(other):
    cache = small_model(**{"variant": "K=V", **other}).model.new_cache()
    with pytest.raises(ValueError, match=r"made for another model: [23] layers with rows of \d+ numbers"):
        small_model("K=V")(random_ids(1, 3), cache=cache)


@pytest.mark.parametrize("first", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("capacity", [None, 31])
def test_rows_from_a_mode_without_gradients_are_continued_with_them(first, capacity):
    layer = RowLayer(RowLayout.decoupled(5, 2), 3, capacity)
    with first():
        layer.update(rows(7), torch.randn(2, 7, 2))
        layer.batch_repeat_interleave(2)
    for tokens in (1, 9):  # in the room that there is, and beyond it
        heads, shared = rows(tokens, batch=4).requires_grad_(), torch.randn(4, tokens, 2, requires_grad=True)
        seen_heads, seen_shared = layer.update(heads, shared)
        (seen_heads.sum() + 2 * seen_shared.sum()).backward(retain_graph=True)
        assert bool((heads.grad == 1).all())
        assert bool((shared.grad == 2).all())


def test_what_append_returns_is_what_is_kept():
    layer = RowLayer(RowLayout.decoupled(5, 2), 3, dtype=torch.bfloat16)
    for tokens in (7, 1, 1, 9):
        returned = layer.append(rows(tokens), torch.randn(2, tokens, 2))
        for part, same in zip(returned, layer.kept(), strict=True):
            assert (part is None) == (same is None)
            assert part is None or (part.dtype, part.data_ptr(), part.shape) == (
                torch.bfloat16,
                same.data_ptr(),
                same.shape,
            )
    assert returned.scales_BGS is None
