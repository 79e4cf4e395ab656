"""Which point of a sweep is a variant's best, told from documents that nothing else is told from.

Half of the held-out documents pick, and only the other half is reported: whatever is chosen for its score scores too
well on what it was chosen by.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from twofold.study.record import DocumentRecord, Labelled, RunRecord, Validation
from twofold.study.sweep import value_text

MINIMUM_HELD_OUT = 2


class Tried(Labelled):
    """One point of the sweep at which a variant was tried, with the study's first seed.

    `bits_per_byte` is of the picking documents, and None where the run diverged; `chosen` marks the point that the
    variant's results are of.
    """

    point: dict[str, Any]
    seed: int
    bits_per_byte: float | None
    chosen: bool

    @property
    def diverged(self) -> bool:
        """Whether the run has no score because its loss stopped being a number."""
        return self.bits_per_byte is None


class AtPoint(Protocol):
    """What any study notes of a point that a variant was tried at."""

    @property
    def label(self) -> str:
        """What the variant is called."""

    @property
    def point(self) -> dict[str, Any]:
        """Dotted key → value."""

    @property
    def chosen(self) -> bool:
        """Whether the variant's results are of it."""


def halves(documents: Sequence[DocumentRecord]) -> tuple[tuple[DocumentRecord, ...], tuple[DocumentRecord, ...]]:
    """The documents that pick and those that are reported, each in the given order.

    Depends on names and bytes alone. The largest document first, each goes to the half that has fewer bytes so far, so
    that the halves differ by no more than the largest; where both have as many, the hash of its name decides.
    """
    order = sorted(range(len(documents)), key=lambda i: (-documents[i].bytes, _digest(documents[i]), i))
    picking: set[int] = set()
    sizes = [0, 0]
    for index in order:
        half = _digest(documents[index])[0] % 2 if sizes[0] == sizes[1] else int(sizes[1] < sizes[0])
        sizes[half] += documents[index].bytes
        if half == 0:
            picking.add(index)
    chosen, rest = ([d for i, d in enumerate(documents) if (i in picking) == side] for side in (True, False))
    return tuple(chosen), tuple(rest)


def picking_bits(record: RunRecord) -> float:
    """Bits per byte of the documents that pick."""
    picking = halves(record.documents)[0]
    nats = math.fsum(document.nats for document in picking)
    return nats / math.log(2) / sum(document.bytes for document in picking)  # finite, where a perplexity may not be


def reported(record: RunRecord) -> RunRecord:
    """The record as results may show it: with the documents alone that did not pick."""
    documents = halves(record.documents)[1]
    return record.model_copy(update={"documents": documents, "validation": Validation.of(documents)})


def at_the_edge(sweep: Iterable[AtPoint]) -> list[tuple[str, str]]:
    """(label, `learning_rate 0.01`) of each chosen value that is the smallest or the largest that was tried.

    Points that diverged count as tried, since beyond them there is nothing to find; below 0 there is nothing either.
    """
    tries = list(sweep)
    found = []
    for one in tries:
        for key, value in one.point.items() if one.chosen else ():
            values = [other.point[key] for other in tries if other.label == one.label and key in other.point]
            if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values) or len(set(values)) < 2:
                continue
            if value == max(values) or (value == min(values) and value != 0):
                found.append((one.label, f"{key.partition('.')[2]} {value_text(value)}"))
    return found


def _digest(document: DocumentRecord) -> bytes:
    return hashlib.sha256(document.name.encode()).digest()
