"""The text that a conversion is fitted to: token ids in windows, spread evenly over what there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

import numpy as np
import torch
from torch import Tensor

from twofold.data.corpus import Corpus, Document, load_corpus
from twofold.data.packing import Windows
from twofold.data.tokenizer import Tokenizer
from twofold.data.tokens import tokenise


@dataclass(frozen=True)
class FittedText:
    """Windows `ids_BT` [N, T] of `sources`, whose documents have that hash, and each a content in `contents`."""

    ids_BT: Tensor  # noqa: N815
    sources: tuple[str, ...]
    sha256: str
    contents: frozenset[bytes]

    def require_apart(self, test: Corpus) -> None:
        """Raise ValueError where a document of the text to measure on was fitted to."""
        if shared := [one.name for one in test.documents if _content(one) in self.contents]:
            raise ValueError(
                f"{len(shared)} documents of {test.name} are fitted to as well, {shared[0]} first: measure on others"
            )


def read_windows(
    sources: Sequence[str],
    tokenizer: Tokenizer,
    tokens: int,
    context: int,
    progress: Callable[[str, int, int], None] | None = None,
) -> FittedText:
    """About `tokens` tokens of the `sources` (see `data.corpus.load_corpus`), in whole windows of `context`.

    A document that several sources name is one. `progress` is called with what is done, how much of it, and of how
    much. Raises ValueError where there is no text, or not enough for two windows.
    """
    if context < 1:
        raise ValueError(f"a window has at least 1 token, not {context}")
    read = (load_corpus(source, progress and partial(progress, "reading")) for source in sources)
    documents = tuple({one.digest: one for corpus in read for one in corpus.documents}.values())
    windows = Windows(tokenise(documents, tokenizer, progress and partial(progress, "tokenising")), context)
    count = min(len(windows), -(-tokens // context))
    if count < 2:
        raise ValueError(
            f"the text has {len(windows)} windows of {context} tokens, and {tokens} tokens are to be fitted to: that "
            "takes 2 windows, one to see how well it went; give more text, or shorter windows (--context), or more "
            "--tokens"
        )
    picked = np.linspace(0, len(windows) - 1, count).round().astype(int)
    ids_BT = torch.stack([windows[int(number)]["input_ids"] for number in picked])
    contents = frozenset(_content(one) for one in documents)
    return FittedText(ids_BT, tuple(sources), Corpus("", documents).sha256, contents)


def _content(document: Document) -> bytes:
    """A hash of the text alone: folders name one file in several ways."""
    return sha256(document.text).digest() if isinstance(document.text, bytes) else document.text.sha256
