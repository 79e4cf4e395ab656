"""Checkpoints of one run. One counts only when it is complete and its files are what was written.

Transformers' Trainer writes into a folder of unfinished ones, and for a run on a stream `note_stream` adds where in it
training stands; `publish` then notes the hash of every file and renames the folder into its place. A run that is killed
at any moment leaves at most an unfinished folder, which nobody reads.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = "checkpoints"
UNFINISHED = "unfinished"
MANIFEST = "manifest.json"
STREAM = "stream.json"
KEPT = 2  # the newest, and one to fall back on should its files be damaged


def unfinished(run: Path) -> Path:
    """Where the Trainer writes; emptied, since what an interrupted run left there is of no use."""
    folder = run / FOLDER / UNFINISHED
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def publish(written: Path, run: Path, step: int) -> Path:
    """Make the complete folder `written` the run's checkpoint of `step`, and drop all but the newest `KEPT`."""
    hashes = {str(file.relative_to(written)): _sha256(file) for file in sorted(written.rglob("*")) if file.is_file()}
    (written / MANIFEST).write_text(json.dumps(hashes, indent=2))
    place = run / FOLDER / f"step-{step}"
    shutil.rmtree(place, ignore_errors=True)
    written.rename(place)
    for old in _by_step(run)[:-KEPT]:
        shutil.rmtree(old)
    return place


def note_stream(written: Path, state: dict[str, Any]) -> None:
    """Add to an unfinished checkpoint where its run stands in a stream."""
    (written / STREAM).write_text(json.dumps(state))


def stream_state(place: Path) -> dict[str, Any]:
    """What `note_stream` was given. Raises ValueError where the run was not on a stream."""
    file = place / STREAM
    if not file.is_file():
        raise ValueError(f"the checkpoint {place} is of a run that was not on a stream: train in another folder")
    state: dict[str, Any] = json.loads(file.read_text())
    return state


def latest(run: Path, report: Callable[[str], None]) -> tuple[Path, int] | None:
    """The newest sound checkpoint and its step; `report` is told of each damaged one that is passed over."""
    for place in reversed(_by_step(run)):
        fault = _fault(place)
        if not fault:
            return place, _step(place)
        report(f"the checkpoint {place} is damaged ({fault}) and is passed over")
    return None


def remove(run: Path) -> None:
    """Remove all checkpoints of a run that is finished."""
    shutil.rmtree(run / FOLDER, ignore_errors=True)


def _by_step(run: Path) -> list[Path]:
    return sorted((run / FOLDER).glob("step-*"), key=_step)


def _step(place: Path) -> int:
    return int(place.name.removeprefix("step-"))


def _fault(place: Path) -> str:
    """What is wrong with a checkpoint's files; empty where nothing is."""
    try:
        hashes = json.loads((place / MANIFEST).read_text())
    except (OSError, ValueError):
        return f"no readable {MANIFEST}"
    for name, noted in hashes.items():
        file = place / name
        if not file.is_file():
            return f"{name} is missing"
        if _sha256(file) != noted:
            return f"{name} is not what was written"
    return ""


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
