"""Multi-head latent attention folded: stock's outputs by less work, over the rows that stock caches."""

import copy
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import StaticCache

from small_folded import both, deepseek_v2, deepseek_v3, far, latent_model, padded, some_tokens, stepped
from twofold.folding import deepseek
from twofold.folding.fold import fold, folding_of, unfold
from twofold.kernels import native

WAYS = ([17], [2] + [1] * 15, [5, 1, 4, 2, 1, 4])
STARTS = (0, 6, 3)
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 8.0,
    "mscale": 0.7,
    "mscale_all_dim": 0.9,
    "original_max_position_embeddings": 64,
}
MODELS = {
    "v2": lambda **changes: deepseek_v2(**changes),
    "v2, low-rank queries, yarn": lambda **changes: deepseek_v2(q_lora_rank=13, rope_parameters=YARN, **changes),
    "v3": lambda **changes: deepseek_v3(**changes),
    "v3, rotary in halves, biases": lambda **changes: deepseek_v3(
        rope_interleave=False, attention_bias=True, q_lora_rank=None, **changes
    ),
    "v3, yarn": lambda **changes: deepseek_v3(rope_parameters=YARN, **changes),
    **{
        name: lambda name=name, **changes: latent_model(name, **changes)
        for name in ("glm4_moe_lite", "youtu", "axk1", "minicpm3")
    },
}
KERNEL = {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 6}
"""Spans that the native kernel takes, and in float32 stock takes even ones only."""


