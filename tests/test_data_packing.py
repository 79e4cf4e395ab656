import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from twofold.data.byte_tokens import END, decode
from twofold.data.corpus import Document
from twofold.data.packing import Windows, check_masks, cuts
from twofold.data.tokenizer import BYTES
from twofold.data.tokens import TokenStream, tokenise

DOCUMENTS = st.lists(st.builds(Document, st.just("d"), st.binary(max_size=13)), max_size=7)
PACKINGS = ("packed", "separate", "padded")


def stream(*contents):
    return tokenise([Document(str(number), content) for number, content in enumerate(contents)], BYTES)


@given(DOCUMENTS, st.integers(1, 17), st.sampled_from(["packed", "separate"]))
def test_each_documents_targets_are_its_bytes_and_one_end(documents, context, packing):
    cut = cuts(packing, tokenise(documents, BYTES), context)
    targets = [cut.tokens(window)[1:] for window in range(len(cut))]
    owners = [cut.owners(window) for window in range(len(cut))]
    assert [len(part) for part in targets] == [len(part) for part in owners]
    assert all(len(part) == context for part in targets[: cut.whole])
    for number, document in enumerate(documents):
        own = [token for part, of in zip(targets, owners, strict=True) for token in part[of == number]]
        assert decode(own[:-1]) == document.content
        assert own[-1] == END
    assert sum(map(len, targets)) == cut.targets == sum(len(document.content) + 1 for document in documents)


@given(DOCUMENTS, st.integers(1, 17))
def test_windows_train_every_target_once_in_order_and_without_padding(documents, context):
    tokens = tokenise(documents, BYTES).tokens
    assume(len(tokens) > context)
    windows = Windows(tokenise(documents, BYTES), context)
    items = list(windows)
    assert len(items) == len(windows) == (len(tokens) - 1) // context
    for item in items:
        assert item.keys() == {"input_ids", "shift_labels"}
        assert item["input_ids"].dtype == item["shift_labels"].dtype == torch.int64
        assert item["input_ids"].shape == item["shift_labels"].shape == (context,)
    kept = len(items) * context
    assert torch.cat([item["input_ids"] for item in items]).tolist() == tokens[:kept].tolist()
    assert torch.cat([item["shift_labels"] for item in items]).tolist() == tokens[1 : kept + 1].tolist()


@given(DOCUMENTS, st.integers(1, 17))
def test_separate_windows_are_the_packed_ones_with_positions_that_restart_at_each_end(documents, context):
    tokens = tokenise(documents, BYTES)
    assume(len(tokens.tokens) > context)
    for item, packed in zip(Windows(tokens, context, "separate"), Windows(tokens, context), strict=True):
        places, inputs = item.pop("position_ids").tolist(), item["input_ids"].tolist()
        assert item.keys() == packed.keys()
        assert all(torch.equal(item[key], packed[key]) for key in packed)
        assert places[0] == 0
        for before, (place, token) in zip(places, zip(places[1:], inputs[1:], strict=True), strict=False):
            assert place == (0 if token == END else before + 1)


@given(DOCUMENTS, st.integers(1, 17))
def test_a_padded_window_is_one_document_and_ends(documents, context):
    assume(documents)
    windows = Windows(tokenise(documents, BYTES), context, "padded")
    for item, document in zip(windows, documents, strict=True):
        text = [*document.content, *[END] * context][:context]
        assert item.keys() == {"input_ids", "shift_labels"}
        assert item["input_ids"].tolist() == [END, *text[:-1]]
        assert item["shift_labels"].tolist() == text


@pytest.mark.parametrize("packing", PACKINGS)
def test_windows_are_a_sequence(packing):
    windows = Windows(stream(b"abcdefg", b"hijklmnop"), 3, packing)
    last = len(windows) - 1
    assert windows[-1]["input_ids"].tolist() == windows[last]["input_ids"].tolist() != windows[0]["input_ids"].tolist()
    with pytest.raises(IndexError):
        windows[last + 1]


@pytest.mark.parametrize("packing", PACKINGS)
def test_writing_to_an_item_leaves_the_stream_alone(packing):
    windows = Windows(stream(b"abcdefg"), 3, packing)
    windows[0]["shift_labels"].fill_(-100)
    assert windows[0]["shift_labels"].tolist() == list(b"abc")


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_map_of_a_file_is_never_copied_whole(tmp_path, packing):
    length = 2**28 + 17
    file = tmp_path / "tokens"
    with file.open("wb") as sparse:
        sparse.truncate(length * 2)
    tokens = np.memmap(file, dtype=np.uint16, mode="r")
    starts = np.array([1, 1000, length // 2, length])
    tracemalloc.start()
    windows = Windows(TokenStream(tokens, starts), 101, packing)
    assert windows[len(windows) - 1]["input_ids"].tolist() == [0] * 101
    owners = [windows.cuts.owners(window)[0] for window in (0, len(windows) - 1)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert owners == [0, 2]
    assert peak < 2**20


def test_text_that_just_fits_and_text_that_just_does_not():
    for packing in ("packed", "separate"):
        assert len(Windows(stream(b"abcd"), 5, packing)) == 1
        with pytest.raises(
            ValueError, match=r"Too little text: 1 .* give 6 tokens, and one window of context 6 needs 7"
        ):
            Windows(stream(b"abcd"), 6, packing)
    assert len(Windows(stream(b"abcd"), 6, "padded")) == 1
    for packing in PACKINGS:
        with pytest.raises(ValueError, match="Too little text: 0 "):
            Windows(stream(), 2, packing)


@pytest.mark.parametrize("context", [0, -3])
def test_the_context_must_be_positive(context):
    with pytest.raises(ValueError, match=f"at least 1 token, got {context}"):
        Windows(stream(b"abcd"), context)


def test_attention_without_masks_is_refused_where_documents_are_kept_apart():
    check_masks("separate", "sdpa")
    check_masks("packed", "flash_attention_2")
    with pytest.raises(ValueError, match=r"flash_attention_3 does not: .* attn_implementation='sdpa'"):
        check_masks("separate", "flash_attention_3")
