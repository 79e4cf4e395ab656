import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from twofold.data.corpus import Corpus, Document
from twofold.data.split import split

CORPORA = st.builds(
    lambda contents: Corpus("c", tuple(Document(str(i), content) for i, content in enumerate(contents))),
    st.lists(st.binary(max_size=23), min_size=2, max_size=11),
)
SHARES = st.floats(0.01, 0.99)


def size(documents):
    return sum(len(document.content) for document in documents)


def try_split(corpus, share):
    try:
        return split(corpus, share)
    except ValueError:
        assume(False)


@given(CORPORA, SHARES)
def test_every_document_is_on_one_side_and_no_more_is_held_out_than_needed(corpus, share):
    train, held_out = try_split(corpus, share)
    assert train
    assert held_out
    assert sorted(train + held_out, key=lambda d: d.name) == sorted(corpus.documents, key=lambda d: d.name)
    assert size(held_out) >= share * corpus.bytes
    if len(held_out) > 1:
        assert size(held_out[:-1]) < share * corpus.bytes


@given(CORPORA, SHARES, st.randoms())
def test_the_order_of_the_documents_changes_nothing(corpus, share, random):
    expected = try_split(corpus, share)
    shuffled = list(corpus.documents)
    random.shuffle(shuffled)
    assert split(Corpus("d", tuple(shuffled)), share) == expected


@given(CORPORA, SHARES, SHARES)
def test_a_larger_share_holds_out_the_same_documents_and_more(corpus, one, other):
    _, smaller = try_split(corpus, min(one, other))
    _, larger = try_split(corpus, max(one, other))
    assert larger[: len(smaller)] == smaller


def test_the_split_is_the_same_on_every_machine():
    """Worked out apart with the shell's sha256sum: the hashes begin 1934…, 0078…, a105…, b3d1…, 14f1…."""
    corpus = Corpus("c", tuple(Document(str(i), bytes([65 + i]) * 10) for i in range(5)))
    _, held_out = split(corpus, 0.3)
    assert [document.name for document in held_out] == ["1", "4"]


def test_one_side_would_be_empty():
    uneven = Corpus("book", (Document("a", b"x"), Document("b", b"x")))
    with pytest.raises(ValueError, match=r"60.0% of 2 bytes leaves nothing to train on: 'book' has 2 document"):
        split(uneven, 0.6)
    with pytest.raises(ValueError, match="has 1 document"):
        split(Corpus("book", (Document("a", b"x" * 100),)), 0.1)
    with pytest.raises(ValueError, match="has 0 document"):
        split(Corpus("book", ()), 0.1)


@pytest.mark.parametrize("share", [0, 1, -0.1, 5, float("nan")])
def test_the_share_must_be_between_0_and_1(share):
    corpus = Corpus("c", (Document("a", b"x"), Document("b", b"x")))
    with pytest.raises(ValueError, match="between 0 and 1, got"):
        split(corpus, share)
