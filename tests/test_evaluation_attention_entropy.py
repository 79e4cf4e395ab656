"""The entropy of a trained model's softmax, against its definition and against attention written out."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tiny_study import tiny_model
from twofold.data.byte_tokens import END
from twofold.data.corpus import Document
from twofold.data.packing import cuts, item
from twofold.data.tokenizer import BYTES
from twofold.data.tokens import tokenise
from twofold.evaluation.attention_entropy import attention_entropy, tally

TEXT = tuple(Document(f"text_{n}", bytes(97 + (i * i + n) % 23 for i in range(41 + 7 * n))) for n in range(3))
CONTEXT = 19
MODELS = {
    "plain": {},
    "scaled": {"variant": "K=V GQA-2", "scale_exponent": 0.0},
    "windows": {"layers": 3, "window": 5, "layer_pattern": "SL"},
    "sinks": {"sinks": True, "variant": "MQA"},
    "both": {"layers": 3, "sinks": True, "window": 1, "layer_pattern": "SSL", "block": "paper", "positions": 31},
}


def sharp_model(**fields):
    """A tiny model whose weights are far from even, and whose sinks are far from nothing."""
    model = tiny_model(**fields)
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "projections" in name:
                parameter.add_(torch.randn(parameter.shape, generator=draw) * 0.4)
    return model


def by_hand(model, packing, windows):
    """(entropy, ratio, saturated) of every counted softmax, layer by layer, as transformers gives the weights."""
    cut = cuts(packing, tokenise(TEXT, BYTES), CONTEXT)
    model.eval().set_attn_implementation("eager")
    sizes = model.config.architecture
    found = [[] for _ in range(sizes.layers)]
    for window in windows:
        items = item(packing, cut.tokens(window)[None], BYTES.end)
        del items["shift_labels"]
        ids = items["input_ids"][0].tolist()
        attentions = model(**items, output_attentions=True, use_cache=False).attentions
        for layer, weights in enumerate(attentions):
            reach = sizes.windows[layer] or CONTEXT
            for position in range(len(ids)):
                first = max(0, position + 1 - reach)
                if packing == "separate":
                    ends = [place for place in range(position + 1) if ids[place] == END]
                    first = max([first, *ends[-1:]])
                choices = position + 1 - first + sizes.sinks
                if choices < 2:
                    continue
                for row in weights[0, :, position].double().tolist():
                    assert sum(row[:first]) == sum(row[position + 1 :]) == 0
                    row = [*row, 1 - sum(row)] if sizes.sinks else row
                    entropy = -sum(weight * math.log(weight) for weight in row if weight > 0)
                    found[layer].append((entropy, entropy / math.log(choices), max(row) > 0.99))
    return found


def means(rows):
    return tuple(sum(column) / len(rows) for column in zip(*rows, strict=True)) if rows else None


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("packing", ["packed", "separate", "padded"])
def test_it_is_what_the_weights_say(name, packing):
    model = sharp_model(**MODELS[name])
    usual, count = model.config._attn_implementation, len(cuts(packing, tokenise(TEXT, BYTES), CONTEXT))
    model.train()
    model.model.layers[0].eval()
    found = attention_entropy(model, TEXT, CONTEXT, windows=count + 2, packing=packing)
    assert model.config._attn_implementation == usual
    assert model.training
    assert not model.model.layers[0].training
    expected = by_hand(model, packing, range(count))
    as_numbers = [layer and (layer.entropy, layer.relative_entropy, layer.saturated) for layer in found.layers]
    for number, layer in zip(as_numbers, expected, strict=True):
        assert number == pytest.approx(means(layer), abs=1e-6)
    overall = found.overall
    together = means([row for layer in expected for row in layer])
    assert (overall.entropy, overall.relative_entropy, overall.saturated) == pytest.approx(together, abs=1e-6)
    assert 0 < overall.relative_entropy < 1


def test_windows_are_taken_from_all_of_the_text():
    model = sharp_model()
    found = attention_entropy(model, TEXT, CONTEXT, windows=2).overall
    last = len(cuts("packed", tokenise(TEXT, BYTES), CONTEXT)) - 1
    expected = means([row for layer in by_hand(model, "packed", [0, last]) for row in layer])
    assert found.entropy == pytest.approx(expected[0], abs=1e-6)


def test_a_model_that_scores_all_alike_weighs_all_alike():
    model = tiny_model()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.attention.projections.q_proj.weight.zero_()
    found = attention_entropy(model, TEXT[:1], CONTEXT, windows=1).overall
    assert found.relative_entropy == pytest.approx(1, abs=1e-6)
    assert found.entropy == pytest.approx(sum(math.log(n) for n in range(2, CONTEXT + 1)) / (CONTEXT - 1), abs=1e-6)
    assert found.saturated == 0


@given(st.integers(2, 17), st.booleans())
def test_even_weights_have_log_n_and_one_alone_has_nothing(choices, has_sink):
    even = torch.full((1, 1, choices), 1 / (choices + has_sink))
    alone = torch.zeros(1, 1, choices)
    alone[..., choices // 2] = 1
    count = torch.tensor([choices + has_sink])
    expected = [math.log(choices + has_sink), 1, 0, 1]
    assert tally(even, count, has_sink=has_sink).tolist() == pytest.approx(expected, abs=1e-6)
    assert tally(alone, count, has_sink=has_sink).tolist() == [0, 0, 1, 1]
    assert tally(torch.ones(1, 1, 1), torch.tensor([1])).tolist() == [0, 0, 0, 0]


def test_without_a_softmax_or_a_choice_there_is_none():
    assert attention_entropy(tiny_model("linear", rotary="none"), TEXT, CONTEXT) is None
    assert attention_entropy(tiny_model(), TEXT, 1) is None
    with pytest.raises(ValueError, match="there is no held-out document"):
        attention_entropy(tiny_model(), [], 1)
