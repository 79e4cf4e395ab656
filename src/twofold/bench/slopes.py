"""How time per token grows with the context, beside what reading the rows takes at the memory's speed. No torch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from twofold.bench.record import BenchRecord, Row


class Slope(NamedTuple):
    """A straight line through time per token against context, by least squares, in microseconds.

    `per_thousand` tokens of context; `at_bandwidth`: what the bytes of these rows would add at the read bandwidth that
    was measured in the same run, None where that is unknown or the rows' bytes are.
    """

    subject: str
    per_thousand: float
    at_bandwidth: float | None


def slopes(record: BenchRecord) -> list[Slope]:
    """One for each of our variants, then for each alternative, of a record of `generate`; none below three contexts."""
    found = []
    for subject, points in lines(record).items():
        contexts = [row.context or 0 for row, _ in points]
        if len(set(contexts)) < 3:
            continue
        slope = float(np.polyfit(contexts, [milliseconds for _, milliseconds in points], 1)[0])
        found.append(Slope(subject, 1e6 * slope, _at_bandwidth(record, subject, [row for row, _ in points])))
    return found


def lines(record: BenchRecord) -> dict[str, list[tuple[Row, float]]]:
    """Rows and milliseconds by context: for each variant its own, then for each alternative its own, each once."""
    ours: dict[str, list[tuple[Row, float]]] = {}
    others: dict[str, list[tuple[Row, float]]] = {}
    seen = set()
    for row in record.rows:
        for name, value, into in (
            (row.variant, row.milliseconds, ours),
            (row.alternative, row.alternative_milliseconds, others),
        ):
            if name is not None and value is not None and (name, row.context) not in seen:
                seen.add((name, row.context))
                into.setdefault(name, []).append((row, value))
    return ours | others


def _at_bandwidth(record: BenchRecord, subject: str, rows: list[Row]) -> float | None:
    known = [(row.context, row.bytes) for row in rows if row.variant == subject and row.bytes and row.context]
    if len(known) < 2 or record.machine.read_bandwidth_gbs is None:
        return None
    (first, fewer), (last, more) = known[0], known[-1]
    return (more - fewer) / (last - first) / record.machine.read_bandwidth_gbs  # bytes / (10⁹ bytes/s) · 1000 in μs
