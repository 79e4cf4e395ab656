import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from twofold.data.byte_tokens import END, decode
from twofold.data.corpus import Document
from twofold.data.packing import PackedWindows, stream

DOCUMENTS = st.lists(st.builds(Document, st.just("d"), st.binary(max_size=13)), max_size=7)


def test_a_stream_by_hand():
    tokens, index = stream([Document("a", b"AB"), Document("b", b""), Document("c", b"C")])
    assert tokens.tolist() == [END, 65, 66, END, END, 67, END]
    assert index.tolist() == [-1, 0, 0, 0, 1, 2, 2]
    assert tokens.dtype == np.uint16
    assert index.dtype == np.int32


@given(DOCUMENTS)
def test_each_documents_targets_are_its_bytes_and_one_end(documents):
    tokens, index = stream(documents)
    targets, owners = tokens[1:], index[1:]
    for number, document in enumerate(documents):
        own = targets[owners == number]
        assert decode(own[:-1]) == document.content
        assert own[-1] == END
    assert len(targets) == sum(len(document.content) + 1 for document in documents)


@given(DOCUMENTS, st.integers(1, 17))
def test_windows_train_every_target_once_in_order_and_without_padding(documents, context):
    tokens, _ = stream(documents)
    assume(len(tokens) > context)
    windows = PackedWindows(documents, context)
    items = list(windows)
    assert len(items) == len(windows) == (len(tokens) - 1) // context
    for item in items:
        assert item["input_ids"].dtype == item["shift_labels"].dtype == torch.int64
        assert item["input_ids"].shape == item["shift_labels"].shape == (context,)
    kept = len(items) * context
    assert torch.cat([item["input_ids"] for item in items]).tolist() == tokens[:kept].tolist()
    assert torch.cat([item["shift_labels"] for item in items]).tolist() == tokens[1 : kept + 1].tolist()


def test_windows_are_a_sequence():
    windows = PackedWindows([Document("a", b"abcdefg")], context=3)
    assert windows[-1]["input_ids"].tolist() == windows[1]["input_ids"].tolist() == list(b"cde")
    with pytest.raises(IndexError):
        windows[2]


def test_writing_to_an_item_leaves_the_stream_alone():
    windows = PackedWindows([Document("a", b"abcdefg")], context=3)
    windows[0]["shift_labels"].fill_(-100)
    assert windows[0]["shift_labels"].tolist() == list(b"abc")


def test_text_that_just_fits_and_text_that_just_does_not():
    assert len(PackedWindows([Document("a", b"abcd")], context=5)) == 1
    with pytest.raises(ValueError, match=r"Too little text: 1 .* give 6 tokens, and one window of context 6 needs 7"):
        PackedWindows([Document("a", b"abcd")], context=6)
    with pytest.raises(ValueError, match="Too little text: 0 "):
        PackedWindows([], context=2)


@pytest.mark.parametrize("context", [0, -3])
def test_the_context_must_be_positive(context):
    with pytest.raises(ValueError, match=f"at least 1 token, got {context}"):
        PackedWindows([Document("a", b"abcd")], context)
