"""Texts that come one after another and are never held together: read from where an earlier reading stood."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from twofold.data.corpus import Document
from twofold.data.dataset import DatasetSource, each, open_rows, row_name, text_of

if TYPE_CHECKING:
    from datasets import IterableDataset


class DocumentStream(Protocol):
    """Documents in a fixed order. One iteration at a time.

    `iter()` starts where `resume` said, once, and otherwise at the first document: so iterating again is another
    epoch. Each document is the UTF-8 bytes of a text that is not empty.
    """

    def __iter__(self) -> Iterator[bytes]:
        """The documents from here on."""

    def state(self) -> dict[str, Any]:
        """Where the running iteration stands, after the document that it gave last; can be written as JSON."""

    def resume(self, state: dict[str, Any]) -> None:
        """Let the next iteration give exactly the documents that followed when `state` was taken."""


class DatasetStream:
    """The texts of a streamed dataset, in its own order and without a shuffle buffer, whose content no state keeps.

    A state is that of the library (`IterableDataset.state_dict`) and the number of rows read. Going on from it reads
    the file again that it lies in, and nothing before that.
    """

    def __init__(self, source: DatasetSource) -> None:
        """Opens the dataset. Raises ValueError where the dataset, split or column is not there."""
        rows, fingerprint = open_rows(source, streaming=True)
        self.source = source
        self.identity = source.identity(fingerprint)
        self._rows: IterableDataset = rows
        self._row = 0
        self._not_begun: dict[str, Any] | None = {"row": 0, "dataset": rows.state_dict()}
        self._first = self._next = self._not_begun

    def __iter__(self) -> Iterator[bytes]:
        return (content for _, content in self._texts(self._next))

    def state(self) -> dict[str, Any]:
        """See `DocumentStream.state`."""
        return self._not_begun or {"row": self._row, "dataset": self._rows.state_dict()}

    def resume(self, state: dict[str, Any]) -> None:
        """See `DocumentStream.resume`."""
        self._next = json.loads(json.dumps(state))  # the library may change what it is given

    def take(self, count: int) -> list[Document]:
        """The first `count` documents, or all where there are fewer; from then on the stream begins behind them.

        They are held out, so that no iteration gives them. The documents are held in memory.
        """
        taken = islice(self._texts(self._first), count)
        documents = [Document(row_name(self.source, row), content) for row, content in taken]
        self._first = self._next = self.state()
        return documents

    def _texts(self, state: dict[str, Any]) -> Iterator[tuple[int, bytes]]:
        """(row, text) from a state on."""
        self._next = self._first
        self._not_begun = state
        self._rows.load_state_dict(state["dataset"])
        self._row = state["row"]
        return self._read(each(iter(self._rows), self.source))

    def _read(self, rows: Iterator[dict[str, Any]]) -> Iterator[tuple[int, bytes]]:
        for row in rows:
            self._not_begun = None
            index = self._row
            self._row += 1
            content = text_of(row[self.source.column], self.source, index)
            if content:
                yield index, content
