"""IDX files, the format of MNIST and Fashion-MNIST: unsigned bytes with their dimensions before them."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

_UNSIGNED_BYTES = 0x08
_AT_ONCE = 1 << 20


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """What a file holds, plain or gzipped (`.gz`), as an array of so many dimensions.

    The format: two zero bytes, the type (8 for unsigned bytes, the only one read), the number of dimensions, each
    dimension as four bytes with the highest first, then the values, the last dimension running fastest
    (http://yann.lecun.com/exdb/mnist). ValueError where a file is anything else, too short or too long.
    """
    with _opened(path) as file:
        shape = _shape(file, path, dimensions)
        expected = math.prod(shape)
        values = _up_to(file, expected + 1)
    if len(values) != expected:
        holds = f"only {len(values)}" if len(values) < expected else "more"
        raise ValueError(f"{path} should hold {expected} values ({_times(shape)}) and holds {holds}: fetch it again")
    return np.frombuffer(values, np.uint8).reshape(shape)


def idx_shape(path: Path, dimensions: int) -> tuple[int, ...]:
    """The dimensions that a file states, its values unread. ValueError where it is no IDX file of so many."""
    with _opened(path) as file:
        return _shape(file, path, dimensions)


def _shape(file: BinaryIO, path: Path, dimensions: int) -> tuple[int, ...]:
    magic = _up_to(file, 4)
    if len(magic) < 4 or magic[:2] != b"\0\0":
        raise ValueError(f"{path} is no IDX file: it begins with {magic.hex(' ') or 'nothing'}, and not with 00 00")
    if magic[2] != _UNSIGNED_BYTES:
        raise ValueError(f"{path} holds values of type {magic[2]:#04x}: only unsigned bytes (0x08) are read")
    if magic[3] != dimensions:
        raise ValueError(f"{path} has {magic[3]} dimension(s) where {dimensions} belong: is it another kind of file?")
    sizes = _up_to(file, 4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise ValueError(f"{path} ends within its header, after {4 + len(sizes)} of {4 + 4 * dimensions} bytes")
    return struct.unpack(f">{dimensions}I", sizes)


def _up_to(file: BinaryIO, count: int) -> bytearray:
    """At most `count` bytes. In pieces, so that a header that lies takes no memory."""
    read = bytearray()
    while piece := file.read(min(count - len(read), _AT_ONCE)):
        read += piece
    return read


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield cast(BinaryIO, file)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"Cannot read {path}: {error}") from error


def _times(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))
