"""Run what is missing of a study, then put its results together."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from twofold.environment import process_count
from twofold.study.plan import (
    DIVERGED_FILE,
    PlannedRun,
    changed_settings,
    check_folder,
    has_finished_runs,
    note_study,
    planned_runs,
    read_study,
)
from twofold.study.record import RECORD_FILE, Part, RunRecord, read_checked, read_record, to_json, write_atomically
from twofold.study.results import CorpusRecord, Failure, Results, build_results, write_results
from twofold.study.spec import StudySpec

if TYPE_CHECKING:
    from twofold.study.execute import StudyData, Watcher

ORIGIN_FILE = "origin.json"
LOCKS_FOLDER = ".locks"
SECONDS_BETWEEN_LOOKS = 1.0

Watch = Callable[[PlannedRun], AbstractContextManager["Watcher"]]


class Origin(Part):
    """What the results say of a study beside its runs: its text, the level to beat, the command that made it."""

    study: str
    command: str
    corpus: CorpusRecord
    bigram_bits_per_byte: float


def run_study(spec: StudySpec, out: Path, command: str, watch: Watch) -> list[RunRecord]:
    """Make the runs that have no record yet; the records of all that have one in the end.

    Several processes may work on one folder: each run is made by one of them, and where that one dies, another goes on
    from its last checkpoint. A run that diverges is noted and left, and the others are made.
    `watch` is entered for each run that is made and gives the `Watcher` of its progress. Raises ValueError where `out`
    belongs to something else, or where the text is no longer what its finished runs had.
    """
    check_folder(spec, out)
    runs = planned_runs(spec, out)
    if not all(run.ended for run in runs) or changed_settings(spec, out):
        _make(runs, spec, out, command, watch)
    else:
        note_study(spec, out)
    return [read_record(run.folder / RECORD_FILE) for run in runs if run.finished]


def _make(runs: list[PlannedRun], spec: StudySpec, out: Path, command: str, watch: Watch) -> None:
    from twofold.study.execute import StudyData
    from twofold.training import requirements

    if process_count() > 1:
        raise ValueError(
            f"a study is not launched over processes, and here are {process_count()}: start it once per device, and "
            "they share the folder and its runs; torchrun is for `twofold train`, one model over several devices"
        )
    requirements.check(spec.training)
    data = StudyData.load(spec)  # before anything is written: a wrong path leaves no folder behind
    origin = Origin(study=spec.name, command=command, corpus=data.record(), bigram_bits_per_byte=data.bigram())
    if has_finished_runs(out):
        _check_same_text(_read_origin(out).corpus, origin.corpus, out)
    if changed_settings(spec, out):
        _forget_attempts(out)
    note_study(spec, out)
    write_atomically(out / ORIGIN_FILE, to_json(origin))
    missing = [run for run in runs if not run.ended]
    while missing:
        for run in missing:
            with claimed(run, out) as mine:
                if mine and not run.ended:
                    _make_one(run, spec, data, watch)
        missing = [run for run in missing if not run.ended]
        if missing:
            time.sleep(SECONDS_BETWEEN_LOOKS)  # another process makes them, or made them in vain


def _forget_attempts(out: Path) -> None:
    """Remove what runs with other settings left, none of which finished; ValueError where one is still being made."""
    for run in planned_runs(read_study(out), out):
        with claimed(run, out) as mine:
            if not mine:
                raise ValueError(f"another process is at work in {out} with other settings: choose another with --out")
            shutil.rmtree(run.folder, ignore_errors=True)


def _make_one(run: PlannedRun, spec: StudySpec, data: StudyData, watch: Watch) -> None:
    from twofold.study.execute import execute
    from twofold.training.metrics import DivergedError

    with watch(run) as watcher:
        try:
            execute(run, spec, data, watcher)
        except DivergedError as error:
            write_atomically(run.folder / DIVERGED_FILE, f"{error}\n".encode())
            watcher.say(f"diverged and is left out: {error}")


@contextmanager
def claimed(run: PlannedRun, out: Path) -> Iterator[bool]:
    """Whether this process has the run for itself while the block lasts. A claim ends with its process, however."""
    lock = FileLock(out / LOCKS_FOLDER / f"{run.folder.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _check_same_text(noted: CorpusRecord, found: CorpusRecord, out: Path) -> None:
    if noted.sha256 != found.sha256:
        raise ValueError(
            f"the text {found.name} is not what the runs in {out} were trained on: {noted.documents} documents of "
            f"{noted.bytes} bytes then, {found.documents} of {found.bytes} now, or others. Choose another folder with "
            "--out"
        )


def _read_origin(out: Path) -> Origin:
    return read_checked(out / ORIGIN_FILE, Origin, "run the study again in another folder")


def collect_results(out: Path) -> Results:
    """Put the finished runs in `out` together and write results.json and results.csv.

    Raises ValueError where `out` holds no study or no finished run.
    """
    spec = read_study(out)
    runs = planned_runs(spec, out)
    records = [read_record(run.folder / RECORD_FILE) for run in runs if run.finished]
    failures = [
        Failure(label=run.label, variant=run.variant, seed=run.seed, reason=run.diverged)
        for run in runs
        if run.diverged
    ]
    unfinished = sum(not run.ended for run in runs)
    if not records and failures:
        raise ValueError(
            f"{out}: no run is finished, and {len(failures)} diverged: {failures[0].label}, seed {failures[0].seed}: "
            f"{failures[0].reason}"
        )
    if not records:
        raise ValueError(f"{out}: no run is finished yet; `twofold study run` makes them")
    origin = _read_origin(out)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    results = build_results(
        records,
        **dict(origin),
        created=created,
        baseline=spec.baseline,
        diverged=failures,
        unfinished=unfinished,
    )
    write_results(results, out)
    return results
