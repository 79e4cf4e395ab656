"""Any Hugging Face tokenizer behind the `Tokenizer` protocol, from a folder or from the hub."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
"""One of these lies in a folder that has a tokenizer."""
ADVICE = (
    "Give bytes, bpe-4096 (or another size), the folder of a saved tokenizer, or a name on the Hugging Face hub; "
    "without a network, save it where there is one (AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)) and "
    "give the folder"
)
"""What to do for a tokenizer that cannot be read."""


class PretrainedTokenizer:
    """Encodes without special tokens, whose characters in a text stay text; its end-of-text token ends documents."""

    def __init__(self, name: str, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises ValueError where the tokenizer has no token that could end a document."""
        candidates = (tokenizer.eos_token_id, tokenizer.sep_token_id, tokenizer.bos_token_id)
        end = next((token for token in candidates if token is not None), None)
        if end is None:
            raise ValueError(
                f"The tokenizer {name!r} has no end-of-text token (eos, sep or bos) to end documents with: set its "
                "eos_token and save it, or take another"
            )
        self.name = name
        self.end: int = end
        # Ids may have holes, and added tokens lie behind the vocabulary.
        self.vocabulary = max(len(tokenizer), 1 + max(tokenizer.get_vocab().values()))
        self._type = np.uint16 if self.vocabulary <= 2**16 else np.uint32
        self._tokenizer = tokenizer

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the files that the tokenizer is saved as."""
        with tempfile.TemporaryDirectory() as folder:
            self._tokenizer.save_pretrained(folder)
            files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
            return sha256(b"".join(sha256(path.read_bytes()).digest() for path in files)).hexdigest()

    def encode(self, text: bytes) -> np.ndarray:
        """Tokens of UTF-8 text. Raises ValueError where it is none."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Tokens of each text; a fast tokenizer takes all cores."""
        encoded = self._tokenizer(
            [_decoded(text) for text in texts],
            add_special_tokens=False,
            split_special_tokens=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        return [np.array(ids, dtype=self._type) for ids in encoded["input_ids"]]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of the tokens without the ends, as the tokenizer's own decoder gives it."""
        kept = [int(token) for token in ids if token != self.end]
        return self._tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def for_transformers(self) -> PreTrainedTokenizerBase:
        """The tokenizer itself."""
        return self._tokenizer


@lru_cache(maxsize=4)
def pretrained(name: str) -> PretrainedTokenizer:
    """`read_pretrained`, once for each name: a study asks for its vocabulary again and again."""
    return read_pretrained(name)


def read_pretrained(name: str, advice: str = ADVICE) -> PretrainedTokenizer:
    """The tokenizer of a folder or of that name on the hub; code from the hub is never run.

    Raises ValueError, which ends in `advice`, where there is none, where its files are damaged, or where the hub cannot
    be reached.
    """
    from transformers import AutoTokenizer

    place = Path(name)
    if place.is_dir() and not any((place / file).is_file() for file in TOKENIZER_FILES):
        # Of a folder without one, transformers would make an empty tokenizer by the model's type.
        raise ValueError(f"No tokenizer {name!r}: none of {', '.join(TOKENIZER_FILES)} lies there. {advice}")
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, split_special_tokens=True, trust_remote_code=False)
    except Exception as error:  # damaged files raise errors of any kind, in `tokenizers` a bare Exception
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if not isinstance(error, (OSError, ValueError, ImportError)):
            reason = f"its files are damaged ({reason})"
        raise ValueError(f"No tokenizer {name!r}: {reason.rstrip('.')}. {advice}") from error
    # How it was reached is no part of it: saved, they would tell the same tokenizer apart with and without a network.
    for passing in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(passing, None)
    return PretrainedTokenizer(name, tokenizer)


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"The text is not UTF-8: byte {text[error.start]:#04x} at offset {error.start}; only the byte tokenizer "
            "takes any bytes"
        ) from error
