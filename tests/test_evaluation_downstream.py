"""The model of lm-evaluation-harness against a computation of one request at a time, without batch or padding."""

import json
import math
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("lm_eval")

from small_models import PAIRED, small_model
from twofold.data.corpus import Document
from twofold.data.tokenizer import BYTES, choose
from twofold.evaluation.downstream import TwofoldLM, trained_context
from twofold.evaluation.downstream_generation import settings
from twofold.evaluation.downstream_tokens import encode_pair, rolling_windows, windows
from twofold.evaluation.heldout import evaluate

pytestmark = pytest.mark.usefixtures("no_network")

LENGTH = 19
PAIRS = [
    ("def f(", "x):"),
    ("def f(", "y):"),  # reads what the one above reads
    ("def f(", "x):\n"),
    ("", "import os"),
    ("a = ", "1"),
    ("   ", "é"),
    ("<|end|>", "<|end|>"),
    ("naïve ", " two  spaces"),
    ("a context that is longer than nineteen", " tokens"),
    ("short", " and a continuation that is longer than nineteen tokens, é too"),
    ("nothing", ""),
]


@pytest.fixture(scope="module")
def bpe():
    """Merges of frequent pairs, so that a token can span context and continuation."""
    texts = ["import os\nimport sys\n", "return total", "turns the turned", "naïve tokens"] * 4
    return choose("bpe-290", lambda: [Document(str(n), text.encode()) for n, text in enumerate(texts)])


def requests(*arguments):
    return [SimpleNamespace(args=given) for given in arguments]


def one_by_one(model, seen, token):
    """log P(token | seen), and whether it is the likeliest: one sequence, one pass."""
    with torch.no_grad():
        logs = model(torch.tensor([seen]), use_cache=False).logits[0, -1].log_softmax(-1)
    return float(logs[token]), int(logs.argmax()) == token


