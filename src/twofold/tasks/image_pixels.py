"""Pictures of any file format to arrays of one shape, with Pillow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

_GREY_MODES = ("1", "L", "LA", "La")
_DEEP_MODES = ("I", "F")
"""Pillow's modes of more than eight bits begin so."""


@dataclass(frozen=True)
class Pixels:
    """How pictures become arrays: `channels` 1 (grey) or 3, `height` and `width`, and whether others are resized."""

    channels: int
    height: int
    width: int
    resize: bool

    @classmethod
    def of(cls, first: Image, size: int | None, channels: int | None) -> Pixels:
        """As the first picture of a source is, where `size` (a square's side) and `channels` do not say otherwise."""
        width, height = (size, size) if size else first.size
        return cls(channels or (1 if first.mode in _GREY_MODES else 3), height, width, size is not None)

    def array(self, picture: Image, where: str, *, may_lose_colour: bool) -> NDArray[np.uint8]:
        """The picture as [channels, height, width]. ValueError where it has another size, colours or deeper values."""
        from PIL.Image import Resampling

        if picture.mode.startswith(_DEEP_MODES):
            raise ValueError(f"{where} has more than eight bits per value (mode {picture.mode}): convert it first")
        if self.channels == 1 and picture.mode not in _GREY_MODES and not may_lose_colour:
            raise ValueError(
                f"{where} has colours and the first image is grey: set channels to 3, or to 1 to drop them"
            )
        size = (self.width, self.height)
        if picture.size != size and not self.resize:
            raise ValueError(
                f"{where} has {picture.width}x{picture.height} pixels and the first image {self.width}x{self.height}: "
                "set size to bring all to one"
            )
        plain = picture.convert("L" if self.channels == 1 else "RGB")
        if plain.size != size:
            plain = plain.resize(size, Resampling.BILINEAR)
        values = np.asarray(plain, np.uint8).reshape(self.height, self.width, self.channels)
        return values.transpose(2, 0, 1)


def require_pillow() -> None:
    """ValueError where Pillow is not installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise ValueError("Image files need Pillow: pip install 'twofold[vision]'") from error


@contextmanager
def readable(where: str) -> Iterator[None]:
    """Pillow's faults with a file as a ValueError in one line."""
    from PIL.Image import DecompressionBombError

    try:
        yield
    except (OSError, SyntaxError, DecompressionBombError) as error:  # a broken PNG is a SyntaxError to Pillow
        raise ValueError(f"Cannot read {where}: {str(error).splitlines()[0]}") from error
