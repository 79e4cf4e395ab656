"""Examples none of which comes twice, so that splits of them have nothing in common."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_FRUITLESS_ROUNDS = 50


def distinct_rows(draw: Callable[[int], NDArray[np.int64]], count: int) -> NDArray[np.int64]:
    """`count` rows [count, T], no two of them equal, in the order in which they came.

    `draw(n)` makes n random rows [n, T] or more. Raises ValueError where it hardly ever makes another one.
    """
    rows = draw(count)
    fruitless = before = 0
    while True:
        kept = rows[_first_of_equals(rows)]
        if len(kept) >= count:
            return kept[:count]
        fruitless = fruitless + 1 if len(kept) == before else 0
        before = len(kept)
        if fruitless == _FRUITLESS_ROUNDS:
            raise ValueError(
                f"{count} different examples were asked for, and {_FRUITLESS_ROUNDS * count} more draws gave none "
                f"beside the first {len(kept)}: ask for fewer, or make the examples larger"
            )
        rows = np.concatenate([kept, draw(count)])


def distinct_tokens(rng: np.random.Generator, rows: int, count: int, among: int) -> NDArray[np.int64]:
    """Ordered choices [rows, count] of different tokens out of 0 … `among` - 1, all equally likely.

    Floyd's sampling (Bentley and Floyd 1987, Programming Pearls: a sample of brilliance) for all rows at once; its
    work does not grow with `among`.
    """
    assert 0 < count <= among
    chosen = np.full((rows, count), -1, dtype=np.int64)
    for place, last in enumerate(range(among - count, among)):
        candidate = rng.integers(0, last + 1, size=rows)
        taken = (chosen[:, :place] == candidate[:, None]).any(axis=1)
        chosen[:, place] = np.where(taken, last, candidate)
    # The set is a fair one but its order is not.
    return rng.permuted(chosen, axis=1)


def _first_of_equals(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ascending indices of rows that equal none before them.

    Rows are told apart by a random linear hash of 64 bits: what differs in it differs. Two different rows of equal
    hash, one chance in 10¹⁹, would merely cost one of them.
    """
    multipliers = np.random.default_rng(0).integers(0, 2**64, size=rows.shape[1], dtype=np.uint64)
    hashes = (rows.astype(np.uint64) * multipliers).sum(axis=1, dtype=np.uint64)
    return np.sort(np.unique(hashes, return_index=True)[1])
