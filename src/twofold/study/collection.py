"""Put the finished runs of a study's folder together, and the members of a family."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from twofold.study.gaps import Gaps, build_gaps, write_gaps
from twofold.study.picking import Tried, picking_bits, reported
from twofold.study.plan import Course, PlannedRun, courses, places_of, read_study
from twofold.study.record import RECORD_FILE, Part, RunRecord, read_checked, read_record
from twofold.study.results import CorpusRecord, Failure, Results, build_results, write_results

ORIGIN_FILE = "origin.json"


class Origin(Part):
    """What the results say of a study beside its runs: its text, the level to beat, the command that made it."""

    study: str
    command: str
    corpus: CorpusRecord
    bigram_bits_per_byte: float


def read_origin(out: Path) -> Origin:
    """Where the study in `out` comes from."""
    return read_checked(out / ORIGIN_FILE, Origin, "run the study again in another folder")


def collect_results(out: Path) -> Results:
    """Put the finished runs in `out` together and write results.json and results.csv.

    With a sweep, they are the runs at each variant's best point, on the documents that did not pick it. Raises
    ValueError where `out` holds no study, a family, or nothing finished.
    """
    spec = read_study(out)
    if spec.axes:
        raise ValueError(f"{out} holds a family of studies: give the folder of one member, such as {_first(out)}")
    found = courses(spec, out)
    records = [_record(run) for course in found for run in course.reported if run.finished]
    failures = [failure for course in found for failure in _failures(course)]
    if not records and failures:
        raise ValueError(
            f"{out}: no run is finished, and {len(failures)} diverged: {failures[0].label}, seed {failures[0].seed}: "
            f"{failures[0].reason}"
        )
    if not records:
        raise ValueError(f"{out}: {_nothing(found)}; `twofold study run` makes them")
    tried = [one for course in found for one in _tried(course)] if spec.sweep else []
    results = build_results(
        [reported(record) for record in records] if spec.sweep else records,
        **dict(read_origin(out)),
        created=_now(),
        baseline=spec.baseline,
        diverged=failures,
        unfinished=sum(_unfinished(course, len(spec.seeds)) for course in found),
        sweep=tried,
    )
    write_results(results, out)
    return results


def collect_family(out: Path) -> tuple[Gaps, dict[Path, Results]]:
    """Put the members of the family in `out` together: gaps.json, and folder → results of each that has any.

    Each member's own results are written too. Raises ValueError where no member has any.
    """
    spec = read_study(out)
    of_members = {
        folder: collect_results(folder)
        for one, folder in places_of(spec, out)
        if any(run.finished for course in courses(one, folder) for run in course.reported)
    }
    gaps = build_gaps(
        spec.name, [(member, of_members.get(out / member.folder)) for member in spec.members], created=_now()
    )
    write_gaps(gaps, out)
    return gaps, of_members


def _first(out: Path) -> Path:
    return out / read_study(out).members[0].folder


def _record(run: PlannedRun) -> RunRecord:
    return read_record(run.folder / RECORD_FILE)


def _failures(course: Course) -> list[Failure]:
    """The runs that would be reported, had they not diverged; one of them where all points did."""
    lost = [run for run in course.reported if run.diverged]
    if course.best is None and not course.is_open:
        lost = list(course.tries[:1])
    reasons = [run.diverged for run in lost]
    if course.best is None and lost:
        reasons = [f"at every point of the sweep; at the first, {reasons[0]}"]
    return [
        Failure(label=run.label, variant=run.variant, seed=run.seed, reason=reason)
        for run, reason in zip(lost, reasons, strict=True)
    ]


def _tried(course: Course) -> list[Tried]:
    return [
        Tried(
            label=run.label,
            variant=run.variant,
            point=dict(run.point),
            seed=run.seed,
            bits_per_byte=picking_bits(_record(run)) if run.finished else None,
            chosen=run is course.best,
        )
        for run in course.tries
        if run.ended
    ]


def _unfinished(course: Course, seeds: int) -> int:
    """Runs that are still to be made, those among them whose point is not known yet."""
    known = sum(not run.ended for run in (*course.tries, *course.others))
    return known + (seeds - 1 if course.is_open else 0)


def _nothing(found: Sequence[Course]) -> str:
    tried = sum(run.finished for course in found for run in course.tries)
    return "no variant was tried at every point of the sweep yet" if tried else "no run is finished yet"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
