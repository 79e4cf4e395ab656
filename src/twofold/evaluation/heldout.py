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
from twofold.data.packing import Cuts, Packing, check_masks, cuts, item
from twofold.data.tokenizer import BYTES, Tokenizer
from twofold.data.tokens import tokenise
from twofold.evaluation.kept_bytes import kept_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class DocumentScore:
    """What one document cost: nats over its scored tokens, and the bytes of the text that was scored.

    Tokens are those of the text and the END that closes it; with padding, those of its window.
    """

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
        """Tokens scored: those of the text and one END per document; with padding, the padding as well."""
        return sum(document.tokens for document in self.documents)

    @property
    def bytes(self) -> int:
        """Bytes of the text that was scored; END is none."""
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
        """Bits that coding one byte of text takes, the ENDs' cost included: comparable across tokenizers.

        Not so with padding, whose cost is included too.
        """
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
    tokenizer: Tokenizer = BYTES,
    packing: Packing = "packed",
    cache_dtype: str | None = None,
) -> Evaluation:
    """Score the documents in the windows that training has with the same packing, see `data.packing.Packing`.

    `packed` and `separate` score every token and every closing END exactly once: the stream is cut into windows of
    `context` tokens without overlap or padding, and what is left at the end runs as a shorter window of its own. A
    window starts without history. In `packed`, attention crosses the borders of documents within it.

    `padded` scores one window per document, its padding included, as arXiv 2606.04032 does: the loss is diluted by
    padding, and what comes after the first `context` tokens of a document is not scored, nor are its bytes counted.

    `model` is a Hugging Face causal language model over the tokenizer's tokens: LongTensor[B, T] → logits [B, T, V]. It
    runs in evaluation mode without gradients and gets its modes back afterwards. Log-probabilities are taken
    in float32 or better and summed in float64. `progress` is called with (tokens scored, tokens in all).

    With `cache_dtype`, "int8" for one, every position reads its own row and those before it as a row cache of that
    dtype keeps them, as in generation: what the loss rises by is what that cache costs.

    Raises ValueError if there is no text, if the context or the batch size is not positive, if the packing is
    `separate` and there is a cache or the model's attention cannot keep documents apart, or if it is `padded`, cuts
    documents, and the tokenizer does not give their text back.
    """
    if context < 1 or batch_size < 1:
        raise ValueError(f"Context and batch size must be at least 1, got {context} and {batch_size}.")
    if not any(document.size for document in documents):
        raise ValueError(f"Nothing to evaluate: {len(documents)} document(s) without a byte of text.")
    if packing == "separate" and cache_dtype is not None:
        raise ValueError("documents that are masked against each other cannot be scored with a cache: use packed")
    if packing == "separate":
        check_masks(packing, model.config._attn_implementation or "")
    stream = tokenise(documents, tokenizer)
    cut = cuts(packing, stream, context)
    scored = [
        _scored_bytes(document, stream.text(number), context if packing == "padded" else None, tokenizer)
        for number, document in enumerate(documents)
    ]
    nats, tokens = np.zeros(len(documents)), np.zeros(len(documents), dtype=np.int64)
    with evaluation_mode(model), torch.no_grad():
        for windows in _batches(cut, batch_size):
            items = item(packing, np.stack([cut.tokens(window) for window in windows]), tokenizer.end)
            owners = np.concatenate([cut.owners(window) for window in windows])
            np.add.at(nats, owners, _nats(model, items, cache_dtype))  # one after the other, however many share a batch
            tokens += np.bincount(owners, minlength=len(documents))
            if progress is not None:
                progress(int(tokens.sum()), cut.targets)
    assert tokens.sum() == cut.targets
    return Evaluation(
        tuple(
            DocumentScore(document.name, float(cost), int(count), size)
            for document, cost, count, size in zip(documents, nats, tokens, scored, strict=True)
        )
    )


def _batches(cut: Cuts, batch_size: int) -> Iterator[range]:
    """Numbers of the windows in each batch; a shorter last window comes by itself."""
    for first in range(0, cut.whole, batch_size):
        yield range(first, min(first + batch_size, cut.whole))
    if cut.whole < len(cut):
        yield range(cut.whole, len(cut))


def _nats(model: "PreTrainedModel", items: dict[str, torch.Tensor], cache_dtype: str | None) -> np.ndarray:
    """Negative log-likelihood of each of the B·T targets."""
    inputs = {name: tensor.to(model.device) for name, tensor in items.items()}
    targets_BT = inputs.pop("shift_labels")
    if cache_dtype is None:
        # A cache would be written and never read, and transformers takes no borders from positions where there is one.
        logits_BTV = model(**inputs, use_cache=False).logits
    else:
        logits_BTV = model(**inputs, cache=model.model.new_cache(dtype=cache_dtype)).logits
    logits_BTV = logits_BTV.to(torch.promote_types(logits_BTV.dtype, torch.float32))
    targets = targets_BT.flatten().to(logits_BTV.device)
    losses = F.cross_entropy(logits_BTV.flatten(0, 1), targets, reduction="none")
    return losses.cpu().numpy()


def _scored_bytes(document: Document, text: np.ndarray, kept: int | None, tokenizer: Tokenizer) -> int:
    """Bytes of the document, or of its first `kept` tokens."""
    if kept is None or kept >= len(text):
        return document.size
    return kept_bytes(document.content, text, kept, tokenizer)


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