def brute(model, context, continuation, length):
    """The documented rule in plain loops: what each token sees, and nothing shared between tokens."""
    whole, total, greedy = context + continuation, 0.0, True
    piece = length if len(continuation) <= length else math.ceil(length / 2)
    for place in range(len(continuation)):
        last = min((place // piece + 1) * piece, len(continuation))  # where the piece of this token ends
        start = max(len(context) + last - 1 - length, 0)
        likelihood, likeliest = one_by_one(model, whole[start : len(context) + place], continuation[place])
        total, greedy = total + likelihood, greedy and likeliest
    return total, greedy


@pytest.mark.parametrize(("variant", "style"), [*PAIRED, ("linear", ("modern", "none")), ("MLA", ("modern", "full"))])
def test_log_likelihoods_are_those_of_one_request_at_a_time(variant, style):
    model = small_model(variant, *style, vocab_size=257)
    lm = TwofoldLM(model, batch_size=3, max_length=LENGTH)
    expected = [brute(model, *by_bytes(*pair), LENGTH) for pair in PAIRS]
    found = lm.loglikelihood(requests(*PAIRS))
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    torch.testing.assert_close([value for value, _ in found], [value for value, _ in expected], rtol=1e-9, atol=1e-9)


def by_bytes(context, continuation):
    """The rule for bytes: END, and white space at the end of the context belongs to the continuation."""
    kept = context.rstrip()
    return [256, *kept.encode()], list((context[len(kept) :] + continuation).encode())


def test_windows_of_the_model_are_no_matter():
    model = small_model("K=V GQA-2", vocab_size=257, sliding_window=5)
    lm = TwofoldLM(model, batch_size=4, max_length=LENGTH)
    found = [value for value, _ in lm.loglikelihood(requests(*PAIRS))]
    assert found == pytest.approx([brute(model, *by_bytes(*pair), LENGTH)[0] for pair in PAIRS], rel=1e-9)


def test_what_greedy_decoding_gives_is_told():
    lm = TwofoldLM(small_model(vocab_size=257), max_length=LENGTH)
    (made,) = lm.generate_until(requests(("ab", {"max_gen_toks": 1})))
    if made.isascii():
        assert lm.loglikelihood(requests(("ab", made)))[0][1]
    texts = [chr(letter) for letter in range(33, 127)]
    assert sum(greedy for _, greedy in lm.loglikelihood(requests(*[("ab", text) for text in texts]))) <= 1


@pytest.mark.parametrize("pair", [("retu", "rn"), ("import o", "s"), ("import", " os"), ("ret", "urn "), ("x ", "é")])
def test_a_token_of_both_is_scored_with_the_continuation(bpe, pair):
    context, scored = encode_pair(bpe.for_transformers(), bpe.end, *pair)
    assert [context[0], *bpe.encode("".join(pair).encode())] == context + scored == [bpe.end, *context[1:], *scored]
    before, after = bpe.decode(context), bpe.decode(scored)
    assert before + after == "".join(pair)
    assert len(before) <= len(pair[0].rstrip())
    # No token that ends within the context is scored.
    assert len(before) + len(bpe.decode(scored[:1])) > len(pair[0].rstrip())


def test_merged_tokens_are_scored_as_the_brute_force_does(bpe):
    model = small_model("K=V", vocab_size=bpe.vocabulary)
    pairs = [("retu", "rn"), ("retu", "rn total"), ("import o", "s\nimport sys"), ("import", " os"), *PAIRS]
    assert any(len(encode_pair(bpe.for_transformers(), bpe.end, *pair)[0]) == 1 for pair in pairs[:1])
    cut = [encode_pair(bpe.for_transformers(), bpe.end, *pair) for pair in pairs]
    lm = TwofoldLM(model, tokenizer=bpe, batch_size=5, max_length=LENGTH)
    expected = [brute(model, *pieces, LENGTH) for pieces in cut]
    found = lm.loglikelihood(requests(*pairs))
    torch.testing.assert_close([v for v, _ in found], [v for v, _ in expected], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 19])
@pytest.mark.parametrize("tokens", [0, 1, 2, 6, 7, 8, 41])
@pytest.mark.parametrize("context", [1, 3])
def test_each_token_is_scored_once(length, tokens, context):
    before, text = list(range(context)), list(range(context, context + tokens))
    cut = [list(windows(before, text, length))] + ([list(rolling_windows(0, text, length))] if context == 1 else [])
    for pieces in cut:
        assert [token for _, targets in pieces for token in targets] == text
        for inputs, targets in pieces:
            assert inputs == list(range(inputs[0], targets[-1]))  # all that comes before the last target, unbroken
            assert len(targets) <= len(inputs) == min(length, targets[-1])


@pytest.mark.parametrize("pieces", [1, 3])
def test_rolling_likelihood_is_the_held_out_loss(pieces):
    """Both cut a text of whole windows alike; the held-out loss then adds the END after its last byte."""
    model = small_model("Q=K=V", vocab_size=257)
    text = bytes(range(40, 40 + pieces * LENGTH)).decode()
    (rolling,) = TwofoldLM(model, max_length=LENGTH).loglikelihood_rolling(requests((text,)))
    whole = evaluate(model, [Document("text", text.encode())], LENGTH)
    assert whole.tokens == len(text) + 1
    ending, _ = one_by_one(model, list(text[-1:].encode()), 256)
    assert rolling + ending == pytest.approx(-whole.nats, rel=1e-9)


def test_rolling_likelihood_is_that_of_the_harness_own_adapter(bpe):
    from lm_eval.models.huggingface import HFLM

    texts = ["import os", "turns the turned tokens " * 3, "x" * 57]
    model = small_model("K=V", vocab_size=bpe.vocabulary)
    theirs = HFLM(pretrained=model, tokenizer=bpe.for_transformers(), batch_size=2, max_length=LENGTH)
    ours = TwofoldLM(model, tokenizer=bpe, batch_size=2, max_length=LENGTH)
    asked = [SimpleNamespace(args=(text,)) for text in texts]
    assert ours.loglikelihood_rolling(asked) == pytest.approx(theirs.loglikelihood_rolling(asked), rel=1e-9)


def greedy_text(model, prompt, new, length):
    ids = [256, *prompt.encode()][-(length - new) :]
    made = []
    for _ in range(new):
        token = int(model(torch.tensor([ids + made]), use_cache=False).logits[0, -1].argmax())
        if token == 256:
            break
        made.append(token)
    return BYTES.decode(made)


@pytest.mark.parametrize("variant", ["QKV", "K=V GQA-2", "MLA"])
def test_generation_is_greedy_and_ends_at_stop_strings(variant):
    model = small_model(variant, vocab_size=257)
    prompts = ["a", "def name(", "x = 1\n", "a prompt that is longer than nineteen tokens"]
    lm = TwofoldLM(model, batch_size=3, max_length=LENGTH)
    whole = [greedy_text(model, prompt, 7, LENGTH) for prompt in prompts]
    asked = {"max_gen_toks": 7, "do_sample": False}
    assert lm.generate_until(requests(*[(prompt, asked) for prompt in prompts])) == whole
    assert lm.cut == 1
    stops = [whole[0][2:4], whole[1][-1:]]  # of two characters, and the last one
    for stop, kept in zip(stops, (whole[0].split(stops[0])[0], whole[1].split(stops[1])[0]), strict=True):
        (made,) = lm.generate_until(requests((prompts[stops.index(stop)], {**asked, "until": stop})))
        assert made == kept
    both = lm.generate_until(requests((prompts[0], {**asked, "until": stops[:1]}), (prompts[1], asked)))
    assert both == [whole[0].split(stops[0])[0], whole[1]]


def test_a_stop_string_ends_the_work_and_not_only_the_text(monkeypatch):
    model = small_model(vocab_size=257)
    stop = greedy_text(model, "a", 12, 53)[3]
    passes = []
    forward = type(model).forward
    monkeypatch.setattr(type(model), "forward", lambda *a, **k: passes.append(1) or forward(*a, **k))
    TwofoldLM(model, max_length=53).generate_until(requests(("a", {"max_gen_toks": 12, "until": [stop]})))
    assert len(passes) <= 4


def test_settings_of_a_task():
    chosen = settings({"until": "\n", "max_gen_toks": 5, "temperature": 0.0}, 19)
    assert (chosen.prompt, chosen.new, chosen.stops, chosen.others) == (14, 5, ("\n",), {"do_sample": False})
    assert settings({}, 19).new == 9  # 256 tokens do not fit
    assert settings({"do_sample": True, "temperature": 0.5}, 999).others == {"do_sample": True, "temperature": 0.5}
    with pytest.raises(ValueError, match="nothing can be generated"):
        settings({"max_gen_toks": 0}, 19)


def test_contexts_that_lose_their_beginning_are_counted(caplog):
    lm = TwofoldLM(small_model(vocab_size=257), max_length=LENGTH)
    lm.loglikelihood(requests(("x" * (LENGTH - 1), "y"), ("x" * LENGTH, "y"), ("x" * 40, "y")))
    assert lm.cut == 2
    assert "2 contexts did not fit into 19 tokens" in caplog.text


def test_a_folder_brings_its_tokenizer_and_context(tmp_path):
    model = small_model(vocab_size=257).float()
    model.save_pretrained(tmp_path / "model")
    assert TwofoldLM(tmp_path).max_length == model.config.max_position_embeddings
    (tmp_path / "record.json").write_text(json.dumps({"configuration": {"data": {"context": 31}}}))
    assert TwofoldLM(str(tmp_path)).max_length == TwofoldLM(tmp_path / "model").max_length == 31
    assert TwofoldLM(tmp_path, max_length=7).max_length == 7
    (tmp_path / "record.json").write_text("{}")
    with pytest.raises(ValueError, match=r"record\.json is damaged"):
        trained_context(tmp_path)


def test_what_cannot_be(bpe):
    model = small_model("QKV", "paper", "none", vocab_size=257)
    for faulty in ({"batch_size": 0}, {"batch_size": "auto"}, {"max_length": -1}):
        with pytest.raises(ValueError, match="must be a number from 1"):
            TwofoldLM(model, **faulty)
    with pytest.raises(ValueError, match="53 learned positions"):
        TwofoldLM(model, max_length=54)
    with pytest.raises(ValueError, match="290 tokens and the model 257"):
        TwofoldLM(model, tokenizer=bpe)
    slow = SimpleNamespace(is_fast=False)
    with pytest.raises(ValueError, match="no fast one"):
        encode_pair(slow, 0, "a", "b")
