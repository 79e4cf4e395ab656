"""Layers that cache their input compute what they computed before: in any chunks, padded, in any dtype, in training."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import WhisperForCausalLM
from transformers.modeling_outputs import BaseModelOutput

from small_inputs import FAMILIES, HEAD_DIM, gpt2, inputs, random_ids, whisper
from twofold.folding import inputs as folding_inputs
from twofold.folding.fold import fold, unfold
from twofold.kernels import native

LENGTH = 23


def stepped(model, family, ids, cuts, mask=None):
    """Logits and the cache of one pass for each piece between `cuts`."""
    got, cache = [], None
    for start, stop in zip([0, *cuts], [*cuts, ids.shape[1]], strict=True):
        seen = None if mask is None else mask[:, :stop]
        given = inputs(family, ids[:, start:stop], seen, model.dtype)
        if family == "whisper" and seen is not None:
            given["decoder_position_ids"] = (seen.cumsum(1) - 1).clamp(min=0)[:, start:stop]
        out = model(**given, cache=cache, use_cache=True)
        cache = out.cache
        got.append(out.logits)
    return torch.cat(got, dim=1), cache


def padded(lengths):
    return torch.stack([torch.arange(LENGTH) >= LENGTH - length for length in lengths]).long()


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=6, deadline=None)
@given(cuts=st.lists(st.integers(1, LENGTH - 1), unique=True, max_size=9).map(sorted), short=st.integers(1, LENGTH))
def test_pieces_equal_the_stock_pieces(family, cuts, short):
    """Real positions and padded ones alike: where a query sees nothing, both give what they gave."""
    model, ids, mask = FAMILIES[family](), random_ids(2, LENGTH), padded([LENGTH, short])
    with torch.no_grad():
        expected, _ = stepped(model, family, ids, cuts, mask)
        fold(model)
        torch.testing.assert_close(stepped(model, family, ids, cuts, mask)[0], expected, atol=1e-10, rtol=0)


def deviation(one, other):
    return float((one.double() - other.double()).square().mean().sqrt())


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_differs_no_more_than_two_attention_functions_do(family, monkeypatch):
    ids, cuts = random_ids(3, LENGTH), [5, 6, 12, 13, 20, 21]
    called = []
    decoded = folding_inputs.decoded
    monkeypatch.setattr(folding_inputs, "decoded", lambda *given: called.append(given) or decoded(*given))
    with torch.no_grad():
        model, eager = (FAMILIES[family](torch.float32, one) for one in ("sdpa", "eager"))
        expected, between = (stepped(one, family, ids, cuts)[0] for one in (model, eager))
        fold(model)
        got, _ = stepped(model, family, ids, cuts)
    assert bool(called) == native.AVAILABLE
    assert deviation(got, expected) <= 2 * max(1e-6, deviation(between, expected))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_dtype_is_as_near_to_the_exact_logits_as_stock(family, attention, dtype):
    ids, cuts = random_ids(3, LENGTH), [*range(1, LENGTH)]
    with torch.no_grad():
        model = FAMILIES[family](dtype, attention)
        exact, _ = stepped(copy.deepcopy(model).double(), family, ids, cuts)
        stock, _ = stepped(model, family, ids, cuts)
        fold(model)
        got, _ = stepped(model, family, ids, cuts)
    assert deviation(got, exact) <= 1.5 * deviation(stock, exact)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_pass_and_the_unfolded_model_give_the_same_bits(family):
    model, ids = FAMILIES[family](torch.float32), random_ids(2, LENGTH)
    classes = [type(module) for module in model.modules()]
    given = inputs(family, ids, None, torch.float32)
    with torch.no_grad():
        expected = model(**given).logits
        stock, _ = stepped(model, family, ids, [7, 8])
        fold(model)
        assert [type(module) for module in model.modules()] != classes
        assert torch.equal(model(**given).logits, expected)
        unfold(model)
        assert [type(module) for module in model.modules()] == classes
        assert torch.equal(stepped(model, family, ids, [7, 8])[0], stock)


VARIATIONS = (
    ("opt", {"do_layer_norm_before": False}),  # OPT-350M
    ("opt", {"enable_bias": False, "layer_norm_elementwise_affine": False}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    ("gpt2", {"scale_attn_weights": False}),
    ("whisper", {"encoder_layers": 3}),
)


@pytest.mark.parametrize(("family", "others"), VARIATIONS)
def test_each_way_to_configure_a_layer(family, others):
    model, ids = FAMILIES[family](**others), random_ids(2, LENGTH)
    with torch.no_grad():
        expected = model(**inputs(family, ids)).logits
        fold(model)
        for cuts in ([9], [4, 5, 6], [*range(1, LENGTH)]):
            torch.testing.assert_close(stepped(model, family, ids, cuts)[0], expected, atol=1e-10, rtol=0)


def test_gpt2_in_float32_scores_of_its_own():
    """`reorder_and_upcast_attn` is a way to compute eager attention, which long passes keep."""
    model, ids = gpt2(torch.float32, "eager", reorder_and_upcast_attn=True), random_ids(2, LENGTH)
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        fold(model)
        assert torch.equal(model(input_ids=ids).logits, expected)
        torch.testing.assert_close(stepped(model, "gpt2", ids, [15, 16])[0], expected, atol=2e-5, rtol=0)


def test_gpt2_with_attention_across():
    model, ids = gpt2(add_cross_attention=True), random_ids(2, LENGTH)
    seen = torch.randn(2, 5, model.config.n_embd, dtype=torch.float64)
    with torch.no_grad():
        expected = model(input_ids=ids, encoder_hidden_states=seen).logits
        assert len(fold(model).folds) == 2
        out = model(input_ids=ids[:, :20], encoder_hidden_states=seen)
        last = model(input_ids=ids[:, 20:], encoder_hidden_states=seen, cache=out.cache).logits
    torch.testing.assert_close(torch.cat([out.logits, last], dim=1), expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("layers", [1, 3])
def test_whispers_decoder_alone_makes_its_cache_within_the_pass(layers):
    """As the small model of assisted decoding that shares an encoder does; its encoder layers are not its own."""
    whole = whisper(encoder_layers=3, decoder_layers=layers)
    model = WhisperForCausalLM(whole.config).double().eval()
    heard = BaseModelOutput(torch.randn(2, 11, whole.config.d_model, dtype=torch.float64))
    ids = random_ids(2, LENGTH)
    with torch.no_grad():
        expected = model(input_ids=ids, encoder_outputs=heard).logits
        fold(model)
        out = model(input_ids=ids[:, :21], encoder_outputs=heard)
        last = model(input_ids=ids[:, 21:], encoder_outputs=heard, cache=out.cache).logits
    torch.testing.assert_close(torch.cat([out.logits, last], dim=1), expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_eager_attention_tells_its_weights(family):
    model, ids = FAMILIES[family](torch.float32, "eager"), random_ids(2, LENGTH)
    name = "decoder_attentions" if family == "whisper" else "attentions"

    def weights():
        cache = model(**inputs(family, ids[:, :-1], None, torch.float32)).cache
        return model(**inputs(family, ids[:, -1:], None, torch.float32), cache=cache, output_attentions=True)[name]

    with torch.no_grad():
        expected = weights()
        fold(model)
        assert expected[0].shape == (2, 3, 1, LENGTH)
        torch.testing.assert_close(weights(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_training_with_a_cache_has_the_same_gradients(family, dropout):
    names = {"gpt2": "attn_pdrop", "opt": "attention_dropout", "whisper": "attention_dropout"}
    model = FAMILIES[family](**{names[family]: dropout}).train()
    ids = random_ids(2, LENGTH)

    def gradients():
        torch.manual_seed(5)
        model.zero_grad()
        model(**inputs(family, ids), labels=ids, use_cache=True).loss.backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    expected = gradients()
    fold(model)
    torch.testing.assert_close(gradients(), expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_through_steps_that_read_rows(family):
    """Matrices that moved to the query and behind the sum get the gradient that they get where they stood."""
    model, ids = FAMILIES[family](), random_ids(2, LENGTH)

    def gradients():
        model.zero_grad()
        first = model(**inputs(family, ids[:, :-3]))
        last = model(**inputs(family, ids[:, -3:]), cache=first.cache)
        (first.logits.square().sum() + last.logits.square().sum()).backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    expected = gradients()
    fold(model)
    torch.testing.assert_close(gradients(), expected, atol=1e-8, rtol=1e-8)


def test_the_limit_between_both_ways_is_half_of_a_heads_dims(monkeypatch):
    model, ids = gpt2(), random_ids(1, 40)
    called = []
    absorbed = folding_inputs._absorbed
    monkeypatch.setattr(folding_inputs, "_absorbed", lambda *given: called.append(given) or absorbed(*given))
    fold(model)
    with torch.no_grad():
        stepped(model, "gpt2", ids, [20, 20 + HEAD_DIM // 2 + 1])
        assert not called[2:]  # the second piece is too long, the third is not
        called.clear()
        stepped(model, "gpt2", ids, [20, 20 + HEAD_DIM // 2])
        assert called


@pytest.mark.system  # half a minute of tracing
def test_compiled_steps():
    model, ids = gpt2(n_layer=1), random_ids(2, LENGTH)
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        fold(model)
        cache = model(input_ids=ids[:, :-4]).cache
        step = torch.compile(model, backend="eager", dynamic=True)
        got = [step(input_ids=ids[:, at : at + 1], cache=cache).logits for at in range(LENGTH - 4, LENGTH)]
    torch.testing.assert_close(torch.cat(got, dim=1), expected[:, -4:], atol=1e-10, rtol=0)
