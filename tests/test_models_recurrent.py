"""Models of linear attention: the layer is its equations, generation the full pass, the cache a state of fixed size."""

import copy
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.cache_utils import DynamicCache, StaticCache

from small_models import HEAD_DIM, POSITIONS, WIDTH, random_ids, small_model, small_projections
from twofold.attention.layer import Attention
from twofold.attention.recurrence import CHUNK, FEATURES, quadratic
from twofold.attention.recurrent import RecurrentAttention
from twofold.cache import saved
from twofold.cache.row_cache import RowCache
from twofold.cache.state_cache import StateCache
from twofold.evaluation.generation import generate as generate_measured
from twofold.models.configuration import TwofoldConfig
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.fingerprint import fingerprint
from twofold.variants.layout import state_bytes
from twofold.variants.notation import parse

VARIANTS = ("linear", "Q=K linear-relu", "K=V linear", "Q=K=V linear", "GQA-2 linear-relu", "K=V MQA linear")
BATCH, PROMPT, NEW = 3, 7, 13

every_variant = pytest.mark.parametrize("variant", VARIANTS)


def linear_model(variant, block="modern", **others):
    return small_model(variant, block, "none", **others)


def formula(model, batch):
    sizes = model.config.architecture
    return state_bytes(
        sizes.kv_heads, sizes.head_dim, layers=sizes.layers, batch=batch, itemsize=max(4, model.dtype.itemsize)
    )


def assert_keeps_states(model, cache, tokens, batch=1):
    assert isinstance(cache, StateCache)
    assert cache.get_seq_length() == tokens
    assert cache.bytes_used == cache.bytes_reserved == formula(model, batch)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


