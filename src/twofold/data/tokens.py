"""Documents as one stream of tokens, and where each document lies in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from twofold.data.corpus import IN_MEMORY, Document
from twofold.data.tokenizer import Tokenizer

BATCH_BYTES = 2**21
"""Text that is tokenised at once: enough for all threads of a tokenizer, and little beside a model."""


@dataclass(frozen=True)
class TokenStream:
    """END doc₀ END doc₁ … docₙ₋₁ END.

    `tokens` is uint16 or uint32 [N], in memory or a read-only map of a file. `starts` is int64 [documents + 1]:
    document i's text is `tokens[starts[i] : starts[i + 1] − 1]`, and the END that closes it comes right after, at
    `starts[i + 1] − 1`. So `starts[0]` is 1, after the opening END, and the last of `starts` is N.
    """

    tokens: np.ndarray
    starts: np.ndarray

    def __post_init__(self) -> None:
        assert self.starts[0] == 1
        assert self.starts[-1] == len(self.tokens)

    @property
    def documents(self) -> int:
        """How many documents there are."""
        return len(self.starts) - 1

    def text(self, document: int) -> np.ndarray:
        """The tokens of one document without the ENDs around it; a view."""
        return self.tokens[self.starts[document] : self.starts[document + 1] - 1]


def token_type(tokenizer: Tokenizer) -> np.dtype:
    """The smallest of uint16 and uint32 that holds every token."""
    return np.dtype(np.uint16 if tokenizer.vocabulary <= 2**16 else np.uint32)


def tokenise(
    documents: Sequence[Document], tokenizer: Tokenizer, progress: Callable[[int, int], None] | None = None
) -> TokenStream:
    """The documents' tokens in their order, in memory, or in a file where the text is larger than `IN_MEMORY`.

    `progress` is called with (bytes of text done, bytes in all).
    """
    if sum(document.size for document in documents) > IN_MEMORY:
        from twofold.data.token_file import tokenise_to_file  # builds on this module

        return tokenise_to_file(documents, tokenizer, progress)
    parts = list(encoded(documents, tokenizer, progress))
    end = np.array([tokenizer.end], dtype=token_type(tokenizer))
    tokens = np.concatenate([end, *(part for text in parts for part in (text, end))])
    return TokenStream(tokens, starts_of([len(text) for text in parts]))


def starts_of(lengths: Sequence[int]) -> np.ndarray:
    """`TokenStream.starts` of texts of so many tokens each."""
    return np.cumsum([1, *(length + 1 for length in lengths)], dtype=np.int64)


def encoded(
    documents: Sequence[Document], tokenizer: Tokenizer, progress: Callable[[int, int], None] | None = None
) -> Iterator[np.ndarray]:
    """The tokens of each document in turn, `BATCH_BYTES` of text (but always a whole document) at a time."""
    total = sum(document.size for document in documents)
    done = 0
    kind = token_type(tokenizer)
    for batch in _batches(documents):
        for tokens in tokenizer.encode_batch([document.content for document in batch]):
            yield tokens.astype(kind, copy=False)
        done += sum(document.size for document in batch)
        if progress is not None:
            progress(done, total)


def _batches(documents: Sequence[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        if batch and size + document.size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(document)
        size += document.size
    if batch:
        yield batch
