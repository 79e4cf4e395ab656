"""Gemma 4's global layers folded, by row and by value: stock's outputs from less cache."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache, StaticCache

from small_folded import far, gemma4, padded, some_tokens, stepped
from twofold.folding.fold import fold, folded_cache, folding_of, unfold
from twofold.kernels import native

FORMS = ("row", "value")
WAYS = ([29], [3] + [1] * 26, [7, 1, 9, 2, 1, 9])
STARTS = (0, 5, 11)
KERNEL = {"global_head_dim": 32, "hidden_size": 48}
"""Spans that the native kernel takes."""
LAYERED = "hidden_size_per_layer_input"  # stock reads it where layers are shared
TOLERANCE = 1e-5
"""In float64 too: Gemma's norms and angles are float32 whatever the model is."""


@pytest.fixture(scope="module")
def stock():
    return gemma4()


def folded(model, form, **changes):
    twin = copy.deepcopy(model)
    fold(twin, form)
    return twin


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunks", WAYS, ids=["whole", "one by one", "chunks"])
def test_logits_are_stocks_however_the_text_is_cut_and_padded(stock, form, chunks):
    ids_BT, mask_BT = padded(some_tokens(len(STARTS), 29), STARTS)
    expected = stepped(stock, ids_BT, [29], mask_BT)[0]
    found = stepped(folded(stock, form), ids_BT, chunks, mask_BT)[0]
    assert far(expected[mask_BT.bool()], found[mask_BT.bool()]) < TOLERANCE


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_cut_gives_the_same_logits(stock, data):
    form = data.draw(st.sampled_from(FORMS))
    length = data.draw(st.integers(2, 24))
    cuts = sorted(data.draw(st.sets(st.integers(1, length - 1), max_size=5)))
    chunks = [b - a for a, b in zip([0, *cuts], [*cuts, length], strict=True)]
    ids_BT = some_tokens(2, length, seed=length)
    expected = stepped(stock, ids_BT, [length])[0]
    assert far(expected, stepped(folded(stock, form), ids_BT, chunks)[0]) < TOLERANCE


@pytest.mark.skipif(not native.AVAILABLE, reason="needs the native library")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_kernel_steps_round_no_more_than_stocks_own_ways(form, dtype, monkeypatch):
    from twofold.folding import gemma4 as folding

    taken = []
    monkeypatch.setattr(
        folding, "decoded", lambda *a, decoded=folding.decoded, **k: taken.append(1) or decoded(*a, **k)
    )
    model = gemma4(dtype, **KERNEL)
    ids_BT, mask_BT = padded(some_tokens(2, 29), (0, 6))
    chunks = [20] + [1] * 5 + [4]
    expected = stepped(model, ids_BT, chunks, mask_BT)[0][mask_BT.bool()]
    found = stepped(folded(model, form), ids_BT, chunks, mask_BT)[0][mask_BT.bool()]
    model.set_attn_implementation("eager")
    own = far(expected, stepped(model, ids_BT, chunks, mask_BT)[0][mask_BT.bool()])
    assert far(expected, found) <= max(2 * own, 1e-6)
    assert len(taken) == 2 * 6  # both global layers, in every step after the first


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"num_beams": 3},
        {"do_sample": True, "top_k": 9},
        {"prompt_lookup_num_tokens": 3},
        {"cache_implementation": "static"},
    ],
    ids=["greedy", "beams", "sampling", "prompt lookup", "static"],
)
def test_generate_gives_stocks_tokens(stock, form, how):
    batch = 1 if "prompt_lookup_num_tokens" in how else 2
    ids_BT, mask_BT = padded(some_tokens(batch, 9), (0, 4)[:batch])
    named = {"attention_mask": mask_BT, "max_new_tokens": 14, "min_new_tokens": 14, "pad_token_id": 0, **how}

    def run(model):
        torch.manual_seed(3)
        return model.generate(ids_BT, **named)

    assert torch.equal(run(stock), run(folded(stock, form)))


@pytest.mark.parametrize("form", FORMS)
def test_an_assistant_and_its_target_fold_both(stock, form):
    assistant = gemma4(seed=5)
    ids_BT = some_tokens(1, 9)
    named = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    expected = stock.generate(ids_BT, **named)
    twin, helper = folded(stock, form), folded(assistant, form)
    assert torch.equal(expected, twin.generate(ids_BT, assistant_model=helper, **named))


