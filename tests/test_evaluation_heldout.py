import json
import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_study import tiny_model
from twofold.data.byte_tokens import END, VOCABULARY
from twofold.data.corpus import Document
from twofold.data.tokenizer import BYTES
from twofold.data.tokens import tokenise
from twofold.evaluation.bigram import bigram_bits_per_byte, bigram_log_probabilities
from twofold.evaluation.heldout import DocumentScore, Evaluation, evaluate

DOCUMENTS = (
    Document("a", b"abracadabra"),
    Document("empty", b""),
    Document("b", "ß\n".encode()),
    Document("c", b"c" * 17),
)


class TableModel(torch.nn.Module):
    """Next-token logits are a row of a table, chosen by the current token alone; every call is kept."""

    device = torch.device("cpu")

    def __init__(self, logits: np.ndarray, dtype: torch.dtype = torch.float64):
        super().__init__()
        self.table = torch.nn.Embedding.from_pretrained(torch.tensor(logits, dtype=dtype), freeze=False)
        self.dropout = torch.nn.Dropout(0.5)
        self.calls = []

    def forward(self, input_ids, use_cache=True):
        assert input_ids.dtype == torch.int64
        self.calls.append(input_ids)
        return SimpleNamespace(logits=self.dropout(self.table(input_ids)))


class WindowModel(TableModel):
    """The logits depend on the whole window up to the current token."""

    def forward(self, input_ids, use_cache=True):
        logits = super().forward(input_ids).logits.cumsum(dim=1)
        return SimpleNamespace(logits=logits)


def random_logits(seed=0):
    return np.random.default_rng(seed).normal(size=(VOCABULARY, VOCABULARY)) * 3


def nats_by_hand(logits, previous, target):
    row = logits[previous]
    return math.log(sum(math.exp(value) for value in row)) - row[target]


def test_nats_of_each_document_by_hand():
    """The opening token of a document is END, and the END that closes it is among its targets."""
    logits = random_logits()
    evaluation = evaluate(TableModel(logits), DOCUMENTS, context=5)
    for document, score in zip(DOCUMENTS, evaluation.documents, strict=True):
        path = [END, *document.content, END]
        expected = sum(nats_by_hand(logits, *pair) for pair in pairwise(path))
        assert score.nats == pytest.approx(expected, rel=1e-12)
        assert (score.name, score.tokens, score.bytes) == (document.name, len(path) - 1, len(document.content))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=23), min_size=1, max_size=5).filter(any), st.integers(1, 29), st.integers(1, 7))
def test_every_position_is_shown_once_in_windows_of_at_most_the_context(contents, context, batch_size):
    documents = [Document(str(number), content) for number, content in enumerate(contents)]
    model = TableModel(np.zeros((VOCABULARY, VOCABULARY)))
    evaluation = evaluate(model, documents, context, batch_size)
    tokens = tokenise(documents, BYTES).tokens
    assert torch.cat([call.flatten() for call in model.calls]).tolist() == tokens[:-1].tolist()
    full, rest = divmod(len(tokens) - 1, context)
    widths = [context] * full + [rest] * (rest > 0)
    assert [width for call in model.calls for width in [call.shape[1]] * call.shape[0]] == widths
    assert all(1 <= call.shape[0] <= batch_size for call in model.calls)
    assert evaluation.tokens == len(tokens) - 1


@pytest.mark.parametrize("model_type", [TableModel, WindowModel])
@pytest.mark.parametrize("batch_size", [2, 3, 16])
def test_the_batch_size_changes_nothing(model_type, batch_size):
    model = model_type(random_logits())
    one_by_one = evaluate(model, DOCUMENTS, context=3, batch_size=1)
    assert evaluate(model, DOCUMENTS, context=3, batch_size=batch_size) == one_by_one


def test_a_window_starts_without_history():
    """The same text in each window costs the same, although the model looks at all that it is shown."""
    documents = [Document(str(number), b"abcd") for number in range(3)]
    scores = evaluate(WindowModel(random_logits()), documents, context=5).documents
    assert scores[0].nats == pytest.approx(scores[1].nats) == pytest.approx(scores[2].nats)
    scores = evaluate(WindowModel(random_logits()), documents, context=15).documents
    assert scores[0].nats != pytest.approx(scores[1].nats)


@pytest.mark.parametrize("context", [1, 7, 1000])
def test_a_uniform_model_needs_log2_257_bits_per_token(context):
    evaluation = evaluate(TableModel(np.full((VOCABULARY, VOCABULARY), 0.7)), DOCUMENTS, context)
    assert (evaluation.tokens, evaluation.bytes) == (11 + 0 + 3 + 17 + 4, 31)
    assert evaluation.bits_per_byte == pytest.approx(math.log2(257) * 35 / 31, rel=1e-12)
    assert evaluation.loss == pytest.approx(math.log(257), rel=1e-12)
    assert evaluation.perplexity == pytest.approx(257, rel=1e-12)


