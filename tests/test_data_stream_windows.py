"""Windows from documents that come one after another: those of the documents together, and going on anywhere."""

import json
import tracemalloc
from itertools import islice

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stream_documents import Listed, Pairs
from twofold.data.byte_tokens import END
from twofold.data.corpus import Document
from twofold.data.dataset import DatasetSource
from twofold.data.packing import Windows
from twofold.data.stream_windows import StreamWindows
from twofold.data.streams import DatasetStream
from twofold.data.tokenizer import BYTES
from twofold.data.tokens import tokenise

PACKINGS = st.sampled_from(["packed", "separate", "padded"])
TEXTS = st.lists(st.text("aß€\n", max_size=13).map(str.encode), min_size=1, max_size=7)
TOKENIZERS = st.sampled_from([BYTES, Pairs()])


def plain(items):
    return [{key: value.tolist() for key, value in item.items()} for item in items]


@given(TEXTS, st.integers(1, 19), PACKINGS, TOKENIZERS)
def test_the_first_round_gives_the_windows_of_all_documents_together(texts, context, packing, tokenizer):
    together = tokenise([Document("d", text) for text in texts], tokenizer)
    assume(len(together.tokens) > context)
    windows = Windows(together, context, packing)
    streamed = StreamWindows(Listed(texts), context, tokenizer, packing)
    assert plain(islice(streamed, len(windows))) == plain(windows)


@given(TEXTS, st.integers(1, 19), PACKINGS)
def test_after_the_last_document_comes_the_first_again(texts, context, packing):
    rounds = 3
    repeated = Windows(tokenise([Document("d", text) for text in texts * rounds], BYTES), context=1)
    assume(len(repeated) >= context)
    windows = Windows(tokenise([Document("d", text) for text in texts * rounds], BYTES), context, packing)
    streamed = StreamWindows(Listed(texts), context, BYTES, packing)
    assert plain(islice(streamed, len(windows))) == plain(windows)


@given(TEXTS, st.integers(1, 19), PACKINGS, TOKENIZERS, st.lists(st.integers(0, 23), max_size=4))
def test_it_goes_on_anywhere_with_exactly_what_had_followed(texts, context, packing, tokenizer, taken):
    """Also in the middle of a document, at the end of the stream and past it; the state goes through JSON."""
    ahead = 5
    expected = plain(islice(StreamWindows(Listed(texts), context, tokenizer, packing), sum(taken) + ahead))
    state, made = None, []
    for count in taken:
        windows = StreamWindows(Listed(texts), context, tokenizer, packing)
        windows.resume(state)
        made += plain(islice(windows, count))
        state = json.loads(json.dumps(windows.state()))
        assert state["window"] == len(made)
    windows = StreamWindows(Listed(texts), context, tokenizer, packing)
    windows.resume(state)
    assert made + plain(islice(windows, ahead)) == expected


def test_resuming_reads_only_the_document_that_was_cut():
    texts = [b"abcdefg" * (1 + number) for number in range(11)]
    windows = StreamWindows(Listed(texts), 5, BYTES)
    list(islice(windows, 40))
    state = windows.state()
    documents = Listed(texts)
    again = StreamWindows(documents, 5, BYTES)
    again.resume(state)
    next(iter(again))
    assert state["documents"]["documents"] > 4
    assert documents.read <= 2  # it, and one more where the window ends in the next


def test_none_is_the_beginning_for_the_next_run_too():
    windows = StreamWindows(Listed([b"abcdefghijk", b"lmn"]), 4, BYTES)
    first = plain(islice(windows, 7))
    windows.resume(None)
    assert plain(islice(windows, 7)) == first


@pytest.mark.parametrize("packing", ["packed", "separate", "padded"])
def test_the_place_stays_small_and_memory_does_not_grow(packing):
    windows = StreamWindows(Listed([bytes([97 + number]) * (7 * number) for number in range(13)]), 17, BYTES, packing)
    items = iter(windows)
    list(islice(items, 500))
    tracemalloc.start()
    list(islice(items, 10))
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(3000):
        next(items)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 20_000
    assert len(json.dumps(windows.state())) < 100


def test_a_document_much_longer_than_the_window_is_not_copied_for_each():
    text = b"x" * 1_000_003
    items = iter(StreamWindows(Listed([text]), 11, BYTES))
    next(items)
    tracemalloc.start()
    for _ in range(50):
        next(items)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50_000


def test_an_item_is_nobody_elses():
    windows = StreamWindows(Listed([b"abcdefg"]), 3, BYTES)
    items = iter(windows)
    next(items)["shift_labels"].fill_(-100)
    assert next(items)["input_ids"].tolist() == list(b"cde")
    assert next(items)["input_ids"].tolist() == [*b"fg", END]


@pytest.mark.parametrize("packing", ["packed", "padded"])
def test_a_stream_without_documents_is_an_error(packing):
    windows = StreamWindows(Listed([]), 3, BYTES, packing)
    with pytest.raises(ValueError, match="The stream has no documents"):
        next(iter(windows))
    with pytest.raises(ValueError, match="at least 1 token, got 0"):
        StreamWindows(Listed([]), 0, BYTES)


@pytest.mark.parametrize("packing", ["packed", "separate", "padded"])
def test_a_streamed_dataset_goes_on_anywhere_behind_what_is_held_out(tmp_path, packing):
    """The library's own states, over two files, also at the end of the stream and in its second round."""
    texts = [f"row {number} " * (number % 5) for number in range(13)]
    for name, part in (("a", texts[:6]), ("b", texts[6:])):
        lines = [json.dumps({"text": text}) + "\n" for text in part]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))

    def windows():
        documents = DatasetStream(DatasetSource(str(tmp_path)))
        held_out = documents.take(2)
        assert [document.content.decode() for document in held_out] == texts[1:3]
        return StreamWindows(documents, 19, BYTES, packing)

    count = 30
    given = [text.encode() for text in texts[3:] if text]
    expected = plain(islice(StreamWindows(Listed(given), 19, BYTES, packing), count + 3))
    whole = windows()
    items = iter(whole)
    for number in range(count):
        state = json.loads(json.dumps(whole.state()))
        if number % 4 == 0:
            again = windows()
            again.resume(state)
            assert plain(islice(again, 3)) == expected[number : number + 3]
        assert plain([next(items)]) == [expected[number]]
    assert count * 19 > 1.5 * sum(map(len, given))