# The layer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True])
@every_variant
def test_the_layer_is_its_equations_with_all_gradients(variant, fused):
    seam = small_projections(variant, fused=fused)
    layer = RecurrentAttention(seam, small_model("QKV").config)
    x = torch.randn(2, 31, WIDTH, dtype=torch.float64, requires_grad=True)
    towards = torch.randn(2, 31, WIDTH, dtype=torch.float64)
    features, sources = FEATURES[parse(variant).recurrence], parse(variant).sharing.sources
    if fused:
        weights, biases = (
            dict(zip(seam.outputs, stacked.split(list(seam.outputs.values())), strict=True))
            for stacked in (seam.qkv_proj.weight, seam.qkv_proj.bias)
        )
    else:
        parts = {role: seam.get_submodule(f"{role[0]}_proj") for role in seam.outputs}
        weights, biases = ({role: getattr(part, of) for role, part in parts.items()} for of in ("weight", "bias"))

    def role(name):
        made = x @ weights[sources[name]].T + biases[sources[name]]
        return made.unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)

    read = quadratic(role("query"), role("key"), role("value"), features)
    expected = read.flatten(2) @ seam.o_proj.weight.T + seam.o_proj.bias
    found = layer(x).output_BTM
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    leaves = [x, *seam.parameters()]
    of_layer = torch.autograd.grad((found * towards).sum(), leaves)
    of_equations = torch.autograd.grad((expected * towards).sum(), leaves)
    for one, other in zip(of_layer, of_equations, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_every_layer_of_a_model_is_recurrent_and_of_no_other():
    assert all(type(block.attention) is RecurrentAttention for block in linear_model("linear").model.layers)
    assert all(type(block.attention) is Attention for block in small_model("QKV").model.layers)


def test_checkpointing_changes_no_gradient():
    gradients = []
    for checkpointing in (False, True):
        model = linear_model("K=V GQA-2 linear").train()
        if checkpointing:
            model.activation_checkpointing_enable()
        ids = random_ids(2, 23)
        model(ids, labels=ids).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        close(one, other)


# Cached passes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", ["modern", "paper"])
@every_variant
@settings(max_examples=4)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_any_chunks_give_the_logits_of_one_pass(variant, block, sizes):
    model, ids = linear_model(variant, block), random_ids(BATCH, sum(sizes))
    with torch.no_grad():
        full = model(ids, use_cache=False).logits
        cache = model.model.new_cache()
        for start, part in zip(torch.tensor([0, *sizes]).cumsum(0).tolist(), ids.split(sizes, dim=1), strict=False):
            end = start + part.shape[1]
            close(model(part, cache=cache).logits, full[:, start:end])
            assert_keeps_states(model, cache, end, BATCH)


def test_a_long_prompt_and_what_follows_it():
    model = linear_model("K=V linear", max_position_embeddings=200)
    ids = random_ids(2, 2 * CHUNK + 33)
    with torch.no_grad():
        full = model(ids, use_cache=False).logits
        for cut in (1, CHUNK, CHUNK + 1, 2 * CHUNK + 29):
            cache = model(ids[:, :cut]).cache
            close(model(ids[:, cut:-1], cache=cache).logits, full[:, cut:-1])
            close(model(ids[:, -1:], cache=cache).logits, full[:, -1:])
            assert_keeps_states(model, cache, ids.shape[1], 2)


@every_variant
def test_each_row_of_a_padded_batch_is_what_it_is_alone(variant):
    model, missing = linear_model(variant), (0, 3, 6)
    ids, mask = random_ids(BATCH, 17), torch.ones(BATCH, 17, dtype=torch.long)
    for row, padding in enumerate(missing):
        mask[row, :padding] = 0
    with torch.no_grad():
        whole = model(ids, attention_mask=mask, use_cache=False).logits
        cache = model(ids[:, :11], attention_mask=mask[:, :11]).cache
        steps = [model(ids[:, t : t + 1], attention_mask=mask[:, : t + 1], cache=cache).logits for t in range(11, 17)]
        right = model(ids.flip(1), attention_mask=mask.flip(1), use_cache=False).logits
        for row, padding in enumerate(missing):
            alone = model(ids[row : row + 1, padding:], use_cache=False).logits[0]
            close(whole[row, padding:], alone)
            close(torch.cat(steps, dim=1)[row], alone[11 - padding :])
            backwards = model(ids[row : row + 1, padding:].flip(1), use_cache=False).logits[0]
            close(right[row, : 17 - padding], backwards)


@every_variant
def test_documents_that_are_kept_apart_read_nothing_of_each_other(variant):
    model, ends = linear_model(variant, max_position_embeddings=200), (0, 5, 6, 70, 71, 150)
    ids = random_ids(2, ends[-1])
    positions = torch.cat([torch.arange(end - start) for start, end in pairwise(ends)])
    with torch.no_grad():
        together = model(ids, position_ids=positions.expand(2, -1), use_cache=False).logits
        for start, end in pairwise(ends):
            close(together[:, start:end], model(ids[:, start:end], use_cache=False).logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_states_are_float32_whatever_the_model_is(dtype):
    model, ids = linear_model("K=V linear").to(dtype), random_ids(2, 23)
    with torch.no_grad():
        cache = model(ids[:, :19]).cache
        assert {layer.kept().dtype for layer in cache.layers} == {torch.float32}
        assert_keeps_states(model, cache, 19, 2)
        step, full = model(ids[:, 19:], cache=cache).logits, model(ids, use_cache=False).logits[:, 19:]
    assert (step - full).abs().max() < (1e-4 if dtype == torch.float32 else 0.05) * full.abs().max()


# Generation -----------------------------------------------------------------------------------------------------


def generate(model, ids, **how):
    how = {"attention_mask": torch.ones_like(ids), "max_new_tokens": NEW, "do_sample": False, **how}
    torch.manual_seed(3)
    return model.generate(ids, return_dict_in_generate=True, **how)


@pytest.mark.parametrize(
    ("how", "batch"),
    [
        ({}, BATCH),
        ({"do_sample": True, "num_return_sequences": 2}, 2 * BATCH),
        ({"num_beams": 4, "num_return_sequences": 2}, 4 * BATCH),
        ({"prefill_chunk_size": 3}, BATCH),
        ({"cache_implementation": "static"}, BATCH),
    ],
)
@every_variant
def test_generation_with_states_is_that_without_a_cache(variant, how, batch):
    model, ids = linear_model(variant), random_ids(BATCH, PROMPT)
    made = generate(model, ids, **how)
    plain = {name: value for name, value in how.items() if name not in ("prefill_chunk_size", "cache_implementation")}
    assert torch.equal(made.sequences, generate(model, ids, use_cache=False, **plain).sequences)
    assert_keeps_states(model, made.cache, made.sequences.shape[1] - 1, batch)


@pytest.mark.parametrize("how", [{}, {"num_beams": 3}])
def test_each_row_of_a_left_padded_batch_generates_what_it_does_alone(how):
    model, ids = linear_model("GQA-2 linear"), random_ids(BATCH, PROMPT)
    mask = torch.ones_like(ids)
    mask[1, :2], mask[2, :5] = 0, 0
    made = generate(model, ids, attention_mask=mask, **how).sequences
    for row, padding in enumerate((0, 2, 5)):
        alone = generate(model, ids[row : row + 1, padding:], **how).sequences[0]
        assert made[row, padding:].tolist()[: len(alone)] == alone.tolist()


@pytest.mark.parametrize(
    "make", [DynamicCache, lambda: StaticCache(config=linear_model("linear").config, max_cache_len=40)]
)
def test_a_users_empty_cache_keeps_states_and_can_be_continued(make):
    model, ids, cache = linear_model("linear"), random_ids(1, PROMPT), make()
    first = generate(model, ids, cache=cache, max_new_tokens=4).sequences
    assert cache.get_seq_length() == PROMPT + 3
    assert sum(layer.bytes_reserved for layer in cache.layers) == formula(model, 1)
    again = generate(model, first, cache=cache, max_new_tokens=4).sequences
    assert torch.equal(again, generate(model, ids, max_new_tokens=8).sequences)


def test_one_prefix_serves_many_continuations():
    model, ids = linear_model("K=V MQA linear"), random_ids(3, 17)
    ids[:] = ids[:1] * (torch.arange(17) < 11) + ids * (torch.arange(17) >= 11)
    with torch.no_grad():
        full = model(ids, use_cache=False).logits
        prefix = model(ids[:1, :11]).cache
        several = copy.deepcopy(prefix)
        several.batch_repeat_interleave(3)
        close(model(ids[:, 11:], cache=several).logits, full[:, 11:])
        close(model(ids[1:2, 11:], cache=prefix).logits, full[1:2, 11:])


def test_what_generating_took_is_what_the_formula_says():
    for variant, others in (("K=V linear", {"rotary": "none"}), ("K=V CLA-2", {}), ("QKV", {"sliding_window": 5})):
        model = small_model(variant, **others)
        made = generate_measured(model, [1, 2, 3], new_tokens=11, temperature=0, stop_at_end=False)
        assert made.cached_tokens == 13
        assert made.bytes_used == made.bytes_formula


def test_a_saved_model_is_loaded_as_it_was(tmp_path):
    model = linear_model("K=V linear-relu").float()
    model.save_pretrained(tmp_path)
    loaded = TwofoldForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.variant == "K=V linear-relu"
    assert torch.equal(loaded(random_ids(1, 9)).logits, model(random_ids(1, 9)).logits)


# What is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"prompt_lookup_num_tokens": 2}, {"assistant_model": "itself"}])
def test_assisted_generation_is_refused(how):
    model = linear_model("linear")
    if how.get("assistant_model"):
        how = {"assistant_model": copy.deepcopy(model)}
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful models"):
        generate(model, random_ids(1, PROMPT), **how)


def test_a_recurrent_assistant_is_refused():
    with pytest.raises(ValueError, match="use a model with softmax attention"):
        generate(small_model("QKV"), random_ids(1, PROMPT), assistant_model=linear_model("linear"))


def holding_keys():
    cache = DynamicCache()
    cache.update(torch.ones(1, 6, 4, 10), torch.ones(1, 6, 4, 10), 0)
    return cache


def with_cache(cache):
    return lambda model: model(random_ids(1, 3), cache=cache)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda model: model(random_ids(2, 5)).cache.crop(-2), "2 of 5 tokens cannot be cropped"),
        (lambda model: model.model.new_cache(dtype="int8"), "stay in float32, and not in int8"),
        (lambda model: model.model.new_cache(capacity=0), "capacity of at least 1 token, not 0"),
        (lambda model: model.model.new_cache(offloading=True), "leave the offloading out"),
        (lambda model: generate(model, random_ids(1, 5), cache_implementation="quantized"), "stores something else"),
        (with_cache(StateCache(2, (6, 10, 10))), r"2 layers with states of \[6, 10, 10\], and .* \[6, 10, 11\]"),
        (with_cache(StateCache(3, (6, 10, 11))), "3 layers with states .* this one has 2"),
        (with_cache(small_model("QKV").model.new_cache()), "this RowCache cannot be made to"),
        (with_cache(holding_keys()), "this DynamicCache cannot be made to: it must be an empty"),
        (
            lambda model: model(random_ids(1, 3), attention_mask=torch.ones(1, 1, 3, 3)),
            "attention_mask of 4 dimensions",
        ),
        (lambda model: model(random_ids(1, POSITIONS + 1)), f"past the {POSITIONS} learned positions"),
    ],
)
def test_what_has_no_meaning_is_refused(fault, message):
    with pytest.raises(ValueError, match=message):
        fault(linear_model("linear"))


def test_states_are_not_taken_for_rows():
    cache = linear_model("linear").model.new_cache()
    with pytest.raises(ValueError, match="it must be an empty DynamicCache, an empty StaticCache or a RowCache"):
        small_model("QKV")(random_ids(1, 3), cache=cache)
    assert isinstance(small_model("QKV").model.new_cache(), RowCache)


def test_states_are_not_saved(tmp_path):
    model = linear_model("linear")
    with pytest.raises(ValueError, match="only rows can be saved"):
        saved.save(model(random_ids(1, 5)).cache, tmp_path / "prefix", fingerprint(model))


def test_rotary_and_diagonal_scales_are_refused():
    with pytest.raises(ValueError, match="has no rotary"):
        TwofoldConfig(variant="linear", rotary="full", hidden_size=12, num_attention_heads=2)
    with pytest.raises(ValueError, match="a key's scale acts within the feature map"):
        parse("diagonal linear")
