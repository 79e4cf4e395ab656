"""The token stream: every document's bytes and tokens in their place, in memory as in a file."""

import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import large_corpus
from tiny_study import documents
from twofold.data import tokens
from twofold.data.cache_folder import cache_folder, made_once
from twofold.data.corpus import Document, load_corpus
from twofold.data.split import by_digest
from twofold.data.token_file import STARTS_FILE, TOKENS_FILE, tokenise_to_file
from twofold.data.tokenizer import BYTES, choose
from twofold.data.tokens import TokenStream, encoded, tokenise

DOCUMENTS = st.lists(st.builds(Document, st.text(max_size=3), st.text(max_size=11).map(str.encode)), max_size=7)


@pytest.fixture(scope="module")
def merges():
    return choose("bpe-277", documents)


@given(DOCUMENTS)
def test_each_document_lies_between_two_ends_in_memory_and_in_a_file(merges, texts):
    for tokenizer in (BYTES, merges):
        memory, file = tokenise(texts, tokenizer), tokenise_to_file(texts, tokenizer)
        assert isinstance(file.tokens, np.memmap)
        assert memory.tokens.dtype == file.tokens.dtype
        assert np.array_equal(memory.tokens, file.tokens)
        assert np.array_equal(memory.starts, file.starts)
        assert memory.starts.dtype == file.starts.dtype == np.int64
        assert memory.documents == len(texts)
        assert (memory.tokens[memory.starts - 1] == tokenizer.end).all()
        assert (memory.tokens == tokenizer.end).sum() == len(texts) + 1
        for index, document in enumerate(texts):
            assert tokenizer.decode(memory.text(index)).encode() == document.content
            assert memory.text(index).tolist() == tokenizer.encode(document.content).tolist()


def test_batches_of_any_size_give_the_same(merges, monkeypatch):
    texts = documents(7)
    whole = tokenise(texts, merges)
    for size in (1, 997, 10**9):
        monkeypatch.setattr(tokens, "BATCH_BYTES", size)
        told: list[tuple[int, int]] = []
        again = tokenise(texts, merges, lambda done, total, told=told: told.append((done, total)))
        assert np.array_equal(again.tokens, whole.tokens)
        total = sum(document.size for document in texts)
        assert told[-1] == (total, total)
        assert told == sorted(told)


def test_no_more_than_a_batch_of_text_is_read_ahead(monkeypatch):
    monkeypatch.setattr(tokens, "BATCH_BYTES", 100)
    read = []

    class Noted:
        size = 30
        sha256 = b""

        def read(self):
            read.append(self)
            return b"x" * 30

    texts = [Document(str(index), Noted()) for index in range(31)]
    for index, _ in enumerate(encoded(texts, BYTES)):
        assert index < len(read) <= index + 3


def test_a_large_text_goes_into_a_file_and_a_small_one_does_not(own_cache, monkeypatch):
    texts = documents(5, seed=3)
    size = sum(document.size for document in texts)
    monkeypatch.setattr(tokens, "IN_MEMORY", size)
    assert not isinstance(tokenise(texts, BYTES).tokens, np.memmap)
    monkeypatch.setattr(tokens, "IN_MEMORY", size - 1)
    large = tokenise(texts, BYTES)
    assert isinstance(large.tokens, np.memmap)
    assert not large.tokens.flags.writeable


def test_the_file_is_found_again_for_these_documents_in_this_order_and_this_tokenizer(own_cache, merges):
    texts = documents(4, seed=4)
    before = set((own_cache / "tokens").glob("*/"))

    def made(*arguments):
        told = []
        tokenise_to_file(*arguments, lambda *place: told.append(place))
        return bool(told)

    assert made(texts, BYTES)
    assert not made(texts, BYTES)
    assert made(texts[::-1], BYTES)
    assert made(texts, merges)
    assert made([*texts[:-1], Document(texts[-1].name, b"other")], BYTES)
    assert made([*texts[:-1], Document("other", texts[-1].content)], BYTES)
    folders = [path for path in set((own_cache / "tokens").glob("*/")) - before if path.is_dir()]
    assert len(folders) == 5
    for folder in folders:
        assert {path.name for path in folder.iterdir()} == {TOKENS_FILE, STARTS_FILE}


def test_a_file_that_lost_its_end_is_made_again(own_cache):
    texts = documents(3, seed=6)
    whole = np.array(tokenise_to_file(texts, BYTES).tokens)
    newest = max((own_cache / "tokens").glob(f"*/{TOKENS_FILE}"), key=os.path.getmtime)
    newest.write_bytes(newest.read_bytes()[:-2])
    assert np.array_equal(tokenise_to_file(texts, BYTES).tokens, whole)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: b"{}",
        lambda content: b"PK\x03\x04" + content,
        lambda content: content[:40],
        lambda content: content[:-8],
        lambda content: content.replace(b"<i8", b"<f8"),
        lambda content: content[:-16] + content[-8:] + content[-16:-8],
    ],
)
def test_damaged_starts_are_made_again(tmp_path, monkeypatch, damage):
    monkeypatch.setenv("TWOFOLD_CACHE", str(tmp_path))
    texts = documents(3, seed=7)
    whole = tokenise_to_file(texts, BYTES)
    (file,) = tmp_path.glob(f"tokens/*/{STARTS_FILE}")
    file.write_bytes(damage(file.read_bytes()))
    again = tokenise_to_file(texts, BYTES)
    assert np.array_equal(again.starts, whole.starts)
    assert np.array_equal(again.tokens, whole.tokens)


def test_an_empty_variable_names_no_folder(monkeypatch):
    monkeypatch.setenv("TWOFOLD_CACHE", "")
    assert cache_folder() == Path.home() / ".cache" / "twofold"


def test_what_fails_half_way_leaves_nothing(tmp_path):
    def fail(folder):
        (folder / "half").write_text("x")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        made_once(tmp_path / "made", fail, lambda folder: folder.is_dir())
    assert [path.name for path in tmp_path.iterdir()] == ["made.lock"]


def test_starts_that_do_not_belong_to_the_tokens_are_a_bug():
    for starts in ([0, 3], [1, 4]):
        with pytest.raises(AssertionError):
            TokenStream(np.zeros(3, dtype=np.uint16), np.array(starts))


def test_a_large_text_is_loaded_and_tokenised_in_a_fraction_of_its_memory(tmp_path, monkeypatch):
    """`large_corpus.py` in small: of 8 MB of text and 16 MB of tokens, no more than 3 MB are ever held."""
    monkeypatch.setattr("twofold.data.corpus.IN_MEMORY", 2**18)
    monkeypatch.setattr(tokens, "IN_MEMORY", 2**18)
    monkeypatch.setattr(tokens, "BATCH_BYTES", 2**18)
    monkeypatch.setattr("twofold.data.file_text.BLOCK_BYTES", 2**18)
    line = b"a line of text that is long enough to be one\n"
    (tmp_path / "text.txt").write_bytes(line * (2**23 // len(line)))
    tracemalloc.start()
    corpus = load_corpus(str(tmp_path / "text.txt"))
    stream = tokenise(by_digest(corpus.documents), BYTES)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(stream.tokens) == corpus.bytes + len(corpus.documents) + 1
    assert peak < 3 * 2**20


def test_the_documented_figures_are_those_of_the_record():
    root = Path(__file__).parent.parent
    results = json.loads((root / "docs/results/large-corpus.json").read_text())["tokenizers"]
    assert large_corpus.table(results) in (root / "docs/data.md").read_text()
    assert all(one["peak_bytes"] < large_corpus.LIMIT_GIB * 2**30 and one["bytes"] > 1e9 for one in results.values())
