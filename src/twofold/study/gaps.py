"""A family's own record: what each variant loses to the baseline in every member, and how that moves along the axes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt, PositiveInt

from twofold.study.axes import Member
from twofold.study.record import Labelled, Part, read_checked, to_json, write_atomically
from twofold.study.results import Results
from twofold.study.statistics import Comparison, GradientSummary, PerplexityGap, SoftmaxSummary, VariantSummary

GAPS_JSON = "gaps.json"


class Gap(Labelled):
    """One variant in one member: its size, its quality, and what it loses to that member's baseline, paired.

    `difference` is in bits per byte and `perplexity_gap` in percent of the baseline's perplexity; both are None for the
    baseline. `point` is where in the study's sweep it stands.
    """

    seeds: tuple[int, ...]
    parameters: PositiveInt
    cache_bytes_per_token: float
    bits_per_byte: float
    perplexity: float
    point: dict[str, Any]
    difference: Comparison | None
    perplexity_gap: PerplexityGap | None
    softmax: SoftmaxSummary | None = None
    gradient: GradientSummary | None = None


class MemberGaps(Part):
    """One member: where it stands on the axes, its folder below the family's, and its variants, none as long as it
    has no results. `unfinished` counts runs that are still to be made, and `diverged` those that never will be.
    `untrained` are the variants that learnt no more than a byte-bigram model knows.
    """

    values: dict[str, int | str]
    folder: str
    baseline: str | None = None
    variants: tuple[Gap, ...] = ()
    unfinished: NonNegativeInt | None = None
    diverged: NonNegativeInt = 0
    untrained: tuple[str, ...] = ()

    def gap(self, label: str) -> Gap | None:
        """A variant of this member; None where it has no finished run."""
        return next((gap for gap in self.variants if gap.label == label), None)


class Gaps(Part):
    """What a family's report shows. `created` is an ISO 8601 time, `command` what made the results."""

    study: str
    command: str
    created: str
    members: tuple[MemberGaps, ...]

    @property
    def labels(self) -> list[str]:
        """The variants, in the order in which the members first have them."""
        return list(dict.fromkeys(gap.label for member in self.members for gap in member.variants))

    @property
    def baseline(self) -> str:
        """What most members have as their baseline: the study's own, unless it has no finished run there."""
        found = [member.baseline for member in self.members if member.baseline is not None]
        return max(dict.fromkeys(found), key=found.count)

    @property
    def axes(self) -> dict[str, list[int | str]]:
        """Axis → its values, in the study's order."""
        names = self.members[0].values
        return {axis: list(dict.fromkeys(member.values[axis] for member in self.members)) for axis in names}


def build_gaps(study: str, found: Sequence[tuple[Member, Results | None]], *, created: str) -> Gaps:
    """Put members together with their results, where they have any. ValueError where none has."""
    commands = [results.command for _, results in found if results]
    if not commands:
        raise ValueError("no member of this family has a finished run yet; `twofold study run` makes them")
    members = tuple(_member(member, results) for member, results in found)
    return Gaps(study=study, command=commands[0], created=created, members=members)


def read_gaps(path: Path) -> Gaps:
    """Read `gaps.json`. ValueError names the file, the place in it and what to do."""
    return read_checked(path, Gaps, "make it again with `twofold study report`")


def write_gaps(gaps: Gaps, directory: Path) -> Path:
    """Write `gaps.json` into `directory` and return its path."""
    path = directory / GAPS_JSON
    write_atomically(path, to_json(gaps))
    return path


def _member(member: Member, results: Results | None) -> MemberGaps:
    place = {"values": dict(member.values), "folder": member.folder}
    if results is None:
        return MemberGaps(**place)
    points = {run.label: run.point for run in results.runs}
    return MemberGaps(
        **place,
        baseline=results.baseline,
        variants=tuple(_gap(entry, points[entry.label]) for entry in results.summary),
        unfinished=results.unfinished,
        diverged=len(results.diverged),
        untrained=results.untrained,
    )


def _gap(entry: VariantSummary, point: dict[str, Any]) -> Gap:
    return Gap(
        label=entry.label,
        variant=entry.variant,
        seeds=entry.seeds,
        parameters=entry.parameters["total"],
        cache_bytes_per_token=entry.cache_bytes_per_token,
        bits_per_byte=entry.bits_per_byte.mean,
        perplexity=entry.perplexity.mean,
        point=point,
        difference=entry.difference_to_baseline,
        perplexity_gap=entry.perplexity_gap,
        softmax=entry.softmax,
        gradient=entry.gradient,
    )
