import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.data.byte_tokens import END, VOCABULARY
from twofold.data.corpus import Document
from twofold.evaluation.bigram import bigram_bits_per_byte, bigram_log_probabilities

DOCUMENTS = st.lists(st.builds(Document, st.just("d"), st.binary(max_size=11)), max_size=5)


def bits_per_byte_slowly(train, held_out):
    """The same from a counter, one pair after another."""

    def pairs(documents):
        for document in documents:
            path = [END, *document.content, END]
            yield from pairwise(path)

    pair_counts = Counter(pairs(train))
    previous_counts = Counter(previous for previous, _ in pairs(train))
    bits = -sum(
        math.log2((pair_counts[pair] + 1) / (previous_counts[pair[0]] + VOCABULARY)) for pair in pairs(held_out)
    )
    return bits / sum(len(document.content) for document in held_out)


def test_by_hand():
    """From "aa": END→a once, a→a once, a→END once, so each has probability 2/258, 2/259, 2/259."""
    train, held_out = [Document("t", b"aa")], [Document("h", b"a")]
    expected = -math.log2(2 / 258) - math.log2(2 / 259)
    assert bigram_bits_per_byte(train, held_out) == pytest.approx(expected, rel=1e-12)


@given(DOCUMENTS, DOCUMENTS.filter(lambda documents: any(document.content for document in documents)))
def test_equals_counting_pair_by_pair(train, held_out):
    assert bigram_bits_per_byte(train, held_out) == pytest.approx(bits_per_byte_slowly(train, held_out), rel=1e-9)


@given(DOCUMENTS)
def test_rows_are_probabilities_and_nothing_is_impossible(documents):
    log_probabilities = bigram_log_probabilities(documents)
    assert np.isfinite(log_probabilities).all()
    np.testing.assert_allclose(np.exp(log_probabilities).sum(axis=1), 1, rtol=1e-12)


def test_without_training_text_every_token_is_as_likely():
    held_out = [Document("h", b"seven..")]
    assert bigram_bits_per_byte([], held_out) == pytest.approx(math.log2(257) * 8 / 7, rel=1e-12)


@pytest.mark.parametrize("held_out", [[], [Document("empty", b"")]])
def test_no_text_to_score_is_an_error(held_out):
    with pytest.raises(ValueError, match=f"{len(held_out)} held-out document"):
        bigram_bits_per_byte([Document("t", b"aa")], held_out)
