"""`generate()`: every way of it equals the uncached one, ends up with row caches, and takes padding on the left."""

import pytest
import torch
from transformers.cache_utils import DynamicCache, StaticCache

from small_models import (
    PAIRED,
    POSITIONS,
    STYLES,
    VARIANTS,
    formula_bytes,
    random_ids,
    small_model,
    uninitialised_is_nan,
)
from twofold.cache.layer import GROWTH, RowLayer
from twofold.cache.row_cache import RowCache

PROMPT, NEW = 7, 11

WAYS = {
    "greedy": {},
    "sampling": {"do_sample": True, "top_k": 0, "temperature": 1.5},
    "nucleus": {"do_sample": True, "top_p": 0.9, "num_return_sequences": 2},
    "beam": {"num_beams": 3},
    "beams returned": {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.5},
    "beam sampling": {"num_beams": 3, "do_sample": True},
    "penalty": {"repetition_penalty": 1.3},
}


def generate(model, ids, *, seed=0, **how):
    torch.manual_seed(seed)
    how = {"attention_mask": torch.ones_like(ids), "max_new_tokens": NEW, "do_sample": False, **how}
    with uninitialised_is_nan():
        return model.generate(ids, return_dict_in_generate=True, **how)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("variant", "style"), PAIRED)
def test_generation_with_and_without_a_cache(variant, style, way):
    model, ids = small_model(variant, *style), random_ids(2, PROMPT)
    cached = generate(model, ids, **WAYS[way])
    plain = generate(model, ids, use_cache=False, **WAYS[way])
    assert torch.equal(cached.sequences, plain.sequences)
    assert isinstance(cached.cache, RowCache)
    rows = len(ids) * max(WAYS[way].get("num_beams", 1), WAYS[way].get("num_return_sequences", 1))
    assert cached.cache.bytes_used == formula_bytes(model, tokens=PROMPT + NEW - 1, batch=rows)
    assert cached.cache.bytes_reserved <= GROWTH * cached.cache.bytes_used


def test_another_seed_samples_something_else():
    model, ids = small_model(), random_ids(1, PROMPT)
    one, two = (generate(model, ids, seed=seed, **WAYS["sampling"]).sequences for seed in (0, 1))
    assert not torch.equal(one, two)


@pytest.mark.parametrize("variant", ["QKV", "K=V MQA"])
@pytest.mark.parametrize("how", [{"prompt_lookup_num_tokens": 3}, {"prefill_chunk_size": 3}], ids=str)
def test_lookup_and_chunked_prefill_equal_greedy(variant, how):
    model, ids = small_model(variant), random_ids(1, 5).repeat(1, 3)
    expected = generate(model, ids).sequences
    made = generate(model, ids, **how)
    assert torch.equal(made.sequences, expected)
    assert made.cache.bytes_used == formula_bytes(model, tokens=made.cache.get_seq_length(), batch=1)


@pytest.mark.parametrize("variant", ["QKV", "K=V GQA-2"])
@pytest.mark.parametrize("how", [{}, {"num_beams": 3}, {"prefill_chunk_size": 3}], ids=str)
def test_a_static_cache_is_allocated_at_once(variant, how):
    model, ids = small_model(variant), random_ids(2, PROMPT)
    made = generate(model, ids, cache_implementation="static", **how)
    assert torch.equal(made.sequences, generate(model, ids, **how).sequences)
    assert isinstance(made.cache, RowCache)
    capacity, batch = made.cache.get_max_length(), 2 * how.get("num_beams", 1)
    assert capacity >= PROMPT + NEW - 1
    assert made.cache.bytes_reserved == formula_bytes(model, tokens=capacity, batch=batch)


@pytest.mark.parametrize(
    "make",
    [
        lambda model: DynamicCache(),
        lambda model: DynamicCache(config=model.config),
        lambda model: StaticCache(config=model.config, max_cache_len=31),
        lambda model: model.model.new_cache(),
        lambda model: model.model.new_cache(capacity=31),
    ],
    ids=["dynamic", "dynamic with layers", "static", "rows", "rows at once"],
)
def test_a_users_cache_is_used_and_can_be_continued(make):
    model, ids = small_model("K=V GQA-2"), random_ids(2, PROMPT)
    cache = make(model)
    first = generate(model, ids, cache=cache)
    assert first.cache is cache
    assert all(isinstance(layer, RowLayer) for layer in cache.layers)
    assert sum(layer.bytes_used for layer in cache.layers) == formula_bytes(model, tokens=PROMPT + NEW - 1, batch=2)
    longer = torch.cat([first.sequences, random_ids(2, 3, seed=5)], dim=1)
    assert torch.equal(
        generate(model, longer, cache=cache, max_new_tokens=4).sequences,
        generate(model, longer, max_new_tokens=4).sequences,
    )


