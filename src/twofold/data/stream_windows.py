"""Training windows from documents that come one after another, and the place from which to go on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import IterableDataset

from twofold.data.packing import Packing, item, padded
from twofold.data.streams import DocumentStream
from twofold.data.tokenizer import Tokenizer


class _Unit(NamedTuple):
    """END and a document's text, and the stream's state before that document: None before the first."""

    before: dict[str, Any] | None
    tokens: np.ndarray


class StreamWindows(IterableDataset[dict[str, torch.Tensor]]):
    """The windows that `packing.Windows` gives, in the stream's order and without end: after the last document comes
    the first again.

    `state()` says where the windows that were given end, and `resume` makes the next iteration go on there, with
    exactly the windows that had followed. It names a document and how many tokens of it were used, so it is small and
    JSON, however long documents are; their tokens are made anew. One iteration at a time, in the process that trains
    (worker processes of a loader would each read the stream from its beginning).

    Raises ValueError if the context is not positive, and while iterating if the stream has no documents.
    """

    def __init__(
        self, documents: DocumentStream, context: int, tokenizer: Tokenizer, packing: Packing = "packed"
    ) -> None:
        if context < 1:
            raise ValueError(f"The context must be at least 1 token, got {context}.")
        self.documents = documents
        self.context = context
        self.tokenizer = tokenizer
        self.packing: Packing = packing
        self.resume(None)

    def state(self) -> dict[str, Any]:
        """The place of the first window that was not given yet.

        `window` is its number from 0; it begins `offset` tokens after the END before the document that comes when the
        stream goes on from its own state `documents` (null: from its beginning).
        """
        return {"window": self._window, "documents": self._before, "offset": self._offset}

    def resume(self, state: dict[str, Any] | None) -> None:
        """Let the next iteration start at `state`; None for the first window of all."""
        state = state or {"window": 0, "documents": None, "offset": 0}
        self._window: int = state["window"]
        self._before: dict[str, Any] | None = state["documents"]
        self._offset: int = state["offset"]

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Windows from the place that `state()` tells."""
        for tokens in self._one_each() if self.packing == "padded" else self._cut_at_fixed_offsets():
            self._window += 1
            yield item(self.packing, tokens, self.tokenizer.end)

    def _cut_at_fixed_offsets(self) -> Iterator[np.ndarray]:
        """The next window's tokens, with the place already moved past it."""
        wanted = self.context + 1
        units = self._units(self._before)
        read: deque[_Unit] = deque()
        ahead = -self._offset  # tokens that were read from the place on
        while True:
            while ahead < wanted:
                read.append(next(units))
                ahead += len(read[-1].tokens)
            parts = [read[0].tokens[self._offset : self._offset + wanted], *(u.tokens[:wanted] for u in list(read)[1:])]
            window = np.concatenate(parts, dtype=np.int64)[:wanted]
            ahead -= self.context
            self._offset += self.context
            # The window's last token is the next one's first, so the place lies in what was read.
            while self._offset >= len(read[0].tokens):
                self._offset -= len(read.popleft().tokens)
            self._before = read[0].before
            yield window

    def _one_each(self) -> Iterator[np.ndarray]:
        for unit in self._units(self._before):
            closed = np.append(unit.tokens, self.tokenizer.end)
            self._before = self.documents.state()
            yield padded(closed, self.context, self.tokenizer.end)

    def _units(self, before: dict[str, Any] | None) -> Iterator[_Unit]:
        """The documents from a state of the stream on, again and again."""
        if before is not None:
            self.documents.resume(before)
        while True:
            first = before is None
            for text in self.documents:
                tokens = self.tokenizer.encode(text)
                yield _Unit(before, np.concatenate([np.array([self.tokenizer.end], dtype=tokens.dtype), tokens]))
                before = self.documents.state()
            if first and before is None:
                raise ValueError("The stream has no documents: check its source, split and column.")
            before = None
