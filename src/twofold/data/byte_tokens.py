"""Bytes as tokens: a token is a byte's value, and one more token ends a document."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import tokenizers
    from transformers import PreTrainedTokenizerFast

VOCABULARY = 257
"""256 byte values and the end token."""

END = 256
"""Separates documents and ends a sequence."""

END_TEXT = "<|end|>"
"""How the end token is shown. The same characters in a text are ordinary bytes."""


def encode(text: bytes) -> np.ndarray:
    """Tokens (uint16) of the bytes, one each; no end token is added."""
    return np.frombuffer(text, dtype=np.uint8).astype(np.uint16)


def decode(ids: Sequence[int] | np.ndarray) -> bytes:
    """The bytes of the tokens; end tokens are dropped. Raises ValueError for an id outside [0, 257)."""
    tokens = np.asarray(ids, dtype=np.int64)
    wrong = tokens[(tokens < 0) | (tokens >= VOCABULARY)]
    if wrong.size:
        raise ValueError(
            f"Token {wrong[0]} is not a byte token: ids run from 0 to {VOCABULARY - 1} ({END} is the end)."
        )
    return tokens[tokens != END].astype(np.uint8).tobytes()


def decode_text(ids: Sequence[int] | np.ndarray) -> str:
    """The text of the tokens, with � where bytes are not UTF-8, as at a cut or after a poor model."""
    return decode(ids).decode("utf-8", errors="replace")


def byte_tokenizer() -> "PreTrainedTokenizerFast":
    """The same tokens as an ordinary Hugging Face tokenizer, which saves and loads with a model.

    It is byte-level BPE without merges, with the vocabulary in the order of the byte values. Encoding adds no
    special token and never turns characters of the text into one. It pads on the left, as generation needs.
    """
    # Imported here: transformers takes seconds to load, and most of this package does without.
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {letter: byte for byte, letter in enumerate(byte_level_letters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END_TEXT, special=True, normalized=False)])
    return ended_by_end(tokenizer)


def ended_by_end(tokenizer: "tokenizers.Tokenizer") -> "PreTrainedTokenizerFast":
    """A tokenizer with the token `END_TEXT` as an ordinary Hugging Face one, see `byte_tokenizer`."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_TEXT,
        eos_token=END_TEXT,
        pad_token=END_TEXT,
        padding_side="left",
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


def byte_level_letters() -> list[str]:
    """The printable letter that byte-level BPE (GPT-2) writes for each byte value, in order.

    Printable Latin-1 stands for itself; the other bytes take the letters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(0x100 + others.index(byte)) for byte in range(256)]
