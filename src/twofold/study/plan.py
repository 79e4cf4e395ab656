"""Which runs a study has, where each lives, and which are finished. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from twofold.study.axes import MEMBERS_FOLDER
from twofold.study.contenders import Contender
from twofold.study.record import RECORD_FILE, read_checked, read_record, to_json, write_atomically
from twofold.study.spec import StudySpec
from twofold.study.sweep import Point, point_slug, point_text

STUDY_FILE = "study.json"
RUNS_FOLDER = "runs"
LOCKS_FOLDER = ".locks"
DIVERGED_FILE = "diverged.txt"

Place = tuple[StudySpec, Path]
"""An ordinary study, which may be the member of a family, and its folder."""


class Entrant(Protocol):
    """What a run is of: a contender of a study, under a label that is safe as a folder's name."""

    @property
    def label(self) -> str:
        """What it is called in records and reports."""

    @property
    def variant(self) -> str:
        """The notation."""

    @property
    def slug(self) -> str:
        """The label as part of a folder's name."""

    @property
    def sizes(self) -> Mapping[str, Any]:
        """All that its shapes depend on, as JSON takes it."""


class Compared(Protocol):
    """What a plan needs to know of a study: who is compared, at which points, with which seeds."""

    @property
    def contenders(self) -> Sequence[Entrant]:
        """Who is compared."""

    @property
    def points(self) -> tuple[Point, ...]:
        """The points of the sweep; one empty point without one."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The first runs at every point, the others at the best."""

    def at(self, point: Point) -> Compared:
        """The study at one point, without the sweep."""

    def picking_loss(self, folder: Path) -> tuple[float, ...]:
        """What the best point has least of, told of a finished run's folder by what nothing else is told from."""


