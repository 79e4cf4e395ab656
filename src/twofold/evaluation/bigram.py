"""A byte-bigram model by counting: the floor that a trained model must beat."""

from collections.abc import Sequence

import numpy as np

from twofold.data.byte_tokens import END, VOCABULARY
from twofold.data.corpus import Document
from twofold.data.tokenizer import BYTES
from twofold.data.tokens import encoded

_PAIRS_AT_ONCE = 2**20


def bigram_log_probabilities(documents: Sequence[Document]) -> np.ndarray:
    """Natural log of P(next | previous), float64 [previous, next], from counts with one added to each pair.

    A document starts after END and ends with END, as in training.
    """
    counts = _counts(documents) + 1
    return np.log(counts / counts.sum(axis=1, keepdims=True))


def bigram_bits_per_byte(train_documents: Sequence[Document], held_out_documents: Sequence[Document]) -> float:
    """Bits per byte that the training documents' bigrams need for the held-out documents, their ENDs included.

    Raises ValueError if the held-out documents have no text.
    """
    held_out_bytes = sum(document.size for document in held_out_documents)
    if held_out_bytes == 0:
        raise ValueError(f"Nothing to score: {len(held_out_documents)} held-out document(s) without text.")
    nats = -(_counts(held_out_documents) * bigram_log_probabilities(train_documents)).sum()
    return float(nats / np.log(2) / held_out_bytes)


def _counts(documents: Sequence[Document]) -> np.ndarray:
    """How often each byte or END follows each other one, int64 [previous, next]; few documents are read at once."""
    counts = np.zeros(VOCABULARY**2, dtype=np.int64)
    waiting: list[np.ndarray] = []
    pairs = 0
    for tokens in encoded(documents, BYTES):
        path = np.concatenate([[END], tokens, [END]], dtype=np.int64)
        waiting.append(path[:-1] * VOCABULARY + path[1:])
        pairs += len(waiting[-1])
        if pairs >= _PAIRS_AT_ONCE:
            counts += np.bincount(np.concatenate(waiting), minlength=len(counts))
            waiting, pairs = [], 0
    counts += np.bincount(np.concatenate([*waiting, np.empty(0, dtype=np.int64)]), minlength=len(counts))
    return counts.reshape(VOCABULARY, VOCABULARY)
