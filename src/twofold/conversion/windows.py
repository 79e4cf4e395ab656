"""The text that a conversion is fitted to: token ids in windows, spread evenly over what there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from twofold.data.corpus import Corpus, load_corpus
from twofold.data.packing import Windows
from twofold.data.tokenizer import Tokenizer
from twofold.data.tokens import tokenise


@dataclass(frozen=True)
class FittedText:
    """Windows `ids_BT` [N, T] of `sources`, whose texts together have that hash."""

    ids_BT: Tensor  # noqa: N815
    sources: tuple[str, ...]
    sha256: str


def read_windows(sources: Sequence[str], tokenizer: Tokenizer, tokens: int, context: int) -> FittedText:
    """About `tokens` tokens of the `sources` (see `data.corpus.load_corpus`), in whole windows of `context`.

    Raises ValueError where there is no text, or not enough for two windows.
    """
    documents = tuple(document for source in sources for document in load_corpus(source).documents)
    windows = Windows(tokenise(documents, tokenizer), context)
    count = min(len(windows), -(-tokens // context))
    if count < 2:
        raise ValueError(
            f"{len(windows)} windows of {context} tokens in the text, and {count} asked for: fitting takes at least 2, "
            "so give more text or a shorter --context"
        )
    picked = np.linspace(0, len(windows) - 1, count).round().astype(int)
    ids_BT = torch.stack([windows[int(number)]["input_ids"] for number in picked])
    return FittedText(ids_BT, tuple(sources), Corpus("", documents).sha256)