@pytest.mark.parametrize(("form", "numbers"), [("row", 22 + 4), ("value", 22)])
def test_stored_bytes_are_the_rows(stock, form, numbers):
    twin = folded(stock, form)
    ids_BT = some_tokens(3, 23)
    static = StaticCache(config=twin.config, max_cache_len=31)
    _, cache = stepped(twin, ids_BT, [23])
    stepped(twin, ids_BT, [23], cache=static)
    for layer in (1, 3):
        assert cache.layers[layer].bytes_used == 3 * 2 * 23 * numbers * 8
        assert static.layers[layer].bytes_reserved == 3 * 2 * 31 * numbers * 8
        keys, values = cache.layers[layer].keys, cache.layers[layer].values
        assert keys.shape == values.shape == (3, 2, 23, 22)
        assert keys.untyped_storage().data_ptr() == values.untyped_storage().data_ptr()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("configured", [True, False])
def test_what_generation_does_to_a_cache_keeps_one_storage(stock, form, configured):
    cache = DynamicCache(config=stock.config) if configured else DynamicCache()
    cache.activate_past_recording()
    ids_BT = some_tokens(2, 11)
    twin = folded(stock, form)
    stepped(twin, ids_BT, [11], cache=cache)
    cache.crop(-2)
    cache.reorder_cache(torch.tensor([1, 0]))
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0, 3, 2]))
    for layer in (1, 3):
        held = cache.layers[layer]
        assert held.keys.untyped_storage().data_ptr() == held.values.untyped_storage().data_ptr()
    text_BT = torch.cat([ids_BT[[1, 0, 0], :9], some_tokens(3, 4, seed=9)], dim=1)
    expected = stepped(stock, text_BT, [13])[0][:, 9:]
    assert far(expected, stepped(twin, text_BT[:, 9:], [1, 3], cache=cache)[0]) < TOLERANCE
    cache.reset()
    assert cache.layers[1].length == 0
    assert far(stepped(stock, ids_BT, [11])[0], stepped(twin, ids_BT, [4, 7], cache=cache)[0]) < TOLERANCE


@pytest.mark.parametrize("form", FORMS)
def test_unfolding_restores_classes_and_every_bit(stock, form):
    twin = copy.deepcopy(stock)
    ids_BT = some_tokens(2, 12)
    before = stepped(twin, ids_BT, [5, 7])[0]
    classes = [type(module) for module in twin.modules()]
    weights = {name: weight.clone() for name, weight in twin.state_dict().items()}
    fold(twin, form)
    assert [type(module) for module in twin.modules()] != classes
    unfold(twin)
    assert [type(module) for module in twin.modules()] == classes
    assert folding_of(twin) is None
    assert torch.equal(before, stepped(twin, ids_BT, [5, 7])[0])
    assert all(torch.equal(weights[name], weight) for name, weight in twin.state_dict().items())


@pytest.mark.parametrize("form", FORMS)
def test_without_a_cache_it_is_the_stock_model_with_its_gradients(stock, form):
    twin = folded(stock, form)
    ids_BT = some_tokens(2, 9)
    losses = [model(ids_BT, labels=ids_BT, use_cache=False).loss for model in (stock, twin)]
    assert torch.equal(*losses)
    for loss in losses:
        loss.backward()
    for one, other in zip(stock.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    stock.zero_grad()


@pytest.mark.parametrize("form", FORMS)
def test_weights_that_change_after_folding_count(stock, form):
    twin = folded(stock, form)
    changed = copy.deepcopy(stock)
    for model in (twin, changed):
        with torch.no_grad():
            model.model.layers[1].self_attn.k_norm.weight.mul_(1.7)
            model.model.layers[3].self_attn.k_proj.weight.add_(0.1)
    ids_BT = some_tokens(2, 12)
    assert far(stepped(changed, ids_BT, [12])[0], stepped(twin, ids_BT, [5, 1, 6])[0]) < TOLERANCE


@pytest.mark.parametrize("form", FORMS)
def test_layers_that_read_the_rows_of_another_fold_with_it(form):
    model = gemma4(layer_types=["sliding_attention", "full_attention"] * 3, num_kv_shared_layers=2, **{LAYERED: 4})
    ids_BT = some_tokens(2, 19)
    expected = stepped(model, ids_BT, [19])[0]
    with torch.no_grad():
        states = model.model(ids_BT, return_shared_kv_states=True, use_cache=True).shared_kv_states
        fold(model, form)
        assert far(expected, stepped(model, ids_BT, [8, 1, 10])[0]) < TOLERANCE
        handed = model.model(ids_BT, return_shared_kv_states=True, use_cache=True).shared_kv_states
    for one, other in zip(states["full_attention"], handed["full_attention"], strict=True):
        assert far(one, other) < TOLERANCE


def test_a_stock_model_with_a_folded_cache_stores_rows(stock):
    ids_BT = some_tokens(2, 23)
    cache = folded_cache(stock)
    found = stepped(stock, ids_BT, [9, 1, 13], cache=cache)[0]
    assert folding_of(stock) is None
    assert far(stepped(stock, ids_BT, [23])[0], found) < TOLERANCE
    assert cache.layers[1].bytes_used == 2 * 2 * 23 * 26 * 8
    named = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    expected = stock.generate(ids_BT, **named)
    assert torch.equal(expected, stock.generate(ids_BT, cache=folded_cache(stock), **named))


def test_values_need_positions_without_gaps(stock):
    twin, rows = folded(stock, "value"), folded(stock, "row")
    ids_BT, gaps_BT = some_tokens(1, 6), torch.tensor([[0, 1, 2, 7, 8, 9]])
    with pytest.raises(ValueError, match="positions have gaps"):
        twin(ids_BT, position_ids=gaps_BT, use_cache=True)
    expected = stock(ids_BT, position_ids=gaps_BT, use_cache=True).logits
    assert far(expected, rows(ids_BT, position_ids=gaps_BT, use_cache=True).logits) < TOLERANCE
    cache = DynamicCache()
    twin(ids_BT, cache=cache)
    with pytest.raises(ValueError, match="stood at positions"):
        twin(ids_BT[:, :1], cache=cache, position_ids=torch.tensor([[40]]))


def test_values_are_refused_where_a_scale_is_zero(stock):
    twin = copy.deepcopy(stock)
    with torch.no_grad():
        twin.model.layers[3].self_attn.k_norm.weight[2] = 0
    with pytest.raises(ValueError, match=r'layers\.3\.self_attn cannot be folded: .*form="row"'):
        fold(twin, "value")
    assert folding_of(twin) is None
    fold(twin, "row")


def test_rows_are_refused_where_every_dim_is_turned():
    rope = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    }
    model = gemma4(rope_parameters=rope)
    with pytest.raises(ValueError, match=r'all 22 dims .* form="value"'):
        fold(model, "row")
    ids_BT = some_tokens(2, 15)
    expected = stepped(model, ids_BT, [15])[0]
    fold(model, "value")
    assert far(expected, stepped(model, ids_BT, [4, 1, 10])[0]) < TOLERANCE