def test_a_full_cache_says_so():
    model = small_model()
    with pytest.raises(ValueError, match="made for 9 tokens and 10 are needed"):
        generate(model, random_ids(1, PROMPT), cache=model.model.new_cache(capacity=9))


@pytest.mark.parametrize("how", [{}, {"num_beams": 3}, {"prefill_chunk_size": 4}], ids=str)
@pytest.mark.parametrize("style", STYLES, ids="/".join)
@pytest.mark.parametrize("variant", ["QKV", "K=V GQA-2", "Q=K=V"])
def test_each_row_of_a_left_padded_batch_is_what_it_is_alone(variant, style, how):
    model, ids, pads = small_model(variant, *style), random_ids(3, 13), (0, 4, 9)
    mask = torch.ones_like(ids)
    for row, pad in enumerate(pads):
        mask[row, :pad] = 0
    made = generate(model, ids, attention_mask=mask, **how).sequences[:, 13:]
    plain = generate(model, ids, attention_mask=mask, use_cache=False, **{**how, "prefill_chunk_size": None}).sequences
    assert torch.equal(made, plain[:, 13:])
    for row, pad in enumerate(pads):
        alone = generate(model, ids[row : row + 1, pad:], **how).sequences[0, 13 - pad :]
        assert torch.equal(made[row], alone)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("style", STYLES, ids="/".join)
def test_right_padding_changes_no_real_position_in_forward(style, implementation):
    model, ids = small_model("K=V", *style, attn_implementation=implementation), random_ids(2, 11)
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    with torch.no_grad():
        padded = model(ids, attention_mask=mask).logits
        torch.testing.assert_close(padded[0], model(ids[:1]).logits[0], rtol=0, atol=1e-9)
        torch.testing.assert_close(padded[1, :7], model(ids[1:, :7]).logits[0], rtol=0, atol=1e-9)


def test_generate_refuses_right_padding():
    ids = random_ids(2, 11)
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    with pytest.raises(ValueError, match="pad on the left"):
        generate(small_model(), ids, attention_mask=mask)


def test_a_mask_that_does_not_cover_the_cache_is_refused():
    model, ids = small_model(), random_ids(1, 5)
    with torch.no_grad(), pytest.raises(ValueError, match="covers 5 positions, and there are 5 cached and 5 new"):
        model(ids, attention_mask=torch.ones_like(ids), cache=model(ids).cache)


def test_learned_positions_end_and_rotary_does_not():
    ids = random_ids(1, POSITIONS - 2)
    message = f"position {POSITIONS} is past the {POSITIONS} learned positions"
    model = small_model(block="paper", rotary="none")
    with torch.no_grad(), pytest.raises(ValueError, match=message):
        model(random_ids(1, POSITIONS + 1))
    with pytest.raises(ValueError, match=message):
        generate(model, ids, max_new_tokens=NEW)
    assert generate(model, ids, max_new_tokens=3).sequences.shape == (1, POSITIONS + 1)  # the last was never read
    assert generate(small_model(), ids, max_new_tokens=NEW).sequences.shape == (1, POSITIONS - 2 + NEW)
    with torch.no_grad(), pytest.raises(ValueError, match=f"position 99 is past the {POSITIONS} learned positions"):
        model(ids[:, :3], position_ids=torch.tensor([[3, 4, 99]]))


def test_generation_is_the_same_with_eager_attention():
    ids = random_ids(2, PROMPT)
    fast, slow = (small_model("K=V GQA-2", attn_implementation=name) for name in ("sdpa", "eager"))
    assert torch.equal(generate(fast, ids).sequences, generate(slow, ids).sequences)
    attentions = generate(slow, ids, output_attentions=True).attentions
    assert attentions[-1][0].shape == (2, 6, 1, PROMPT + NEW - 1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_former_name_of_the_cache_is_the_cache(variant):
    model = small_model(variant)
    ids = random_ids(2, 11)
    with torch.no_grad():
        first = model(ids[:, :7])
        full = model(ids).logits[:, 7:]
        rest = model(ids[:, 7:], past_key_values=first.cache).logits
    assert (rest - full).abs().max() < 1e-9


def test_an_early_exit_uses_fewer_layers_and_leaves_the_model_whole():
    model = small_model("K=V GQA-2")
    ids = random_ids(1, 7)
    greedy = model.generate(ids, max_new_tokens=5, do_sample=False)
    assert torch.equal(model.generate(ids, max_new_tokens=5, do_sample=False, assistant_early_exit=1), greedy)
    assert torch.equal(model.generate(ids, max_new_tokens=5, do_sample=False), greedy)
