"""What llama.cpp says while it works: its log, and the size of the cache that it made."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

_SIZES = re.compile(r"size = +[\d.]+ MiB .*K \(\w+\): +([\d.]+) MiB, V \(\w+\): +([\d.]+) MiB")


class Cached(NamedTuple):
    """MiB of keys and of values, to two decimals each, and the lines that say so."""

    keys: float
    values: float
    lines: tuple[str, ...]

    @property
    def bytes(self) -> float:
        """Bytes of both."""
        return (self.keys + self.values) * 2**20


@contextmanager
def logged() -> Iterator[list[str]]:
    """What llama.cpp logs in here, piece by piece, whatever its level. It prints nothing meanwhile."""
    import llama_cpp
    from llama_cpp._logger import llama_log_callback

    pieces: list[str] = []

    @llama_cpp.llama_log_callback
    def keep(level: int, text: bytes, data: Any) -> None:
        pieces.append(text.decode(errors="replace"))

    llama_cpp.llama_log_set(keep, ctypes.c_void_p(0))
    try:
        yield pieces
    finally:
        llama_cpp.llama_log_set(llama_log_callback, ctypes.c_void_p(0))


def cached(log: Sequence[str]) -> Cached:
    """The cache of one context; where layers with windows have one of their own, both together."""
    lines = [line.strip() for line in "".join(log).splitlines()]
    found = [(match, line) for line in lines if (match := _SIZES.search(line))]
    assert found, "llama.cpp logs the size of its cache"
    sizes = [tuple(map(float, match.groups())) for match, _ in found]
    return Cached(sum(keys for keys, _ in sizes), sum(values for _, values in sizes), tuple(line for _, line in found))
