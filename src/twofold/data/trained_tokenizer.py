"""Byte-level BPE of a wanted number of tokens, trained on the documents that a model trains on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from twofold.data.byte_tokens import END_TEXT, byte_level_letters, ended_by_end
from twofold.data.cache_folder import cache_folder, key, made_once
from twofold.data.corpus import Document

if TYPE_CHECKING:
    import tokenizers
    from transformers import PreTrainedTokenizerFast

TRAINING_BYTES = 2**26
"""Text that a tokenizer is trained on at most: 64 MiB settle some ten thousand tokens."""

TOKENIZER_FILE = "tokenizer.json"
FORMAT = "1"
_BATCH = 64


def trained_tokenizer(
    size: int, documents: Sequence[Document], progress: Callable[[int, int], None] | None = None
) -> PreTrainedTokenizerFast:
    """Byte-level BPE (GPT-2's) of `size` tokens: END, the 256 bytes, and merges that occur at least twice.

    It is trained on the first `TRAINING_BYTES` of the documents, read a few at a time; the same documents in the same
    order give the same tokenizer, which is kept in the cache folder. `progress` is called with (bytes read, bytes in
    all). Any text comes back as it was; END's characters in a text are ordinary text, since merges do not cross from
    letters to signs.

    Raises ValueError where the documents have too little text for so many tokens.
    """
    import tokenizers

    chosen = _beginning(documents)
    name = key("bpe", FORMAT, str(size), tokenizers.__version__, digests=(document.digest for document in chosen))

    def make(folder: Path) -> None:
        made = _train(size, chosen, progress)
        if made.get_vocab_size() != size:
            raise ValueError(
                f"bpe-{size} asks for {size:,} tokens, and {sum(d.size for d in chosen):,} bytes of training text "
                f"have only {made.get_vocab_size():,}: take bpe-{made.get_vocab_size()} or fewer, or add text"
            )
        made.save(str(folder / TOKENIZER_FILE))

    folder = made_once(cache_folder() / "tokenizers" / name, make, lambda place: _is_whole(place, size))
    return ended_by_end(tokenizers.Tokenizer.from_file(str(folder / TOKENIZER_FILE)))


def _is_whole(folder: Path, size: int) -> bool:
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_file(str(folder / TOKENIZER_FILE)).get_vocab_size() == size
    except Exception:  # the library has no narrower one for a file that is damaged or absent
        return False


def _beginning(documents: Sequence[Document]) -> Sequence[Document]:
    """The documents from the first on that have `TRAINING_BYTES` together; all where they have less."""
    bytes_up_to = list(accumulate(document.size for document in documents))
    return documents[: bisect_left(bytes_up_to, TRAINING_BYTES) + 1]


def _train(
    size: int, documents: Sequence[Document], progress: Callable[[int, int], None] | None
) -> tokenizers.Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    # The regular expression keeps letters, digits, signs and spaces apart: no merge can spell END.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        show_progress=False,
        special_tokens=[AddedToken(END_TEXT, special=True, normalized=False)],
        initial_alphabet=byte_level_letters(),
    )
    tokenizer.train_from_iterator(_texts(documents, progress), trainer)
    return tokenizer


def _texts(documents: Sequence[Document], progress: Callable[[int, int], None] | None) -> Iterator[list[str]]:
    total = sum(document.size for document in documents)
    done = 0
    for first in range(0, len(documents), _BATCH):
        batch = documents[first : first + _BATCH]
        yield [document.content.decode() for document in batch]
        done += sum(document.size for document in batch)
        if progress is not None:
            progress(done, total)
