"""Held-out text in the three packings: documents apart from each other, and the published padding."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from stream_documents import Pairs
from tiny_study import tiny_model
from twofold.data.byte_tokens import END
from twofold.data.corpus import Document
from twofold.data.tokenizer import BYTES
from twofold.evaluation.heldout import evaluate
from twofold.evaluation.kept_bytes import kept_bytes

TEXTS = (b"abracadabra", b"", "ß€\n".encode(), b"c" * 41, b"x", b"def f(x): return x\n" * 3)
DOCUMENTS = tuple(Document(str(number), text) for number, text in enumerate(TEXTS))
CONTEXT = 17
PACKINGS = ("packed", "separate", "padded")


def model(variant="K=V", **fields):
    """With deviations large enough that every token of a document counts, in float64."""
    made = tiny_model(variant, **fields).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return made.eval()


def nats(scored, inputs, targets):
    logits = scored(torch.tensor([inputs]), use_cache=False).logits[0]
    return F.cross_entropy(logits, torch.tensor(targets), reduction="none").tolist()


def alone(scored, text, start):
    """Nats of a document that begins after `start` positions of the stream, window part by window part."""
    path = [END, *text, END]
    total, place = 0.0, 0
    while place < len(path) - 1:
        stop = min(len(path) - 1, place + CONTEXT - (start + place) % CONTEXT)
        total += math.fsum(nats(scored, path[place:stop], path[place + 1 : stop + 1]))
        place = stop
    return total


@pytest.mark.parametrize(("variant", "block", "rotary"), [("K=V", "modern", "full"), ("GQA-2", "paper", "none")])
def test_separate_scores_each_document_as_if_it_were_alone(variant, block, rotary):
    scored = model(variant, block=block, rotary=rotary)
    evaluation = evaluate(scored, DOCUMENTS, CONTEXT, packing="separate")
    start = 0
    for document, score in zip(DOCUMENTS, evaluation.documents, strict=True):
        assert score.nats == pytest.approx(alone(scored, document.content, start), rel=1e-12)
        assert (score.tokens, score.bytes) == (len(document.content) + 1, len(document.content))
        start += len(document.content) + 1
    crossing = evaluate(scored, DOCUMENTS, CONTEXT).documents
    assert any(abs(one.nats - other.nats) > 0.01 for one, other in zip(evaluation.documents, crossing, strict=True))


def test_padded_scores_each_documents_window_with_its_padding():
    scored = model()
    evaluation = evaluate(scored, DOCUMENTS, CONTEXT, packing="padded")
    for document, score in zip(DOCUMENTS, evaluation.documents, strict=True):
        targets = [*document.content, *[END] * CONTEXT][:CONTEXT]
        expected = math.fsum(nats(scored, [END, *targets[:-1]], targets))
        assert score.nats == pytest.approx(expected, rel=1e-12)
        assert (score.tokens, score.bytes) == (CONTEXT, min(CONTEXT, len(document.content)))
    assert evaluation.tokens == len(DOCUMENTS) * CONTEXT
    assert evaluation.bits_per_byte == pytest.approx(evaluation.nats / math.log(2) / evaluation.bytes)


def test_padding_that_costs_nothing_dilutes_perplexity_and_not_bits_per_byte():
    """What the published protocol does: a model that foresees padding looks better per token for nothing."""
    scored = model()
    short = [Document("a", b"abracadabra")]

    class Foresees(torch.nn.Module):
        device, config = scored.device, scored.config

        def forward(self, input_ids, **kwargs):
            made = scored(input_ids, **kwargs)
            after_end = (input_ids == END).cumsum(dim=1) > 1
            made.logits[after_end] = 1e9 * F.one_hot(torch.tensor(END), 257).double()
            return made

    padded = [evaluate(Foresees(), short, context, packing="padded") for context in (12, 24, 48)]
    assert padded[0].perplexity == pytest.approx(evaluate(scored, short, 12).perplexity, rel=1e-9)
    for one, twice in pairwise(padded):
        assert twice.loss == pytest.approx(one.loss / 2, rel=1e-9)
        assert twice.bits_per_byte == pytest.approx(one.bits_per_byte, rel=1e-9)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("batch_size", [2, 5])
def test_the_batch_size_changes_nothing_but_rounding(packing, batch_size):
    scored = model()
    one_by_one = evaluate(scored, DOCUMENTS, CONTEXT, 1, packing=packing)
    seen = []
    together = evaluate(scored, DOCUMENTS, CONTEXT, batch_size, lambda *pair: seen.append(pair), packing=packing)
    assert [s.nats for s in together.documents] == pytest.approx([s.nats for s in one_by_one.documents], rel=1e-12)
    assert [s.tokens for s in together.documents] == [s.tokens for s in one_by_one.documents]
    assert seen[-1] == (together.tokens, together.tokens)


def test_flash_attention_is_refused_where_it_would_let_documents_see_each_other():
    scored = model()
    scored.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="packing 'separate' masks documents against each other"):
        evaluate(scored, DOCUMENTS, CONTEXT, packing="separate")


@given(st.text("aß€😀\ufffd\n", max_size=9), st.integers(0, 40), st.sampled_from([BYTES, Pairs()]))
def test_kept_bytes_are_exact_wherever_the_cut_is(text, kept, tokenizer):
    """Through characters of one to four bytes, and beside � that the text really has."""
    content = text.encode()
    tokens = tokenizer.encode(content)
    sizes = [1 if token < 256 else 2 for token in tokens]
    assert kept_bytes(content, tokens, kept, tokenizer) == sum(sizes[:kept])


def test_a_cut_document_of_a_tokenizer_that_changes_the_text_is_refused():
    class Lower(Pairs):
        name = "lower"

        def encode(self, text):
            return super().encode(text.lower())

    content = b"Abracadabra"
    tokens = Lower().encode(content)
    assert kept_bytes(content, tokens, len(tokens), Lower()) == len(content)
    with pytest.raises(ValueError, match=r"lower does not give .* its first 2 of 6 tokens cannot be counted"):
        kept_bytes(content, tokens, 2, Lower())


def test_bytes_of_cut_documents_under_a_tokenizer_of_longer_tokens():
    class Flat(torch.nn.Module):
        device = torch.device("cpu")

        def forward(self, input_ids, use_cache=True):
            return type("Output", (), {"logits": torch.zeros(*input_ids.shape, Pairs.vocabulary)})

    evaluation = evaluate(Flat(), DOCUMENTS, 5, packing="padded", tokenizer=Pairs())
    assert [score.bytes for score in evaluation.documents] == [min(10, len(text)) for text in TEXTS]
    assert evaluation.loss == pytest.approx(np.log(Pairs.vocabulary), rel=1e-6)
