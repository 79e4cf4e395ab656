"""Training and held-out documents: a split that is the same on every machine."""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from twofold.data.corpus import Corpus, Document


def split(corpus: Corpus, held_out: float) -> tuple[tuple[Document, ...], tuple[Document, ...]]:
    """Split by document into (training, held out), with at least the share `held_out` of the bytes held out.

    Documents are put in the order of their hashes and held out from the front until the share is reached. So
    the split depends on names and contents alone, a larger share holds out the same documents and more, and
    both sides come in an order that mixes the corpus's folders.

    Raises ValueError if the share is not between 0 and 1, or if it leaves nothing to train on.
    """
    if not 0 < held_out < 1:
        raise ValueError(f"The held-out share must lie between 0 and 1, got {held_out}; 0.05 is usual.")
    documents = by_digest(corpus.documents)
    bytes_up_to = list(accumulate(document.size for document in documents))
    count = bisect_left(bytes_up_to, held_out * corpus.bytes) + 1
    if count >= len(documents):
        raise ValueError(
            f"Holding out {held_out:.1%} of {corpus.bytes} bytes leaves nothing to train on: {corpus.name!r} has "
            f"{len(documents)} document(s); give more documents, or hold out less."
        )
    return documents[count:], documents[:count]


def by_digest(documents: Iterable[Document]) -> tuple[Document, ...]:
    """The documents in the order of their hashes, which mixes them and is the same on every machine."""
    return tuple(sorted(documents, key=lambda document: document.digest))