class Adapted(nn.Module):
    """As an adapter wraps a layer: what it adds is not in the layer's weight."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer
        self.weight = nn.Parameter(torch.full_like(base_layer.weight, 0.1))

    def forward(self, x):
        return self.base_layer(x) + x @ self.weight.T


@pytest.fixture(scope="module")
def v2():
    return deepseek_v2()


@pytest.fixture
def folded(v2):
    fold(v2)
    yield v2
    if folding_of(v2):
        unfold(v2)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("left_padded", [False, True])
def test_chunks_of_any_size_equal_stock(name, left_padded):
    ids, mask = padded(some_tokens(3, 17), STARTS) if left_padded else (some_tokens(2, 17), None)
    seen = slice(None) if mask is None else mask.bool()

    def run(model):
        return [stepped(model, ids, chunks, mask)[0][seen] for chunks in WAYS]

    for stock, own in zip(*both(MODELS[name](), run), strict=True):
        assert far(stock, own) <= 1e-10


@pytest.mark.parametrize("expand_from", [1, 100])
def test_both_ways_to_read_equal_stock_at_any_number_of_positions(v2, monkeypatch, expand_from):
    asked = []
    monkeypatch.setattr(deepseek, "expand_from", lambda *sizes: asked.append(sizes) or expand_from)
    ids, mask = padded(some_tokens(3, 17), STARTS)
    stock, own = both(v2, lambda model: stepped(model, ids, [6, 9, 1, 1], mask)[0][mask.bool()])
    assert far(stock, own) <= 1e-10
    assert (11, 5, 7, 17) in asked


@pytest.mark.parametrize("family", [deepseek_v2, deepseek_v3])
@pytest.mark.parametrize("left_padded", [False, True])
def test_in_float32_the_kernel_decodes_as_exactly_as_stock(family, left_padded, monkeypatch):
    ids, mask = padded(some_tokens(3, 29), STARTS) if left_padded else (some_tokens(2, 29), None)
    seen = slice(None) if mask is None else mask.bool()
    steps = []
    decoded = deepseek.decoded
    monkeypatch.setattr(deepseek, "decoded", lambda *given: steps.append(given[0].shape[2]) or decoded(*given))
    model = family(torch.float32, **KERNEL)

    def run(model):
        return stepped(model, ids, [21, 1, 1, 4, 1, 1], mask)[0][seen]

    stock, own = both(model, run)
    model.set_attn_implementation("eager")
    assert far(stock, own) <= max(1e-6, 2 * far(stock, run(model)))
    assert steps == ([1, 1, 1, 1, 4, 4, 1, 1, 1, 1] if native.AVAILABLE else [])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes_differ_no_more_than_stock_does_from_float32(dtype):
    model, ids = deepseek_v2(torch.float32, **KERNEL), some_tokens(2, 29)
    model.to(dtype).float()  # the same weights in both
    true, _ = stepped(model, ids, [21, 1, 1, 4, 1, 1])
    stock, own = both(model.to(dtype), lambda model: stepped(model, ids, [21, 1, 1, 4, 1, 1])[0])
    assert own.dtype == dtype
    assert far(own.float(), true) <= 2 * far(stock.float(), true)


@pytest.mark.parametrize(
    "named",
    [
        {"do_sample": False},
        {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
        {"do_sample": True, "temperature": 1.3, "top_k": 20},
        {"do_sample": False, "cache_implementation": "static"},
        {"do_sample": False, "prefill_chunk_size": 4},
    ],
    ids=["greedy", "beams", "sampled", "static", "chunks"],
)
def test_generate_gives_the_same_tokens(v2, named):
    ids, mask = padded(some_tokens(2, 9), (0, 4))

    def run(model):
        torch.manual_seed(5)
        return model.generate(ids, attention_mask=mask, max_new_tokens=12, **named)

    stock, own = both(v2, run)
    assert own.shape[1] == 21
    assert torch.equal(stock, own)


def test_assisted_and_prompt_lookup_decoding_give_the_same_tokens(v2):
    assistant = deepseek_v2(num_hidden_layers=1)
    ids = some_tokens(1, 5).repeat(1, 3)
    for named in ({"assistant_model": assistant}, {"prompt_lookup_num_tokens": 3}):
        greedy = {"max_new_tokens": 12, "do_sample": False} | named
        stock, own = both(v2, lambda model, greedy=greedy: model.generate(ids, **greedy))
        assert torch.equal(stock, own)


def test_rows_are_what_stock_caches_in_as_many_bytes(v2):
    ids = some_tokens(2, 17)
    (_, stock), (_, own) = both(v2, lambda model: stepped(model, ids, [13, 1, 3]))
    for stock_layer, layer in zip(stock.layers, own.layers, strict=True):
        assert far(stock_layer.keys, layer.keys) <= 1e-10
        assert far(stock_layer.values, layer.values) <= 1e-10
        used = sum(part.numel() * part.element_size() for part in (stock_layer.keys, stock_layer.values))
        assert layer.bytes_used == used == 2 * 17 * (11 + 6) * 8
        assert layer.bytes_reserved <= 1.5 * used
        storages = {part.untyped_storage().data_ptr() for part in (layer.keys, layer.values)}
        assert storages == {layer.storage_id}
    assert len(list(own)) == 2


def crop(cache):
    cache.crop(-4)


def repeat(cache):
    cache.batch_repeat_interleave(2)


def select(cache):
    cache.batch_select_indices(torch.tensor([2, 0]))


def reorder(cache):
    cache.reorder_cache(torch.tensor([2, 2, 1]))


def reset(cache):
    cache.reset()


@pytest.mark.parametrize(
    ("change", "batch"), [(crop, 3), (repeat, 6), (select, 2), (reorder, 3), (reset, 3), (lambda cache: None, 3)]
)
@pytest.mark.parametrize("copied", [False, True])
def test_whatever_is_done_to_a_cache_the_next_tokens_equal_stock(v2, change, batch, copied):
    ids, more = some_tokens(3, 11), some_tokens(batch, 4, seed=2)

    def run(model):
        _, cache = stepped(model, ids, [10, 1])
        cache = copy.deepcopy(cache) if copied else cache
        change(cache)
        return stepped(model, more, [1, 3], cache=cache)[0]

    stock, own = both(v2, run)
    assert far(stock, own) <= 1e-10


def test_a_static_cache_is_reserved_once(folded):
    cache = StaticCache(config=folded.config, max_cache_len=19)
    stepped(folded, some_tokens(2, 5), [5], cache=cache)
    before = [layer.storage_id for layer in cache.layers]
    stepped(folded, some_tokens(2, 14), [1] * 14, cache=cache)
    assert [layer.storage_id for layer in cache.layers] == before
    assert [layer.bytes_reserved for layer in cache.layers] == [2 * 19 * 17 * 8] * 2
    with pytest.raises(ValueError, match="made for 19 tokens and 20 are needed"):
        stepped(folded, some_tokens(2, 1), [1], cache=cache)


def test_unfold_restores_classes_and_bits(v2):
    classes = [type(module) for module in v2.modules()]
    ids = some_tokens(2, 17)
    before, _ = stepped(v2, ids, [13, 1, 3])
    assert len(fold(v2).folds) == 2
    assert "FoldedDeepseekV2Attention" in str(v2)
    unfold(v2)
    after, cache = stepped(v2, ids, [13, 1, 3])
    assert torch.equal(before, after)
    assert [type(module) for module in v2.modules()] == classes
    assert type(cache.layers[0]).__name__ == "DynamicLayer"


def test_changed_weights_are_seen_at_the_next_step(v2):
    model = copy.deepcopy(v2)

    def run(model):
        _, cache = stepped(model, some_tokens(2, 11), [11])
        attention = model.model.layers[0].self_attn
        with torch.no_grad():
            attention.kv_b_proj.weight.mul_(-1.5)
        return stepped(model, some_tokens(2, 3), [1, 2], cache=cache)[0]

    stock = run(copy.deepcopy(model))
    fold(model)
    assert far(stock, run(model)) <= 1e-10


def test_an_adapter_on_the_latents_projection_is_refused_and_later_still_right(v2):
    model = copy.deepcopy(v2)
    attention = model.model.layers[1].self_attn
    plain, adapted = attention.kv_b_proj, Adapted(attention.kv_b_proj)
    attention.kv_b_proj = adapted
    with pytest.raises(
        ValueError, match=r"layers\.1\.self_attn cannot be folded: its kv_b_proj is a Adapted of .*merge"
    ):
        fold(model)
    assert folding_of(model) is None
    stock, _ = stepped(model, some_tokens(2, 13), [11, 1, 1])
    attention.kv_b_proj = plain
    fold(model)
    attention.kv_b_proj = adapted
    assert far(stock, stepped(model, some_tokens(2, 13), [11, 1, 1])[0]) <= 1e-10


def test_adapters_on_other_projections_and_hooks_keep_working(v2):
    model = copy.deepcopy(v2)
    attention = model.model.layers[0].self_attn
    attention.q_proj, attention.o_proj = Adapted(attention.q_proj), Adapted(attention.o_proj)
    attention.kv_b_proj.register_forward_hook(lambda module, args, made: made + 0.5)
    stock, own = both(model, lambda model: stepped(model, some_tokens(2, 13), [11, 1, 1])[0])
    assert far(stock, own) <= 1e-10


def test_eager_attention_gives_its_weights(v2):
    model = copy.deepcopy(v2)
    model.set_attn_implementation("eager")

    def run(model):
        _, cache = stepped(model, some_tokens(2, 11), [11])
        return model(input_ids=some_tokens(2, 1), cache=cache, output_attentions=True).attentions

    stock, own = both(model, run)
    assert [weights.shape for weights in own] == [(2, 3, 1, 12)] * 2
    assert all(torch.equal(a, b) for a, b in zip(stock, own, strict=True))


def test_another_form_is_answered_with_the_one_there_is(v2):
    with pytest.raises(ValueError, match="a deepseek_v2 model folds by form latent, and not by row"):
        fold(v2, "row")


@given(c=st.integers(1, 40), keys=st.integers(1, 40), values=st.integers(1, 40), rows=st.integers(1, 90))
def test_expanding_starts_where_it_takes_fewer_multiplications(c, keys, values, rows):
    def latents(queries):
        return queries * c * keys + queries * rows * c + queries * rows * c + queries * c * values

    def expanded(queries):
        return rows * c * (keys + values) + queries * rows * keys + queries * rows * values

    first = deepseek.expand_from(c, keys, values, rows)
    assert first == next((queries for queries in range(1, rows + 1) if expanded(queries) < latents(queries)), first)
    assert first > rows or expanded(first) < latents(first)


def test_a_step_that_drops_weights_makes_keys_and_values(v2):
    attention = v2.model.layers[0].self_attn
    assert deepseek.reads_latents(attention, None, 1, 50)
    asked = SimpleNamespace(**attention.__dict__ | attention._modules | {"training": True, "attention_dropout": 0.1})
    assert not deepseek.reads_latents(asked, None, 1, 50)
    assert not deepseek.reads_latents(attention, None, 3, 50)  # without a mask these see each other causally
