"""What was made from texts once and can be made again: trained tokenizers and token files, by hash."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path

from filelock import FileLock

CACHE_VARIABLE = "TWOFOLD_CACHE"


def cache_folder() -> Path:
    """The folder that `TWOFOLD_CACHE` names, or `~/.cache/twofold`. It may be removed when nothing runs."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "twofold"


def key(*parts: str, digests: Iterable[bytes]) -> str:
    """A file name for what follows from these words and documents, the documents' order included."""
    made = sha256()
    for part in parts:
        made.update(sha256(part.encode()).digest())
    for digest in digests:
        made.update(digest)
    return made.hexdigest()


def made_once(folder: Path, make: Callable[[Path], None], is_whole: Callable[[Path], bool]) -> Path:
    """`folder`, filled by `make` unless it is there and whole. Of several processes one makes it and the others wait.

    `make` is given an empty folder beside it, which is renamed when `make` returns: half a result is never seen.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if is_whole(folder):
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
        try:
            make(unfinished)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder
