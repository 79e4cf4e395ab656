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
    name = key("tokens", FORMAT, tokenizer.fingerprint, digests=digests)

    def make(folder: Path) -> None:
        lengths = []
        end = np.array([tokenizer.end], dtype=token_type(tokenizer)).tobytes()
        with (folder / TOKENS_FILE).open("wb") as file:
            file.write(end)
            for tokens in encoded(documents, tokenizer, progress):
                file.write(tokens.tobytes())
                file.write(end)
                lengths.append(len(tokens))
        np.save(folder / STARTS_FILE, starts_of(lengths))

    def is_whole(folder: Path) -> bool:
        files = (folder / TOKENS_FILE, folder / STARTS_FILE)
        if not all(file.is_file() for file in files):
            return False
        return files[0].stat().st_size == _starts(folder)[-1] * token_type(tokenizer).itemsize

    folder = made_once(cache_folder() / "tokens" / name, make, is_whole)
    tokens = np.memmap(folder / TOKENS_FILE, dtype=token_type(tokenizer), mode="r")
    return TokenStream(tokens, _starts(folder))


def _starts(folder: Path) -> np.ndarray:
    return np.load(folder / STARTS_FILE, allow_pickle=False)
