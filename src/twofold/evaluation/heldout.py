"""Held-out loss of a causal language model: per real token, per byte and per document."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from twofold.data.corpus import Document
from twofold.data.packing import stream

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class DocumentScore:
    """What one document cost: nats over its tokens (its bytes and the END that closes it)."""

    name: str
    nats: float
    tokens: int
    bytes: int


@dataclass(frozen=True)
class Evaluation:
    """Scores of the held-out documents, and the usual measures of them all. A diverged model gives NaN."""

    documents: tuple[DocumentScore, ...]

    @property
    def nats(self) -> float:
        """Negative log-likelihood of all documents in nats."""
        return math.fsum(document.nats for document in self.documents)

    @property
    def tokens(self) -> int:
        """Tokens scored: every byte and one END per document."""
        return sum(document.tokens for document in self.documents)

    @property
    def bytes(self) -> int:
        """Bytes of the documents; END is none."""
        return sum(document.bytes for document in self.documents)

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """exp(loss), per token; infinite where that overflows."""
        with np.errstate(over="ignore"):
            return float(np.exp(self.loss))

    @property
    def bits_per_byte(self) -> float:
        """Bits that coding one byte of text takes, the ENDs' cost included: comparable across tokenizers."""
        return self.nats / math.log(2) / self.bytes

    def as_dict(self) -> dict[str, float | int]:
        """The measures as they stand in a record's `validation`."""
        names = ("loss", "bits_per_byte", "perplexity", "tokens", "bytes")
        return {name: getattr(self, name) for name in names}


def evaluate(
    model: "PreTrainedModel",
    documents: Sequence[Document],
    context: int,
    batch_size: int = 16,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Score every byte and every closing END of the documents exactly once.

    The packed stream is cut into windows of `context` tokens without overlap or padding; what is left at the
    end runs as a shorter window of its own. A window starts without history, and within it attention crosses
    the borders of documents, as in training.

    `model` is a Hugging Face causal language model over byte tokens: LongTensor[B, T] → logits [B, T, V]. It
    runs in evaluation mode without gradients and gets its modes back afterwards. Log-probabilities are taken
    in float32 or better and summed in float64. `progress` is called with (tokens scored, tokens in all).

    Raises ValueError if there is no text, or if the context or the batch size is not positive.
    """
    if context < 1 or batch_size < 1:
        raise ValueError(f"Context and batch size must be at least 1, got {context} and {batch_size}.")
    if not any(document.content for document in documents):
        raise ValueError(f"Nothing to evaluate: {len(documents)} document(s) without a byte of text.")
    tokens, document_index = stream(documents)
    nats = np.full(len(tokens) - 1, np.nan)  # a target that were never scored would show in the result
    with evaluation_mode(model), torch.no_grad():
        for start, stop, rows in _batches(len(nats), context, batch_size):
            window = torch.from_numpy(tokens[start : stop + 1].astype(np.int64)).to(model.device)
            nats[start:stop] = _nats(model, window[:-1].view(rows, -1), window[1:])
            if progress is not None:
                progress(stop, len(nats))
    return Evaluation(_by_document(documents, document_index[1:], nats))


def _batches(targets: int, context: int, batch_size: int) -> Iterator[tuple[int, int, int]]:
    """Cut positions [0, targets) into batches of whole windows: (start, stop, rows); the short rest comes last."""
    windows, rest = divmod(targets, context)
    for first in range(0, windows, batch_size):
        rows = min(batch_size, windows - first)
        yield first * context, (first + rows) * context, rows
    if rest:
        yield windows * context, targets, 1


def _nats(model: "PreTrainedModel", input_ids_BT: torch.Tensor, targets: torch.Tensor) -> np.ndarray:
    """Negative log-likelihood of each of the B·T targets."""
    # A cache would be written and never read.
    logits_BTV = model(input_ids=input_ids_BT, use_cache=False).logits
    logits_BTV = logits_BTV.to(torch.promote_types(logits_BTV.dtype, torch.float32))
    losses = F.cross_entropy(logits_BTV.flatten(0, 1), targets.to(logits_BTV.device), reduction="none")
    return losses.cpu().numpy()


def _by_document(
    documents: Sequence[Document], document_index: np.ndarray, nats: np.ndarray
) -> tuple[DocumentScore, ...]:
    """Sum the targets' nats in float64 over the document that each belongs to."""
    sums = np.bincount(document_index, weights=nats, minlength=len(documents))
    tokens = np.bincount(document_index, minlength=len(documents))
    return tuple(
        DocumentScore(document.name, float(nats), int(count), len(document.content))
        for document, nats, count in zip(documents, sums, tokens, strict=True)
    )


@contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Switch to evaluation, then give each module its own mode back: some may have been frozen on purpose."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
