"""Documents that share a window and are kept apart get what each gets alone: logits, loss, gradients."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from small_models import PAIRED, POSITIONS, STYLES, VOCAB, small_model
from twofold.data.packing import Windows
from twofold.data.tokens import TokenStream

END = VOCAB - 1
CONTEXT = 23
LENGTHS = (31, 0, 5, 1, 2, 57, 13, 11)
"""Of the documents: some are cut by windows, one fills more than two, one is empty."""


def windows(packing="separate", context=CONTEXT):
    draw = np.random.default_rng(3)
    texts = [draw.integers(END, size=length) for length in LENGTHS]
    tokens = np.concatenate([[END], *(np.append(text, END) for text in texts)]).astype(np.uint16)
    return Windows(TokenStream(tokens, np.cumsum([1, *(length + 1 for length in LENGTHS)])), context, packing)


def parts(inputs):
    """Where each document's part of a window lies: END and what follows it, or what is left of one before."""
    borders = [0, *(place for place in range(1, len(inputs)) if inputs[place] == END), len(inputs)]
    return [slice(*pair) for pair in pairwise(borders)]


def batch(packing="separate"):
    items = list(windows(packing))
    return {key: torch.stack([item[key] for item in items]) for key in items[0]}


def test_the_windows_have_all_kinds_of_parts():
    inputs = batch()["input_ids"].tolist()
    counts = [len(parts(window)) for window in inputs]
    assert min(counts) == 1
    assert max(counts) >= 4
    assert any(window[0] != END and len(parts(window)) > 1 for window in inputs)
    assert any(window[0] == END for window in inputs)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize(("variant", "style"), PAIRED)
def test_logits_are_those_of_the_document_alone(variant, style, implementation):
    model = small_model(variant, *style, attn_implementation=implementation)
    given = batch()
    labels = given.pop("shift_labels")
    assert labels.shape == given["position_ids"].shape
    together = model(**given, use_cache=False).logits
    crossing = model(given["input_ids"], use_cache=False).logits
    seen = 0.0
    for number, inputs in enumerate(given["input_ids"]):
        for part in parts(inputs.tolist()):
            alone = model(inputs[None, part], use_cache=False).logits[0]
            torch.testing.assert_close(together[number, part], alone, rtol=0, atol=1e-9)
            seen = max(seen, (crossing[number, part] - alone).abs().max().item())
    assert seen > 1e-3  # where documents are packed, they do see each other


@pytest.mark.parametrize(("variant", "style"), PAIRED[:4])
def test_gradients_are_the_sum_of_the_documents_alone(variant, style):
    model = small_model(variant, *style).train()
    given = batch()
    labels = given.pop("shift_labels")
    F.cross_entropy(model(**given).logits.mT, labels).backward()  # the model's own loss is float32
    together = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    for inputs, targets in zip(given["input_ids"], labels, strict=True):
        for part in parts(inputs.tolist()):
            logits = model(inputs[None, part]).logits[0]
            (F.cross_entropy(logits, targets[part], reduction="sum") / labels.numel()).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(together[name], parameter.grad, rtol=0, atol=1e-10)


@pytest.mark.parametrize("style", STYLES)
def test_a_checkpointed_model_keeps_documents_apart_too(style):
    model = small_model("K=V", *style).train()
    given = batch()
    given.pop("shift_labels")
    plain = model(**given).logits
    model.activation_checkpointing_enable()
    again = model(**given).logits
    again.sum().backward()
    torch.testing.assert_close(again, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("context", "fits"), [(POSITIONS + 20, True), (2 * POSITIONS, False)])
def test_windows_past_the_learned_positions_are_fine_where_their_documents_are_not(context, fits):
    model = small_model("K=V", "paper", "none")
    (given,) = windows(context=context)
    given = {key: value[None] for key, value in given.items() if key != "shift_labels"}
    longest = max(part.stop - part.start for part in parts(given["input_ids"][0].tolist()))
    assert (longest <= POSITIONS) == fits
    if fits:
        assert model(**given, use_cache=False).logits.isfinite().all()
    else:
        with pytest.raises(ValueError, match="learned positions"):
            model(**given, use_cache=False)
