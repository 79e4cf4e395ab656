"""What the rest of the package asks of a tokenizer, and the choice of one by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from twofold.data import byte_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from twofold.data.corpus import Document

BYTES_NAME = "bytes"
LARGEST_BPE = 2**20
TOKENIZER_CONFIG = "tokenizer_config.json"


class Tokenizer(Protocol):
    """Text to tokens and back. `end` separates documents; `vocabulary` counts all tokens, `end` among them."""

    name: str
    vocabulary: int
    end: int

    @property
    def fingerprint(self) -> str:
        """Tells apart tokenizers that may give different tokens for a text."""

    def encode(self, text: bytes) -> np.ndarray:
        """Tokens (uint16, or uint32 where the vocabulary needs it) of UTF-8 text; no end token is added."""

    def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """`encode` of each text, by all threads that the tokenizer has."""

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of the tokens, with � where their bytes are not UTF-8; end tokens are dropped."""

    def for_transformers(self) -> PreTrainedTokenizerBase:
        """The same as a Hugging Face tokenizer, to be saved with a model."""


class ByteTokenizer:
    """A token is a byte's value, and 256 ends a document."""

    name = BYTES_NAME
    fingerprint = BYTES_NAME
    vocabulary = byte_tokens.VOCABULARY
    end = byte_tokens.END

    def encode(self, text: bytes) -> np.ndarray:
        """Tokens (uint16) of the bytes, one each."""
        return byte_tokens.encode(text)

    def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Tokens of each text."""
        return [byte_tokens.encode(text) for text in texts]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of the tokens, see `byte_tokens.decode_text`."""
        return byte_tokens.decode_text(ids)

    def for_transformers(self) -> PreTrainedTokenizerBase:
        """See `byte_tokens.byte_tokenizer`."""
        return byte_tokens.byte_tokenizer()


BYTES: Tokenizer = ByteTokenizer()


def vocabulary(name: str) -> int:
    """Tokens of the tokenizer of that name (see `choose`), before any text is read. ValueError where there is none."""
    if name == BYTES_NAME:
        return byte_tokens.VOCABULARY
    size = _trained_size(name)
    return _pretrained(name).vocabulary if size is None else size


def choose(
    name: str, documents: Callable[[], Sequence[Document]], progress: Callable[[int, int], None] | None = None
) -> Tokenizer:
    """The tokenizer that a name stands for.

    - `bytes`: a token is a byte;
    - `bpe-4096`, or another size from 257: byte-level BPE of that many tokens, trained on the documents
      that are then asked for (see `trained_tokenizer`, also for what `progress` is called with);
    - anything else: the folder, or the name on the hub, of a Hugging Face tokenizer.

    Raises ValueError where there is no such tokenizer or too little text to train it.
    """
    if name == BYTES_NAME:
        return BYTES
    size = _trained_size(name)
    if size is None:
        return _pretrained(name)
    from twofold.data.pretrained_tokenizer import PretrainedTokenizer
    from twofold.data.trained_tokenizer import trained_tokenizer

    return PretrainedTokenizer(name, trained_tokenizer(size, documents(), progress))


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer that was saved in a model's folder; that of bytes where it is the one.

    A folder without one has that of bytes too, if its model's vocabulary is theirs. Raises ValueError where it is not,
    or where the tokenizer's files are damaged.
    """
    from twofold.data.pretrained_tokenizer import read_pretrained

    advice = "Put back the tokenizer's files that were saved with the model, or train it again"
    if not (folder / TOKENIZER_CONFIG).is_file():
        size = json.loads((folder / "config.json").read_bytes())["vocab_size"]
        if size != byte_tokens.VOCABULARY:
            raise ValueError(
                f"{folder} holds no tokenizer (no {TOKENIZER_CONFIG}), and its model has {size:,} tokens, where bytes "
                f"have {byte_tokens.VOCABULARY}. {advice}"
            )
        return BYTES
    saved = read_pretrained(str(folder.resolve()), advice)
    # Only `BYTES` takes bytes that are no text, as a prompt may hold.
    same = saved.for_transformers().get_vocab() == byte_tokens.byte_tokenizer().get_vocab()
    return BYTES if same else saved


def _trained_size(name: str) -> int | None:
    """N of `bpe-N`; None for a name of another kind. ValueError where it only looks like one."""
    if re.fullmatch(r"(?i)byte|bpe[-_ ]?\w*", name) is None:
        return None
    size = int(name[4:]) if re.fullmatch(r"bpe-[1-9]\d{0,8}", name) else 0
    if not byte_tokens.VOCABULARY <= size <= LARGEST_BPE:
        raise ValueError(
            f"{name!r} is no tokenizer: write bytes, or bpe-4096 with any number of tokens from "
            f"{byte_tokens.VOCABULARY} (the bytes and the end) to {LARGEST_BPE:,}"
        )
    return size


def _pretrained(name: str) -> Tokenizer:
    from twofold.data.pretrained_tokenizer import pretrained

    return pretrained(name)
