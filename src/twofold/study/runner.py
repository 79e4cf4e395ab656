"""Run what is missing of a study, then put its results together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from twofold.study.plan import PlannedRun, claim_folder, planned_runs, read_study
from twofold.study.record import RECORD_FILE, Part, RunRecord, read_checked, read_record, to_json, write_atomically
from twofold.study.results import CorpusRecord, Results, build_results, write_results
from twofold.study.spec import StudySpec

if TYPE_CHECKING:
    from twofold.study.execute import Watcher

ORIGIN_FILE = "origin.json"

Watch = Callable[[PlannedRun], AbstractContextManager["Watcher"]]


class Origin(Part):
    """What the results say of a study beside its runs: its text, the level to beat, the command that made it."""

    study: str
    command: str
    corpus: CorpusRecord
    bigram_bits_per_byte: float


def run_study(spec: StudySpec, out: Path, command: str, watch: Watch) -> list[RunRecord]:
    """Make the runs that have no record yet, one after the other; the records of all.

    `watch` is entered for each run that is made and gives the `Watcher` of its progress.
    """
    claim_folder(spec, out)
    runs = planned_runs(spec, out)
    missing = [run for run in runs if not run.finished]
    if missing:
        from twofold.study.execute import StudyData, execute

        data = StudyData.load(spec)
        origin = Origin(study=spec.name, command=command, corpus=data.record(), bigram_bits_per_byte=data.bigram())
        write_atomically(out / ORIGIN_FILE, to_json(origin))
        for run in missing:
            with watch(run) as watcher:
                execute(run, spec, data, watcher)
    return [read_record(run.folder / RECORD_FILE) for run in runs]


def collect_results(out: Path) -> Results:
    """Put the finished runs in `out` together and write results.json and results.csv.

    Raises ValueError where `out` holds no study or no finished run.
    """
    spec = read_study(out)
    records = [read_record(run.folder / RECORD_FILE) for run in planned_runs(spec, out) if run.finished]
    if not records:
        raise ValueError(f"{out}: no run is finished yet; `twofold study run` makes them")
    origin = read_checked(out / ORIGIN_FILE, Origin, "run the study again")
    created = datetime.now(UTC).isoformat(timespec="seconds")
    results = build_results(records, **dict(origin), created=created)
    write_results(results, out)
    return results
