"""Tokens in a file: for texts whose tokens would not fit into memory beside a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from twofold.data.cache_folder import cache_folder, key, made_once
from twofold.data.corpus import Document
from twofold.data.tokenizer import Tokenizer
from twofold.data.tokens import TokenStream, encoded, starts_of, token_type

TOKENS_FILE = "tokens.bin"
STARTS_FILE = "starts.npy"
FORMAT = "1"


def tokenise_to_file(
    documents: Sequence[Document], tokenizer: Tokenizer, progress: Callable[[int, int], None] | None = None
) -> TokenStream:
    """As `tokens.tokenise`, by way of a file in the cache folder, which the same texts and tokenizer find again.

    Holds one batch of text and its tokens at a time, and eight bytes per document; the result's `tokens` are a map of
    the file. The file is found by the hashes of the documents in their order and by `Tokenizer.fingerprint`.
    """
    digests = (document.digest for document in documents)
    kind = token_type(tokenizer)
    name = key("tokens", FORMAT, tokenizer.fingerprint, digests=digests)

    def make(folder: Path) -> None:
        lengths = []
        end = np.array([tokenizer.end], dtype=kind).tobytes()
        with (folder / TOKENS_FILE).open("wb") as file:
            file.write(end)
            for tokens in encoded(documents, tokenizer, progress):
                file.write(tokens.tobytes())
                file.write(end)
                lengths.append(len(tokens))
        np.save(folder / STARTS_FILE, starts_of(lengths))

    def is_whole(folder: Path) -> bool:
        try:
            starts = _starts(folder)
            size = (folder / TOKENS_FILE).stat().st_size
        except (OSError, ValueError):  # absent, or damaged
            return False
        if starts.dtype != np.int64 or starts.shape != (len(documents) + 1,):
            return False
        return starts[0] == 1 and bool((np.diff(starts) > 0).all()) and size == starts[-1] * kind.itemsize

    folder = made_once(cache_folder() / "tokens" / name, make, is_whole)
    tokens = np.memmap(folder / TOKENS_FILE, dtype=kind, mode="r")
    return TokenStream(tokens, _starts(folder))


def _starts(folder: Path) -> np.ndarray:
    with (folder / STARTS_FILE).open("rb") as file:
        return np.lib.format.read_array(file, allow_pickle=False)
