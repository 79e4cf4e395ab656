"""A folder that appears whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


def require_new(folder: Path) -> None:
    """Raise ValueError where something is at `folder` already, other than an empty folder."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ValueError(f"{folder} exists and is no folder: name another for --out")
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: name a new folder for --out")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` to write to, which takes its place when all went well, and else goes away.

    Raises ValueError as `require_new`, and OSError where there is no room.
    """
    require_new(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        unfinished.chmod(0o755)  # a temporary folder is for its owner alone
        yield unfinished
        unfinished.replace(folder)
    except SafetensorError as error:  # its way to say that the disk is full
        raise OSError(f"{folder}: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
