"""How sharply variants attend, and how large their gradient was, as one table; for a study and for a family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from twofold.report.formats import percent_text
from twofold.report.gaps import place_texts
from twofold.study.gaps import Gap, Gaps
from twofold.study.results import Results
from twofold.study.statistics import GradientSummary, SoftmaxSummary, Spread, VariantSummary

HEADINGS = (
    "entropy, nats",
    "of log n",
    "of log n, by layer",
    "saturated",
    "gradient norm",
    "first tenth",
    "last tenth",
    "largest",
)
NONE = "–"


class ScoreTable(NamedTuple):
    """Headings and rows as finished texts; no rows where no run has been measured so."""

    headings: list[str]
    rows: list[list[str]]


def score_table(found: Results | Gaps) -> ScoreTable:
    """One row per variant, or per variant and member, in the study's order."""
    placed: list[tuple[list[str], VariantSummary | Gap]]
    if isinstance(found, Gaps):
        axes = list(found.axes)
        placed = [(place_texts(member), gap) for member in found.members for gap in member.variants]
    else:
        axes = []
        placed = [([], entry) for entry in found.summary]
    measured = any(entry.softmax or entry.gradient for _, entry in placed)
    rows = [[*place, entry.label, *_softmax(entry.softmax), *_gradient(entry.gradient)] for place, entry in placed]
    return ScoreTable([*axes, "variant", *HEADINGS], rows if measured else [])


def _softmax(found: SoftmaxSummary | None) -> Sequence[str]:
    if found is None:
        return [NONE] * 4
    layers = " ".join(NONE if share is None else f"{share:.2f}" for share in found.layers)
    return [_text(found.entropy, 3), _text(found.relative_entropy, 3), layers, percent_text(found.saturated.mean)]


def _gradient(found: GradientSummary | None) -> Sequence[str]:
    if found is None:
        return [NONE] * 4
    return [
        _text(found.median, 2),
        f"{found.first_tenth.mean:.2f}",
        f"{found.last_tenth.mean:.2f}",
        f"{found.largest:.2f}",
    ]


def _text(spread: Spread, decimals: int) -> str:
    deviation = spread.standard_deviation
    return f"{spread.mean:.{decimals}f}" + ("" if deviation is None else f" ± {deviation:.{decimals}f}")
