"""A byte-bigram model by counting: the floor that a trained model must beat."""

from collections.abc import Sequence

import numpy as np

from twofold.data.byte_tokens import VOCABULARY
from twofold.data.corpus import Document
from twofold.data.packing import stream


def bigram_log_probabilities(documents: Sequence[Document]) -> np.ndarray:
    """Natural log of P(next | previous), float64 [previous, next], from counts with one added to each pair.

    A document starts after END and ends with END, as in training.
    """
    counts = np.bincount(_pairs(documents), minlength=VOCABULARY**2).reshape(VOCABULARY, VOCABULARY) + 1
    return np.log(counts / counts.sum(axis=1, keepdims=True))


def bigram_bits_per_byte(train_documents: Sequence[Document], held_out_documents: Sequence[Document]) -> float:
    """Bits per byte that the training documents' bigrams need for the held-out documents, their ENDs included.

    Raises ValueError if the held-out documents have no text.
    """
    held_out_bytes = sum(len(document.content) for document in held_out_documents)
    if held_out_bytes == 0:
        raise ValueError(f"Nothing to score: {len(held_out_documents)} held-out document(s) without text.")
    log_probabilities = bigram_log_probabilities(train_documents).ravel()[_pairs(held_out_documents)]
    return float(-log_probabilities.sum() / np.log(2) / held_out_bytes)


def _pairs(documents: Sequence[Document]) -> np.ndarray:
    """Each neighbouring pair of the packed stream as one number, previous · 257 + next."""
    tokens = stream(documents)[0].astype(np.int64)
    return tokens[:-1] * VOCABULARY + tokens[1:]