def test_a_model_of_counted_bigrams_scores_what_the_counts_say():
    train = [Document("t", b"abracadabra, cadabra"), Document("u", b"ccc")]
    evaluation = evaluate(TableModel(bigram_log_probabilities(train)), DOCUMENTS, context=7)
    assert evaluation.bits_per_byte == pytest.approx(bigram_bits_per_byte(train, DOCUMENTS), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_logits_are_scored_in_higher_precision(dtype):
    rounded = torch.tensor(random_logits(), dtype=dtype)
    exact = evaluate(TableModel(rounded.double().numpy()), DOCUMENTS, context=7)
    assert evaluate(TableModel(rounded.double().numpy(), dtype), DOCUMENTS, 7).loss == pytest.approx(
        exact.loss, rel=1e-6
    )


def test_each_module_gets_its_own_mode_and_no_gradient_is_kept():
    model = TableModel(random_logits()).train()
    model.table.eval()
    evaluate(model, DOCUMENTS, context=5)
    assert (model.training, model.dropout.training, model.table.training) == (True, True, False)
    assert model.table.weight.grad is None
    assert torch.is_grad_enabled()
    model.eval()
    evaluate(model, DOCUMENTS, context=5)
    assert not model.dropout.training


def test_modes_come_back_when_the_model_fails():
    class Failing(TableModel):
        def forward(self, input_ids, use_cache=True):
            assert not self.training
            raise RuntimeError("out of memory")

    model = Failing(random_logits()).train()
    with pytest.raises(RuntimeError, match="out of memory"):
        evaluate(model, DOCUMENTS, context=5)
    assert model.training
    assert model.dropout.training


def test_progress_counts_tokens_up_to_all_of_them():
    seen = []
    evaluate(TableModel(random_logits()), DOCUMENTS, context=4, batch_size=3, progress=lambda *pair: seen.append(pair))
    assert seen == [(12, 35), (24, 35), (32, 35), (35, 35)]


def test_measures_follow_from_the_document_scores():
    evaluation = Evaluation((DocumentScore("a", 5.0, 3, 2), DocumentScore("b", 6.0, 8, 7)))
    assert evaluation.as_dict() == {
        "loss": pytest.approx(1.0),
        "bits_per_byte": pytest.approx(11 / math.log(2) / 9),
        "perplexity": pytest.approx(math.e),
        "tokens": 11,
        "bytes": 9,
    }
    assert json.loads(json.dumps(evaluation.as_dict())) == evaluation.as_dict()


def test_a_diverged_model_is_measured_as_such():
    assert Evaluation((DocumentScore("a", 5000.0, 2, 1),)).perplexity == math.inf
    assert math.isnan(evaluate(TableModel(random_logits() * np.nan), DOCUMENTS, context=5).bits_per_byte)


def test_unusable_arguments_are_errors():
    model = TableModel(random_logits())
    with pytest.raises(ValueError, match="at least 1, got 0 and 16"):
        evaluate(model, DOCUMENTS, context=0)
    with pytest.raises(ValueError, match="at least 1, got 5 and -1"):
        evaluate(model, DOCUMENTS, context=5, batch_size=-1)
    for documents in ([], [Document("empty", b"")]):
        with pytest.raises(ValueError, match=rf"Nothing to evaluate: {len(documents)} document"):
            evaluate(model, documents, context=5)
    assert model.calls == []


@pytest.mark.parametrize("variant", ["QKV", "K=V", "GQA-2"])
def test_scoring_through_a_cache_costs_what_its_rounding_costs(variant):
    model = tiny_model(variant, seed=3).double()
    exact = evaluate(model, DOCUMENTS, context=7)
    through = evaluate(model, DOCUMENTS, context=7, cache_dtype="float64")
    assert [score.nats for score in through.documents] == pytest.approx([score.nats for score in exact.documents])
    losses = {name: evaluate(model, DOCUMENTS, context=7, cache_dtype=name).loss for name in ("bfloat16", "int8")}
    for name, bound in (("bfloat16", 5e-3), ("int8", 2e-2)):
        assert 0 < abs(losses[name] - exact.loss) < bound


def test_a_cache_that_cannot_be_is_refused():
    model = tiny_model("K=V")
    with pytest.raises(ValueError, match="masked against each other cannot be scored with a cache"):
        evaluate(model, DOCUMENTS, context=7, packing="separate", cache_dtype="int8")
    with pytest.raises(ValueError, match="int4"):
        evaluate(model, DOCUMENTS, context=7, cache_dtype="int4")
