"""Run what is missing of a study, or of every member of a family."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from twofold.environment import process_count
from twofold.study.collection import ORIGIN_FILE, Origin, read_origin
from twofold.study.picking import MINIMUM_HELD_OUT
from twofold.study.plan import (
    DIVERGED_FILE,
    Place,
    PlannedRun,
    changed_settings,
    check_folder,
    claimed,
    has_finished_runs,
    note_study,
    places_of,
    planned_runs,
    read_study,
)
from twofold.study.record import RECORD_FILE, RunRecord, read_record, to_json, write_atomically
from twofold.study.results import CorpusRecord
from twofold.study.spec import StudySpec

if TYPE_CHECKING:
    from twofold.study.data import StudyData
    from twofold.study.execute import Watcher
    from twofold.study.texts import Stages

SECONDS_BETWEEN_LOOKS = 1.0

Watch = Callable[[PlannedRun], AbstractContextManager["Watcher"]]
Reading = Callable[[], AbstractContextManager["Stages | None"]]
"""Entered while text is read, and gives whoever shows the progress of that, if anybody does."""


class Texts:
    """The text of the study at hand; studies that read it alike, one after the other, read it once."""

    def __init__(self, reading: Reading = nullcontext) -> None:
        self._reading = reading
        self._latest: tuple[str, StudyData] | None = None

    def of(self, spec: StudySpec) -> StudyData:
        """Read the text of a study, unless it is the latest that was read. ValueError where it will not do."""
        from twofold.study.data import StudyData

        key = spec.data.model_dump_json()
        if self._latest is None or self._latest[0] != key:
            self._latest = None  # before the next one takes memory
            with self._reading() as stages:
                self._latest = key, StudyData.load(spec, stages)
        data = self._latest[1]
        if spec.sweep and len(data.held_out) < MINIMUM_HELD_OUT:
            raise ValueError(
                f"a sweep needs at least {MINIMUM_HELD_OUT} held-out documents, one to pick by and one to report, and "
                f"{data.corpus.name} holds out {len(data.held_out)}: raise data.held_out, or give more files"
            )
        return data


def run_study(
    spec: StudySpec, out: Path, command: str, watch: Watch, reading: Reading = nullcontext
) -> list[RunRecord]:
    """Make the runs that have no record yet; the records of all that have one in the end.

    Several processes may work on one folder: each run is made by one of them, and where that one dies, another goes on
    from its last checkpoint. A run that diverges is noted and left, and the others are made.
    `watch` is entered for each run that is made and gives the `Watcher` of its progress, `reading` for each text that
    is read. Raises ValueError where `out` belongs to something else, or where the text is no longer what its finished
    runs had.
    """
    check_folder(spec, out)
    places = places_of(spec, out)
    busy = [place for place in places if _to_do([place]) or changed_settings(*place)]
    if busy:
        _make(spec, out, busy, command, watch, Texts(reading))
    else:
        _note(spec, out)
    runs = [run for place in places for run in planned_runs(*place)]
    return [read_record(run.folder / RECORD_FILE) for run in runs if run.finished]


def _to_do(places: Sequence[Place]) -> list[tuple[StudySpec, PlannedRun]]:
    """The runs that are known to be missing by now; what is made of them may show that more are."""
    return [(spec, run) for spec, out in places for run in planned_runs(spec, out) if not run.ended]


def _make(spec: StudySpec, out: Path, places: Sequence[Place], command: str, watch: Watch, texts: Texts) -> None:
    from twofold.training import requirements

    if process_count() > 1:
        raise ValueError(
            f"a study is not launched over processes, and here are {process_count()}: start it once per device, and "
            "they share the folder and its runs; torchrun is for `twofold train`, one model over several devices"
        )
    for one, _ in places:
        for point in one.points:
            requirements.check(one.at(point).training)
    # Before anything is written: a wrong path leaves no folder behind.
    origins = [(folder, _origin(one, folder, texts, command)) for one, folder in places]
    if changed_settings(spec, out):
        _forget_attempts(out)
    _note(spec, out)
    for folder, origin in origins:
        write_atomically(folder / ORIGIN_FILE, to_json(origin))
    while missing := _to_do(places):
        made = [run for one, run in missing if _made(run, one, texts, watch)]
        if not made:
            time.sleep(SECONDS_BETWEEN_LOOKS)  # another process makes them, or made them in vain


def _origin(spec: StudySpec, out: Path, texts: Texts, command: str) -> Origin:
    """Where results will say that they come from. ValueError where the finished runs in `out` had another text."""
    data = texts.of(spec)
    origin = Origin(study=spec.name, command=command, corpus=data.record(), bigram_bits_per_byte=data.bigram())
    if has_finished_runs(out):
        _check_same_text(read_origin(out).corpus, origin.corpus, out)
    return origin


def _note(spec: StudySpec, out: Path) -> None:
    """Write down the study that the folder holds, and those of its members."""
    note_study(spec, out)
    if spec.axes:
        for one, folder in places_of(spec, out):
            note_study(one, folder)


def _forget_attempts(out: Path) -> None:
    """Remove what runs with other settings left, none of which finished; ValueError where one is still being made."""
    for spec, folder in places_of(read_study(out), out):
        if not folder.is_dir():
            continue
        for run in planned_runs(spec, folder):
            with claimed(run) as mine:
                if not mine:
                    raise ValueError(
                        f"another process is at work in {out} with other settings: choose another with --out"
                    )
                shutil.rmtree(run.folder, ignore_errors=True)


def _made(run: PlannedRun, spec: StudySpec, texts: Texts, watch: Watch) -> bool:
    """Make one run, unless another process does or did."""
    from twofold.study.execute import execute
    from twofold.training.metrics import DivergedError

    with claimed(run) as mine:
        if not mine or run.ended:
            return False
        data = texts.of(spec)
        with watch(run) as watcher:
            try:
                execute(run, spec.at(run.point), data, watcher)
            except DivergedError as error:
                write_atomically(run.folder / DIVERGED_FILE, f"{error}\n".encode())
                watcher.say(f"diverged and is left out: {error}")
    return True


def _check_same_text(noted: CorpusRecord, found: CorpusRecord, out: Path) -> None:
    if noted.sha256 != found.sha256:
        raise ValueError(
            f"the text {found.name} is not what the runs in {out} were trained on: {noted.documents} documents of "
            f"{noted.bytes} bytes then, {found.documents} of {found.bytes} now, or others. Choose another folder with "
            "--out"
        )
    if noted.tokenizer and noted.tokenizer != found.tokenizer:
        raise ValueError(
            f"the tokenizer is not the one that the runs in {out} were trained with: its files hash to "
            f"{noted.tokenizer[:12]} then, and to {found.tokenizer[:12]} now. Put the former one back, or choose "
            "another folder with --out"
        )
