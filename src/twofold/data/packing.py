"""Windows cut from one stream of tokens, in three ways; training and evaluation take the same."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import torch
from torch.utils.data import Dataset

from twofold.data.tokens import TokenStream

Packing = Literal["packed", "separate", "padded"]
"""How documents share windows.

- `packed`: the stream END doc₀ END doc₁ … END is cut at fixed offsets, and attention crosses the borders of documents.
- `separate`: the same windows, but no position sees another document: positions restart at each END, and the mask
  functions of transformers take that as a border (`masking_utils.find_packed_sequence_indices`). A document comes with
  the END before it, as it does when text is generated, and its logits are those that it has alone.
- `padded`: one document per window, END and its text, cut at the context and filled up with ENDs that are inputs and
  scored targets. So arXiv 2606.04032 trains and scores. Padding is easily predicted and dilutes the loss: this is for
  measuring by how much, and for nothing else.
"""


class Cuts(ABC):
    """Which tokens each window has. One of T targets has T + 1 tokens: the inputs but for the last, targets but for the
    first.
    """

    def __init__(self, stream: TokenStream, context: int) -> None:
        self.stream = stream
        self.context = context

    @property
    @abstractmethod
    def whole(self) -> int:
        """How many windows have `context` targets."""

    @property
    @abstractmethod
    def targets(self) -> int:
        """Targets of all windows, of a shorter last one too."""

    @abstractmethod
    def __len__(self) -> int:
        """How many windows there are, a shorter last one among them."""

    @abstractmethod
    def tokens(self, window: int) -> np.ndarray:
        """The window's tokens, int64 [T + 1], a copy."""

    @abstractmethod
    def owners(self, window: int) -> np.ndarray:
        """Which document each of its targets belongs to, int64 [T]; a closing END to the document before it."""


class FixedCuts(Cuts):
    """The stream cut at multiples of the context. Neighbours share one token, so each is a target exactly once."""

    @property
    def whole(self) -> int:
        """All but a shorter last window."""
        return self.targets // self.context

    @property
    def targets(self) -> int:
        """All tokens but the opening END."""
        return len(self.stream.tokens) - 1

    def __len__(self) -> int:
        return -(-self.targets // self.context)

    def tokens(self, window: int) -> np.ndarray:
        """See `Cuts.tokens`."""
        start = window * self.context
        return self.stream.tokens[start : start + self.context + 1].astype(np.int64)

    def owners(self, window: int) -> np.ndarray:
        """See `Cuts.owners`."""
        first = window * self.context + 1
        positions = np.arange(first, min(first + self.context, len(self.stream.tokens)))
        return np.searchsorted(self.stream.starts, positions, side="right") - 1


class DocumentCuts(Cuts):
    """One window per document: its beginning, or all of it and padding."""

    @property
    def whole(self) -> int:
        """All of them."""
        return self.stream.documents

    @property
    def targets(self) -> int:
        """Those of the documents, and the padding."""
        return self.stream.documents * self.context

    def __len__(self) -> int:
        return self.stream.documents

    def tokens(self, window: int) -> np.ndarray:
        """See `Cuts.tokens`."""
        first, stop = self.stream.starts[window] - 1, self.stream.starts[window + 1]
        return padded(self.stream.tokens[first:stop], self.context, end=int(self.stream.tokens[0]))

    def owners(self, window: int) -> np.ndarray:
        """See `Cuts.owners`; padding belongs to the document that it follows."""
        return np.full(self.context, window)


def cuts(packing: Packing, stream: TokenStream, context: int) -> Cuts:
    """The windows of `context` targets that a packing cuts from the stream."""
    return DocumentCuts(stream, context) if packing == "padded" else FixedCuts(stream, context)


def padded(tokens: np.ndarray, context: int, end: int) -> np.ndarray:
    """The first `context` + 1 tokens as int64, filled up with ENDs where they are fewer."""
    window = np.full(context + 1, end, dtype=np.int64)
    kept = tokens[: context + 1]
    window[: len(kept)] = kept
    return window


def item(packing: Packing, tokens: np.ndarray, end: int) -> dict[str, torch.Tensor]:
    """What the model is given of one window or several, int64 [..., T + 1].

    `input_ids` and `shift_labels`, LongTensor [..., T]: the labels are shifted already, which is what the loss of
    transformers takes `shift_labels` to mean. `separate` adds `position_ids` [..., T], which count from the last END,
    or from the beginning of the window in a document that began before it.
    """
    window = torch.from_numpy(tokens)
    tensors = {"input_ids": window[..., :-1], "shift_labels": window[..., 1:]}
    if packing == "separate":
        inputs = tokens[..., :-1]
        places = np.broadcast_to(np.arange(inputs.shape[-1]), inputs.shape)
        borders = np.maximum.accumulate(np.where(inputs == end, places, 0), axis=-1)
        tensors["position_ids"] = torch.from_numpy(places - borders)
    return tensors


def check_masks(packing: Packing, implementation: str) -> None:
    """Raise ValueError where an attention implementation, by transformers' name, cannot keep documents apart.

    Flash attention takes no mask, and in transformers 5.24 it reads borders from positions in batches of one only.
    """
    if packing == "separate" and "flash" in implementation:
        raise ValueError(
            f"packing 'separate' masks documents against each other, which {implementation} does not: load the model "
            "with attn_implementation='sdpa', or choose packing 'packed'"
        )


class Windows(Dataset[dict[str, torch.Tensor]]):
    """Training windows of `context` inputs and the `context` tokens that follow each of them; see `Packing`.

    Every target is trained once, but that what fills no window at the end (`packed`, `separate`) or comes after a
    window's end in its document (`padded`) is dropped. Items are those of `item`. The stream is read window by window
    and may be a map of a file.

    Raises ValueError if the context is not positive or the text does not fill one window.
    """

    def __init__(self, stream: TokenStream, context: int, packing: Packing = "packed") -> None:
        if context < 1:
            raise ValueError(f"The context must be at least 1 token, got {context}.")
        self.context = context
        self.packing: Packing = packing
        self.cuts = cuts(packing, stream, context)
        if len(self) == 0:
            raise ValueError(
                f"Too little text: {stream.documents} training document(s) give {len(stream.tokens)} tokens, and one "
                f"window of context {context} needs {context + 1}; add text, or shorten the context."
            )

    def __len__(self) -> int:
        return self.cuts.whole

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        window = range(len(self))[index]  # the range raises IndexError for us
        return item(self.packing, self.cuts.tokens(window), end=int(self.cuts.stream.tokens[0]))
