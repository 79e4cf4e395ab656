"""The text that a conversion is fitted to: whole windows, spread over all of it, each document once."""

import numpy as np
import pytest

from twofold.conversion.windows import read_windows
from twofold.data.corpus import load_corpus
from twofold.data.tokenizer import BYTES
from twofold.data.tokens import tokenise


@pytest.fixture
def texts(tmp_path):
    for name, count in (("a", 211), ("b", 307), ("sub/c", 401)):
        path = tmp_path / "texts" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(chr(97 + n * len(name) % 26) for n in range(count)))
    return tmp_path / "texts"


@pytest.mark.parametrize(("tokens", "count"), [(34, 2), (35, 3), (400, 24), (100_000, 54)])
def test_windows_are_whole_and_spread_from_the_first_to_the_last(texts, tokens, count):
    found = read_windows([str(texts)], BYTES, tokens, 17)
    stream = np.asarray(tokenise(load_corpus(str(texts)).documents, BYTES).tokens)
    every = stream[: len(stream) // 17 * 17].reshape(-1, 17).tolist()
    assert tuple(found.ids_BT.shape) == (count, 17)
    places = [every.index(window) for window in found.ids_BT.tolist()]
    assert (places[0], every[places[-1]]) == (0, every[-1])
    assert len(set(map(tuple, found.ids_BT.tolist()))) == len({tuple(every[n]) for n in places})
    assert found.sha256 == load_corpus(str(texts)).sha256


def test_a_document_that_several_sources_name_is_one(texts):
    once, twice = (read_windows([str(texts)] * times, BYTES, 10_000, 17) for times in (1, 2))
    assert once.sha256 == twice.sha256
    assert once.ids_BT.equal(twice.ids_BT)
    assert twice.sources == (str(texts),) * 2


def test_a_text_to_measure_on_stands_apart(texts, tmp_path):
    """By content: the same file has another name in another source."""
    found = read_windows([str(texts)], BYTES, 10_000, 17)
    with pytest.raises(ValueError, match=r"1 documents of .* are fitted to as well, c.txt#00000 first"):
        found.require_apart(load_corpus(str(texts / "sub")))
    (tmp_path / "other.txt").write_text("something else")
    found.require_apart(load_corpus(str(tmp_path / "other.txt")))


def test_too_little_is_refused_with_its_numbers(texts):
    for tokens, context, words in (
        (10_000, 600, "the text has 1 windows of 600 tokens, and 10000 tokens are to be fitted to"),
        (17, 17, "has 54 windows of 17 tokens, and 17 tokens are to be fitted to"),
        (0, 17, "and 0 tokens"),
        (100, 0, "at least 1 token, not 0"),
    ):
        with pytest.raises(ValueError, match=words):
            read_windows([str(texts)], BYTES, tokens, context)
