"""Which runs a study has, where each lives, and which are finished. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twofold.study.contenders import Contender
from twofold.study.record import RECORD_FILE, read_checked, read_record, to_json, write_atomically
from twofold.study.spec import StudySpec

STUDY_FILE = "study.json"
RUNS_FOLDER = "runs"
DIVERGED_FILE = "diverged.txt"


@dataclass(frozen=True)
class PlannedRun:
    """One contender with one seed, in a folder of its own; `number` counts a study's runs from 1."""

    number: int
    contender: Contender
    seed: int
    folder: Path

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
        return "interrupted" if self.folder.is_dir() else "to run"

    def __str__(self) -> str:
        return f"{self.label}, seed {self.seed}"


def planned_runs(spec: StudySpec, out: Path) -> list[PlannedRun]:
    """All runs of a study in the order they are made: seed by seed, so that one seed of each variant is there soon."""
    pairs = [(contender, seed) for seed in spec.seeds for contender in spec.contenders]
    return [
        PlannedRun(number, contender, seed, out / RUNS_FOLDER / f"{contender.slug}_seed{seed}")
        for number, (contender, seed) in enumerate(pairs, start=1)
    ]


def check_folder(spec: StudySpec, out: Path) -> None:
    """Raise ValueError where `out` holds something else, or finished runs of other settings, naming the difference.

    Variants and seeds may be added at any time; other settings may change until the first run is finished.
    """
    if (out / STUDY_FILE).exists():
        difference = changed_settings(spec, out)
        if difference and has_finished_runs(out):
            raise ValueError(f"{out} holds runs of other settings: {difference}. Choose another folder with --out")
        _check_sizes(planned_runs(spec, out))
    elif out.is_dir() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty and holds no study: choose another folder with --out")


def changed_settings(spec: StudySpec, out: Path) -> str:
    """The first setting in which the study that `out` holds differs from this one; empty where none does."""
    if not (out / STUDY_FILE).exists():
        return ""
    return _first_difference(read_study(out).comparable(), spec.comparable())


def _check_sizes(runs: list[PlannedRun]) -> None:
    """A name may stand for other sizes than it did when its run was made; a label without a name cannot."""
    for run in runs:
        if run.finished:
            noted = read_record(run.folder / RECORD_FILE).configuration.get("sizes", {})
            difference = _first_difference(noted, {k: v for k, v in run.contender.sizes.items() if k in noted})
            if difference:
                raise ValueError(
                    f"{run.folder} holds another {run.label}: {difference}. Give this one another name, or choose "
                    "another folder with --out"
                )


def has_finished_runs(out: Path) -> bool:
    """Whether `out` holds any finished run, also of a variant or seed that its study no longer names."""
    return any((out / RUNS_FOLDER).glob(f"*/{RECORD_FILE}"))


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


def _first_difference(noted: dict[str, Any], asked: dict[str, Any], prefix: str = "") -> str:
    for key, value in asked.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and isinstance(noted[key], dict):
            nested = _first_difference(noted[key], value, f"{name}.")
            if nested:
                return nested
        elif noted[key] != value:
            return f"{name} is {noted[key]} there and {value} here"
    return ""