@dataclass(frozen=True)
class PlannedRun:
    """One contender with one seed at one point of the sweep, in a folder of its own; `number` counts from 1."""

    number: int
    contender: Entrant
    seed: int
    folder: Path
    point: Point = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What the run is called in records and reports."""
        return self.contender.label

    @property
    def variant(self) -> str:
        """The notation."""
        return self.contender.variant

    @property
    def finished(self) -> bool:
        """A run is finished when its record is there, which is written last."""
        return (self.folder / RECORD_FILE).is_file()

    @property
    def diverged(self) -> str:
        """Why the run has no record and will have none; empty where it may still get one."""
        note = self.folder / DIVERGED_FILE
        return note.read_text().strip() if note.is_file() else ""

    @property
    def ended(self) -> bool:
        """Nothing is left to do for it."""
        return self.finished or bool(self.diverged)

    @property
    def state(self) -> str:
        """In a word or two, for whoever looks before it runs."""
        if self.finished:
            return "finished"
        if self.diverged:
            return "diverged"
        if self.running:
            return "running"
        return "interrupted" if self.folder.is_dir() else "to run"

    @property
    def lock(self) -> Path:
        """The file that whoever makes the run keeps locked; it stays when the lock is gone."""
        return self.folder.parent.parent / LOCKS_FOLDER / f"{self.folder.name}.lock"

    @property
    def running(self) -> bool:
        """Whether a process has claimed it. That shows only in claiming it, which is given up at once."""
        if not self.lock.is_file():
            return False
        try:
            with claimed(self) as mine:
                return not mine
        except PermissionError:  # another user's folder: its locks cannot be tried
            return False

    def __str__(self) -> str:
        at = f", {point_text(self.point)}" if self.point else ""
        return f"{self.label}, seed {self.seed}{at}"


def of_text(run: PlannedRun) -> Contender:
    """The contender of a run of text, with its architecture."""
    assert isinstance(run.contender, Contender)
    return run.contender


@contextmanager
def claimed(run: PlannedRun) -> Iterator[bool]:
    """Whether this process has the run for itself while the block lasts. A claim ends with its process, however."""
    lock = FileLock(run.lock)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


@dataclass(frozen=True)
class Course:
    """All runs of one contender: its `tries` with the first seed, one at each point, then its `others`.

    The others are the further seeds at the best point, and none as long as that is not known. Without a sweep there
    is one try, which is the best.
    """

    contender: Entrant
    tries: tuple[PlannedRun, ...]
    best: PlannedRun | None
    others: tuple[PlannedRun, ...]

    @property
    def is_open(self) -> bool:
        """Whether the best point may still become known."""
        return self.best is None and not all(run.ended for run in self.tries)

    @property
    def reported(self) -> tuple[PlannedRun, ...]:
        """The runs that results are of: those at the best point."""
        return (self.best, *self.others) if self.best else ()


def courses(spec: Compared, out: Path) -> list[Course]:
    """The runs of an ordinary study, or of a member, contender by contender."""
    own, points = spec.contenders, spec.points
    at = [spec.at(point).contenders for point in points]
    count, first = len(own), len(points) * len(own)

    def run(number: int, place: int, which: int, seed: int) -> PlannedRun:
        contender, point = at[place][which], points[place]
        name = "_".join([contender.slug, f"seed{seed}", *([point_slug(point)] if point else [])])
        return PlannedRun(number, contender, seed, out / RUNS_FOLDER / name, point)

    found = []
    for which in range(count):
        tries = [run(1 + place * count + which, place, which, spec.seeds[0]) for place in range(len(at))]
        best = _best(tries, spec.picking_loss)
        others = [
            run(1 + first + later * count + which, tries.index(best), which, seed)
            for later, seed in enumerate(spec.seeds[1:])
            if best
        ]
        found.append(Course(own[which], tuple(tries), best, tuple(others)))
    return found


def places_of(spec: StudySpec, out: Path) -> list[Place]:
    """The ordinary studies that a study in `out` stands for, with their folders: itself, or its members."""
    return [(member.spec, out / member.folder) for member in spec.members]


def planned_runs(spec: Compared, out: Path) -> list[PlannedRun]:
    """All runs of a study that are known by now, in the order they are made: seed by seed, and point by point within
    the first, so that something of each variant is there soon.

    With a sweep, the further seeds of a contender become known when its last point has ended.
    """
    runs = [run for course in courses(spec, out) for run in (*course.tries, *course.others)]
    return sorted(runs, key=lambda run: run.number)


def _best(tries: Sequence[PlannedRun], loss: Callable[[Path], tuple[float, ...]]) -> PlannedRun | None:
    """The try with the least picking loss; None until all have ended, and if none is left.

    A point that diverged is lost.
    """
    if len(tries) == 1:
        return tries[0]
    if not all(run.ended for run in tries):
        return None
    finished = [run for run in tries if run.finished]
    return min(finished, key=lambda run: loss(run.folder), default=None)


def check_folder(spec: StudySpec, out: Path) -> None:
    """Raise ValueError where `out` holds something else, or finished runs of other settings, naming the difference.

    Variants, seeds, and values of a sweep or of axes may be added at any time; other settings may change until the
    first run is finished.
    """
    if (out / STUDY_FILE).exists():
        difference = changed_settings(spec, out)
        if difference and has_finished_runs(out):
            raise ValueError(f"{out} holds runs of other settings: {difference}. Choose another folder with --out")
        if spec.axes:
            for one, folder in places_of(spec, out):
                check_folder(one, folder)
        else:
            _check_sizes(planned_runs(spec, out))
    elif out.is_dir() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty and holds no study: choose another folder with --out")


def changed_settings(spec: StudySpec, out: Path) -> str:
    """The first setting in which the study that `out` holds differs from this one; empty where none does."""
    if not (out / STUDY_FILE).exists():
        return ""
    return first_difference(read_study(out).comparable(), spec.comparable())


def _check_sizes(runs: list[PlannedRun]) -> None:
    """A name may stand for other sizes than it did when its run was made; a label without a name cannot."""
    for run in runs:
        if run.finished:
            noted = read_record(run.folder / RECORD_FILE).configuration.get("sizes", {})
            sizes = run.contender.sizes
            common = noted.keys() & sizes.keys()
            difference = first_difference({k: noted[k] for k in common}, {k: sizes[k] for k in sizes if k in common})
            if difference:
                raise ValueError(
                    f"{run.folder} holds another {run.label}: {difference}. Give this one another name, or choose "
                    "another folder with --out"
                )


def has_finished_runs(out: Path) -> bool:
    """Whether `out` holds any finished run, also of a variant, seed or member that its study no longer names."""
    below = f"{RUNS_FOLDER}/*/{RECORD_FILE}"
    return any(any(out.glob(pattern)) for pattern in (below, f"{MEMBERS_FOLDER}/*/{below}"))


def note_study(spec: StudySpec, out: Path) -> None:
    """Make the folder if need be, and write down the study that it holds."""
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / STUDY_FILE, to_json(spec))


def read_study(out: Path) -> StudySpec:
    """The study that a folder holds. Raises ValueError where it holds none."""
    path = out / STUDY_FILE
    if not path.is_file():
        raise ValueError(f"{out} holds no study ({STUDY_FILE} is not there): give the folder that `study run` made")
    return read_checked(path, StudySpec, "choose another folder with --out")


def first_difference(noted: dict[str, Any], asked: dict[str, Any], prefix: str = "") -> str:
    """`seeds is 1 there and 2 here`, of the first setting that differs; empty where none does."""
    for key in dict.fromkeys((*asked, *noted)):
        name = f"{prefix}{key}"
        there, here = (side.get(key, "not given") for side in (noted, asked))
        if isinstance(there, dict) and isinstance(here, dict):
            nested = first_difference(there, here, f"{name}.")
            if nested:
                return nested
        elif there != here:
            return f"{name} is {there} there and {here} here"
    return ""