@pytest.mark.system  # half a minute of tracing
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_steps_give_the_same_logits():
    model = gemma4(layer_types=["sliding_attention", "full_attention"], **KERNEL)
    ids_BT = some_tokens(1, 11)
    expected = stepped(model, ids_BT, [11])[0]
    fold(model)
    model.forward = torch.compile(model.forward, backend="eager")
    assert far(expected, stepped(model, ids_BT, [9, 1, 1])[0]) < TOLERANCE


@pytest.mark.parametrize("form", FORMS)
def test_masks_and_positions_that_are_written_to_again_are_read_again(form):
    stock = gemma4(**KERNEL)
    twin = folded(stock, form)
    ids_BT, positions_BT = some_tokens(2, 9), torch.zeros(2, 1, dtype=torch.long)
    masks = {kind: torch.ones(2, 1, 1, 9, dtype=torch.bool) for kind in ("full_attention", "sliding_attention")}
    masks["sliding_attention"] = masks["sliding_attention"][..., -7:]

    def run(model, hidden):
        cache = DynamicCache(config=model.config)
        first_B = 8 - torch.tensor(hidden)[:, None]
        model(ids_BT[:, :8], cache=cache, position_ids=first_B - 8 + torch.arange(8))
        positions_BT.copy_(first_B)
        masks["full_attention"].fill_(True)
        for text, tokens in enumerate(hidden):
            masks["full_attention"][text, ..., :tokens] = False
        return model(ids_BT[:, 8:], attention_mask=masks, cache=cache, position_ids=positions_BT).logits

    with torch.no_grad():
        for hidden in ((0, 0), (3, 1)):
            assert far(run(stock, hidden), run(twin, hidden)) < TOLERANCE


@pytest.mark.parametrize("form", FORMS)
def test_threads_share_a_folded_model(stock, form):
    twin = folded(stock, form)
    texts = [padded(some_tokens(2, 19, seed=number), (number % 5, 3)) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: stepped(twin, text[0], [6, *[1] * 13], text[1])[0], texts * 3))
    for number, (ids_BT, mask_BT) in enumerate(texts * 3):
        expected = stepped(stock, ids_BT, [19], mask_BT)[0]
        assert far(expected[mask_BT.bool()], found[number][mask_BT.bool()]) < TOLERANCE


def test_values_turn_keys_by_the_angles_that_queries_are_turned_by():
    stock = gemma4(torch.float32, **KERNEL)
    twin = folded(stock, "value")
    ids_BT = some_tokens(1, 120)
    for model in (stock, twin):
        model.to(torch.bfloat16).float()  # rounds the frequencies
    assert far(stepped(stock, ids_BT, [120])[0], stepped(twin, ids_BT, [100, *[1] * 20])[0]) < 10 * TOLERANCE
