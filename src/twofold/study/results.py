"""A study's results: every run, what they say together, and the two files that carry them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import FiniteFloat, NonNegativeInt, PositiveInt

from twofold.study.interaction import Interaction
from twofold.study.picking import Tried
from twofold.study.record import Labelled, Part, Run, RunRecord, read_checked, to_json, write_atomically
from twofold.study.statistics import Comparison, VariantSummary, analyse
from twofold.variants.choices import Recurrence
from twofold.variants.notation import parse

RESULTS_JSON = "results.json"
RESULTS_CSV = "results.csv"


class CorpusRecord(Part):
    """The text of a study: its name, the hash that identifies it, and how much of it was held out.

    Of a `stream`, that is what it was opened as (JSON); documents and bytes are then those held out, and the hash is of
    these and of that. `tokenizer` is `Tokenizer.fingerprint`, empty for bytes and where it was not written down yet.
    """

    name: str
    sha256: str
    documents: PositiveInt
    bytes: PositiveInt
    held_out_bytes: NonNegativeInt
    stream: str = ""
    tokenizer: str = ""


class Failure(Labelled):
    """A run whose loss stopped being a number, and what was said of it."""

    seed: int
    reason: str


class Results(Part):
    """Everything that the report shows. `created` is an ISO 8601 time, `command` what made the results.

    With a `sweep`, runs and what follows from them are those at each variant's best point, and of the half of the
    held-out documents that picked none; without one it is empty.
    """

    study: str
    command: str
    created: str
    corpus: CorpusRecord
    bigram_bits_per_byte: FiniteFloat
    baseline: str
    runs: tuple[Run, ...]
    summary: tuple[VariantSummary, ...]
    comparisons: tuple[Comparison, ...]
    frontier: tuple[str, ...]
    interactions: tuple[Interaction, ...] = ()
    diverged: tuple[Failure, ...] = ()
    unfinished: NonNegativeInt = 0
    sweep: tuple[Tried, ...] = ()

    @property
    def untrained(self) -> tuple[str, ...]:
        """The variants that learnt no more than a byte-bigram model knows: trained too little to be compared."""
        return tuple(e.label for e in self.summary if e.bits_per_byte.mean >= self.bigram_bits_per_byte)

    @property
    def bounded(self) -> tuple[Run, ...]:
        """The first run of each variant whose cache does not grow with every token: of a window, or a state."""
        first = {run.label: run for run in reversed(self.runs) if _is_bounded(run.configuration.get("sizes", {}))}
        return tuple(first[entry.label] for entry in self.summary if entry.label in first)

    def comparison(self, a: str, b: str) -> Comparison:
        """Bits per byte of the variant labelled `a` minus those of `b`, whichever way round it is kept."""
        found = next(one for one in self.comparisons if {one.a, one.b} == {a, b})
        return found if found.a == a else found.reversed()

    @property
    def total(self) -> int:
        """Runs that are finished or still to be made: those reported, those that the sweep tried, those missing."""
        tried_only = sum(not one.chosen and not one.diverged for one in self.sweep)
        return len(self.runs) + tried_only + self.unfinished


def _is_bounded(sizes: dict[str, Any]) -> bool:
    return bool(sizes.get("window")) or parse(sizes.get("variant", "QKV")).recurrence is not Recurrence.NONE


def build_results(
    records: Sequence[RunRecord],
    *,
    study: str,
    command: str,
    created: str,
    corpus: CorpusRecord,
    bigram_bits_per_byte: float,
    baseline: str | None = None,
    diverged: Sequence[Failure] = (),
    unfinished: int = 0,
    sweep: Sequence[Tried] = (),
) -> Results:
    """Put a study's finished runs together. ValueError where they cannot be compared (see `analyse`)."""
    statistics = analyse(records, baseline)
    order = [entry.label for entry in statistics.summary]
    runs = sorted(records, key=lambda run: (order.index(run.label), run.seed))
    return Results(
        study=study,
        command=command,
        created=created,
        corpus=corpus,
        bigram_bits_per_byte=bigram_bits_per_byte,
        baseline=statistics.baseline,
        runs=tuple(run.without_documents() for run in runs),
        summary=statistics.summary,
        comparisons=statistics.comparisons,
        frontier=statistics.frontier,
        interactions=statistics.interactions,
        diverged=tuple(diverged),
        unfinished=unfinished,
        sweep=tuple(sweep),
    )


def read_results(path: Path) -> Results:
    """Read `results.json`. ValueError names the file, the place in it and what to do."""
    return read_checked(path, Results, "make it again with `twofold study report`")


def write_results(results: Results, directory: Path) -> tuple[Path, Path]:
    """Write `results.json` and `results.csv` (one line per run) into `directory`; return both paths."""
    directory.mkdir(parents=True, exist_ok=True)
    as_json, as_csv = directory / RESULTS_JSON, directory / RESULTS_CSV
    write_atomically(as_json, to_json(results))
    write_atomically(as_csv, to_csv(results).encode())
    return as_json, as_csv


def to_csv(results: Results) -> str:
    """One line per run. Columns are named after the path in `results.json`: `validation_bits_per_byte`."""
    lines = [_flat(_in_csv(run)) for run in results.runs]
    columns = list(dict.fromkeys(column for line in lines for column in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _in_csv(run: Run) -> dict[str, Any]:
    """What a line tells of a run; a part that it does not have makes no column."""
    told = run.model_dump(exclude={"configuration": True, "sample": True, "curve": True, "softmax": {"layers"}})
    return {name: value for name, value in told.items() if value is not None} | {"point": dict(run.point)}


def _flat(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        flat |= _flat(value, f"{prefix}{key}_") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
