"""The process that `bench.memory` starts: `python -m twofold.bench.held QUESTION` holds one cache and prints what it
found, as JSON. A process of its own, since memory that another variant left behind would count as well.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch

from twofold.bench.memory import Question
from twofold.bench.process_memory import cap, forget_peak, peak_resident_bytes, resident_bytes
from twofold.cache.row_cache import RowCache
from twofold.models.architecture import Architecture

PIECE = 64
"""Tokens that are written at a time."""
NEW_TOKENS = 8
LEAST, MOST = 256, 2**20
"""Tokens: contexts are multiples of the one, and not looked for beyond the other."""


def resident(arch: Architecture, question: Question) -> dict[str, int]:
    """Bytes that the process grows by when a preallocated cache is filled with rows."""
    dtype = getattr(torch, question.dtype)
    _fill(_cache(arch, 2 * PIECE), arch, 1, 2 * PIECE, dtype)  # whatever the first use brings along
    before = resident_bytes()
    cache = _cache(arch, question.context)
    _fill(cache, arch, question.batch, question.context, dtype)
    grown = resident_bytes() - before
    assert cache.get_seq_length() == question.context
    return {"grown": grown}


def fitting(arch: Architecture, question: Question) -> dict[str, int]:
    """The longest context with which the model generates while the process stays within the limit, and its peak then.

    The context's rows are random numbers: neither memory nor time depends on them.
    """
    from twofold.bench import decoders

    assert question.limit is not None
    limit, dtype, peaks = question.limit, getattr(torch, question.dtype), {}
    model = decoders.ours(arch).to(dtype)

    def generates(context: int) -> bool:
        forget_peak()
        cache = model.model.new_cache(capacity=context)
        try:
            _fill(cache, arch, question.batch, context - NEW_TOKENS, dtype)
            ids_BT = decoders.random_ids(arch, question.batch, context - NEW_TOKENS + 1)
            model.generate(ids_BT, cache=cache, max_new_tokens=NEW_TOKENS, do_sample=False)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "allocate" not in str(error):
                raise
            return False
        peaks[context] = peak_resident_bytes()
        return peaks[context] <= limit

    generates(LEAST)  # starts threads and loads what is loaded late, before the cap
    peaks[0] = peaks[LEAST]
    if resident_bytes() > limit:
        return {"context": 0, "peak": peaks[0]}
    cap(limit)
    most = min(MOST, arch.positions) if arch.learned_positions else MOST
    found = longest(generates, most)
    return {"context": found, "peak": peaks[found]}


def longest(fits: Callable[[int], bool], most: int) -> int:
    """The longest context that fits, up to `most`, to one part in sixteen; 0 where the shortest does not.

    Lengths are doubled until one does not fit, then halved between the two.
    """
    low, high = 0, LEAST
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + LEAST)
    while high - low > max(LEAST, low // 16):
        middle = (low + high) // 2 // LEAST * LEAST
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _cache(arch: Architecture, capacity: int) -> RowCache:
    return RowCache(arch.layers, arch.row_layout, arch.kv_heads, capacity)


def _fill(cache: RowCache, arch: Architecture, batch: int, tokens: int, dtype: torch.dtype) -> None:
    """Append `tokens` rows to each of `batch` sequences, a piece at a time."""
    piece_BGTW = torch.ones(batch, arch.kv_heads, PIECE, arch.row_layout.head_width, dtype=dtype)
    for layer in range(arch.layers):
        for start in range(0, tokens, PIECE):
            cache.update(piece_BGTW[:, :, : min(PIECE, tokens - start)], None, layer)


def main(asked: str) -> None:
    """Answer one question on standard output."""
    question = json.loads(asked)
    task, variant = question.pop("task"), question.pop("variant")
    known = Question(**question)
    answer = {"resident": resident, "fitting": fitting}[task](known.architecture(variant), known)
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
