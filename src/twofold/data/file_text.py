"""Text that stays in its file: checked and hashed once in one pass, and read again when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

PIECE_BYTES = 16 * 1024
"""A text that is cut is cut into pieces of about this size."""

LONGEST_PIECE = 2**20
"""A piece without a line end is cut here all the same, between two characters, so that memory stays bounded."""

BLOCK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class FileText:
    """`size` bytes of a file from `start` on, with the SHA-256 that they had when the corpus was loaded."""

    path: Path
    start: int
    size: int
    sha256: bytes

    def read(self) -> bytes:
        """The bytes. ValueError where the file is no longer what it was."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            content = file.read(self.size)
        if sha256(content).digest() != self.sha256:
            raise ValueError(f"{str(self.path)!r} has changed since it was loaded: leave it alone and start again")
        return content


def blocks(path: Path) -> Iterator[bytes]:
    """The file in blocks of 1 MiB."""
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            yield block


def cut(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Cut the text that the parts make together, after the first line end at or beyond each `PIECE_BYTES` bytes.

    Where no line ends before `LONGEST_PIECE` bytes, the cut falls there, or up to three bytes earlier where that is
    inside a character. The last piece may be short. No more than one part and one piece are held.
    """
    held = bytearray()
    for part in parts:
        held += part
        start = 0
        while stop := _end_of_piece(held, start):
            yield bytes(held[start:stop])
            start = stop
        del held[:start]
    if held:
        yield bytes(held)


def _end_of_piece(held: bytearray, start: int) -> int:
    """Where the piece from `start` on ends; 0 where more must be read to know."""
    latest = start + LONGEST_PIECE
    line_end = held.find(b"\n", start + PIECE_BYTES - 1, latest)
    if line_end >= 0:
        return line_end + 1
    if len(held) <= latest:
        return 0
    inside = 0b10  # how the bytes of a character begin, but for its first
    return next((at for at in range(latest, latest - 4, -1) if held[at] >> 6 != inside), latest)
