"""Folded against stock on every family's small model, and what a report says of them."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from published_configurations import GEMMA_4_31B
from small_folded import gemma4, some_tokens, stepped
from small_inputs import whisper
from twofold.folding.fold import fold
from twofold.folding.parity import compare, forms_of, parity, stored_bytes
from twofold.folding.report import folding_report
from twofold.folding.tiny import TINY, tiny_model

GIB = 2**30
ROWS = [(family, form) for family in TINY for form in forms_of(family)]
SHARES = {"gemma4 row": 0.625, "gemma4 value": 0.5, "gpt2 input": 0.5, "opt input": 0.5}


@pytest.mark.parametrize(("family", "form"), ROWS)
def test_a_small_model_of_every_family_keeps_its_outputs(family, form):
    row = compare(family, form)
    assert row.max_logit_difference <= 2 * max(row.stock_difference, 1e-6)
    assert row.greedy_equal
    assert row.beam_equal
    assert row.bytes_after <= row.bytes_before
    if share := SHARES.get(f"{family} {form}"):
        assert row.bytes_after == share * row.bytes_before


def test_parity_sees_what_it_is_asked_for():
    told = []
    rows = parity(["gpt2"], ["float32", "bfloat16"], lambda *what: told.append(what))
    assert [(row.family, row.form, row.dtype) for row in rows] == [
        ("gpt2", "input", "float32"),
        ("gpt2", "input", "bfloat16"),
    ]
    assert told == [("gpt2 input float32", 0, 2), ("gpt2 input bfloat16", 1, 2)]
    with pytest.raises(ValueError, match="unknown family 'gpt5'"):
        tiny_model("gpt5")


def without_weights(config, dtype=torch.bfloat16):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


@pytest.fixture(scope="module")
def gemma_31b():
    return without_weights(AutoConfig.for_model(**GEMMA_4_31B))


@pytest.mark.parametrize(("form", "gib"), [("row", 12.5), ("value", 10.0)])
def test_gemma_4_31b_at_256k_tokens(gemma_31b, form, gib):
    report = folding_report(gemma_31b, context=262_144, form=form)
    full = [layer for layer in report.layers if layer.form]
    assert len(full) == 10
    assert sum(layer.bytes_before for layer in full) == 20 * GIB
    assert sum(layer.bytes_after for layer in full) == gib * GIB
    sliding = [layer for layer in report.layers if not layer.form]
    assert sum(layer.bytes_after for layer in sliding) == sum(layer.bytes_before for layer in sliding) == 0.78125 * GIB
    assert report.bytes_after == (gib + 0.78125) * GIB


def test_gemma_4_26b_at_256k_tokens():
    kinds = [("full" if (layer + 1) % 6 == 0 else "sliding") + "_attention" for layer in range(30)]
    changes = {"num_hidden_layers": 30, "layer_types": kinds, "hidden_size": 2816, "num_attention_heads": 16}
    heads = {"num_key_value_heads": 8, "num_global_key_value_heads": 2}  # google/gemma-4-26B-A4B
    model = without_weights(AutoConfig.for_model(**GEMMA_4_31B | changes | heads))
    for form, gib in (("row", 3.125), ("value", 2.5)):
        report = folding_report(model, context=262_144, form=form)
        full = [layer for layer in report.layers if layer.form]
        assert sum(layer.bytes_before for layer in full) == 5 * GIB
        assert sum(layer.bytes_after for layer in full) == gib * GIB
        assert report.bytes_after == (gib + 0.1953125) * GIB


@pytest.mark.parametrize("form", ["row", "value"])
def test_reported_bytes_are_stored_bytes(form):
    model = gemma4()
    tokens = 5  # within the window, where stock's sliding layers hold each token once
    before = folding_report(model, context=tokens, batch=2, form=form)
    _, stock = stepped(model, some_tokens(2, tokens), [tokens])
    assert [layer.bytes_before for layer in before.layers] == [stored_bytes(layer) for layer in stock.layers]
    fold(model, form)
    _, cache = stepped(model, some_tokens(2, tokens), [tokens])
    report = folding_report(model, context=tokens, batch=2)
    assert report == before
    for layer, held in zip(report.layers, cache.layers, strict=True):
        assert layer.bytes_after == (held.bytes_used if layer.form else stored_bytes(held))
    assert report.dtype == "float64"


def test_a_report_of_an_encoder_decoder_counts_the_layers_that_fold():
    report = folding_report(whisper(), context=31, batch=3)
    assert {layer.form for layer in report.layers} == {"input"}
    assert report.bytes_after * 2 == report.bytes_before == 2 * 2 * 31 * 3 * 48 * 8


def test_a_report_refuses_what_fold_refuses_and_sizes_that_are_none():
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=2, n_positions=33, vocab_size=11))
    assert folding_report(model).context == 33
    with pytest.raises(ValueError, match="context must be at least 1, not -1"):
        folding_report(model, context=-1)
    with pytest.raises(ValueError, match="batch must be at least 1, not 0"):
        folding_report(model, batch=0)
    with pytest.raises(ValueError, match="folds by form input, and not by row"):
        folding_report(model, form="row")
