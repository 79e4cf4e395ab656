"""The study file: what to compare, on which text, with how many tokens. Checked whole before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from twofold.models.architecture import Architecture
from twofold.study.axes import AxesSpec, Member, members, placed, require_no_clash
from twofold.study.contenders import Contender, changes, label
from twofold.study.data_spec import DataSpec
from twofold.study.match import CACHE_BY, COSTS, Targets, cost, matched
from twofold.study.picking import picking_bits
from twofold.study.record import RECORD_FILE, read_record
from twofold.study.sizes import CacheBy, ModelSpec, PlacedError, SpecPart, VariantEntry, named
from twofold.study.sweep import Point, Sweep, fields, point_text, points, require_effect, swept_fields
from twofold.training.settings import MACHINE_FIELDS, TrainingSettings
from twofold.variants.notation import parse


def _target(value: Any) -> Any:
    if isinstance(value, str):
        return str(parse(value))
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**62:
        return value
    raise ValueError("give a variant, or a number of at least 1")


Target = Annotated[int | str, BeforeValidator(_target)]


class SampleSpec(SpecPart):
    """After training: how many bytes of a held-out document are the prompt, and how many tokens follow."""

    prompt: int = Field(96, ge=1)
    tokens: int = Field(256, ge=2)


class MatchSpec(SpecPart):
    """What all variants shall have in common, and that of which variant, at the study's sizes, or how much."""

    cache: Target | None = None
    parameters: Target | None = None
    compute: Target | None = None
    cache_by: CacheBy | None = None

    @model_validator(mode="after")
    def _matches_something(self) -> Self:
        if not self.wanted:
            raise ValueError(f"name what to match: {', '.join(COSTS)}")
        return self

    @property
    def wanted(self) -> dict[str, int | str]:
        """Cost → a variant or a number, for the costs that are matched."""
        return self.model_dump(include=set(COSTS), exclude_none=True)


def _entry(value: Any) -> Any:
    if isinstance(value, dict):
        return VariantEntry.model_validate(value)
    if isinstance(value, str):
        return str(parse(value))
    if isinstance(value, VariantEntry):
        return value
    raise ValueError("Input should be a valid string, or a mapping with the key variant")


Entry = Annotated[str | VariantEntry, BeforeValidator(_entry)]


class StudySpec(SpecPart):
    """One study. `tokens` is the training budget of each run; every variant is trained with every seed.

    `baseline` is the label that differences are shown to; without it, QKV, or else the first. A `sweep` tries every
    variant at several points with the first seed, and its other seeds run at the best; with `axes` it is a family.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    data: DataSpec = DataSpec()
    model: ModelSpec = ModelSpec()
    variants: tuple[Entry, ...] = Field(min_length=1)
    baseline: str | None = None
    match: MatchSpec | None = None
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**32)], ...] = Field((0,), min_length=1)
    tokens: int = Field(ge=1)
    training: TrainingSettings = TrainingSettings()
    sample: SampleSpec = SampleSpec()
    sweep: Sweep | None = None
    axes: AxesSpec | None = None

    @field_validator("baseline")
    @classmethod
    def _canonical_if_a_notation(cls, baseline: str | None) -> str | None:
        try:
            return baseline and str(parse(baseline))
        except ValueError:
            return baseline

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for index, seed in enumerate(self.seeds):
            if seed in self.seeds[:index]:
                raise PlacedError(("seeds", index), f"{seed} is named twice in seeds: every run is made once")
        require_no_clash(self)
        require_effect(self)
        labels: list[str] = []
        for text, study in self._ordinary():
            try:
                study._fits_its_model()
            except PlacedError as error:
                raise PlacedError(error.place, f"{error} (with {text})" if text else str(error)) from error
            found = [contender.label for contender in study.contenders]
            for index, (before, now) in enumerate(zip(labels, found, strict=False)):
                if before != now:
                    raise PlacedError(
                        ("variants", index), f"{before} becomes {now} with {text}: give it a name, which stays"
                    )
            labels = labels or found
        return self

    def _ordinary(self) -> Iterator[tuple[str, StudySpec]]:
        """Every study without axes and sweep that this one stands for, with what sets it apart, and swept ones too."""
        for member in self.members:
            yield str(member), member.spec
            if self.sweep:
                for point in self.points:
                    texts = (str(member), point_text(point))
                    yield ", ".join(text for text in texts if text), member.spec.at(point)

    def _fits_its_model(self) -> None:
        longest = max(self.data.context, self.sample.prompt + self.sample.tokens)
        seen: dict[str, str] = {}
        once_matched = ", once matched" if self.match else ""
        for index, contender in enumerate(self.contenders):
            name = contender.label
            folder = contender.slug.lower()  # some file systems take both cases for one
            if seen.get(folder) == name:
                raise PlacedError(
                    ("variants", index), f"{name} is named twice in variants{once_matched}: every run is made once"
                )
            if folder in seen:
                raise PlacedError(("variants", index), f"{name} and {seen[folder]} would share a folder: rename one")
            seen[folder] = name
            sizes = contender.architecture
            if sizes.learned_positions and longest > sizes.positions:
                raise PlacedError(
                    ("model",),
                    f"{longest} tokens in a row are asked for (data.context, or sample.prompt + sample.tokens), and "
                    f"the model has {sizes.positions} learned positions: raise model.positions",
                )
        if self.baseline is not None and self.baseline not in seen.values():
            choices = ", ".join(seen.values())
            raise PlacedError(
                ("baseline",), f"{self.baseline!r} is none of this study's variants: choose one of {choices}"
            )

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """The variants with their labels and sizes, matched where the study matches. PlacedError where one cannot."""
        targets = self._targets()
        return tuple(self._contender(index, entry, targets) for index, entry in enumerate(self.variants))

    @property
    def members(self) -> tuple[Member, ...]:
        """The ordinary studies of a family; a study without axes is its own one."""
        return members(self)

    @property
    def points(self) -> tuple[Point, ...]:
        """The points of the sweep; one empty point where nothing is swept."""
        return points(self.sweep)

    @property
    def run_count(self) -> int:
        """Runs that the study comes to: the sweep's with the first seed, and one for each further seed."""
        of_each = len(self.points) + len(self.seeds) - 1
        return len(self.members) * len(self.variants) * of_each

    def at(self, point: Point) -> StudySpec:
        """The study at one point of its sweep, without the sweep. PlacedError where the point does not fit.

        Where sizes are swept, what is matched stays what the study's own model makes it, so that all points cost alike.
        """
        if not self.sweep:
            return self
        given = {**self.model.given, **fields(point, "model")}
        training = {**self.training.model_dump(), **fields(point, "training")}
        wanted = self._targets().wanted if swept_fields(self.sweep, "model") else {}
        return self.model_copy(
            update={
                "model": placed(("sweep",), lambda: ModelSpec.model_validate(given)),
                "training": TrainingSettings.model_validate(training),
                "match": self.match and self.match.model_copy(update=dict(wanted)),
                "sweep": None,
            }
        )

    def picking_loss(self, folder: Path) -> tuple[float, ...]:
        """Bits per byte of a finished run on the documents that pick a sweep's best point."""
        return (picking_bits(read_record(folder / RECORD_FILE)),)

    def _sizes(self, variant: str, **own: Any) -> Architecture:
        return self.model.architecture(variant, self.data.vocabulary, **own)

    def _targets(self) -> Targets:
        wanted = self.match.wanted if self.match else {}
        numbers = {}
        for name, value in wanted.items():
            try:
                reference = self._sizes(value) if isinstance(value, str) else None
            except ValueError as error:
                raise PlacedError(("match", name), str(error)) from error
            numbers[name] = cost(name, reference, self.data.context) if reference else int(value)
            if not numbers[name]:
                raise PlacedError(
                    ("match", name),
                    f"{value} keeps a state of constant size, so it has no cached bytes per token that others could be "
                    "matched to: name a variant with rows, or a number",
                )
        if self.match and self.match.cache_by and not self.match.cache:
            raise PlacedError(("match", "cache_by"), "match.cache is not given, and nothing else is matched by this")
        return Targets(numbers, self.data.context)

    def _contender(self, index: int, entry: str | VariantEntry, targets: Targets) -> Contender:
        alone = VariantEntry(variant=entry) if isinstance(entry, str) else entry
        if alone.cache_by and "cache" not in targets.wanted:
            raise PlacedError(("variants", index, "cache_by"), "match.cache is not given: there is nothing to match")
        own = alone.given
        by = self.cache_by(alone)
        try:
            sizes = matched(self._sizes(alone.variant, **own), targets, by, own)
        except ValueError as error:
            raise PlacedError(("variants", index, *named(error, own)), str(error)) from error
        changed = changes(self._sizes("QKV"), self._kv_heads(alone.variant), sizes, own)
        reached = targets.costs(sizes)
        return Contender(
            label=alone.name or label(sizes, changed, own),
            architecture=sizes,
            changed=changed,
            matched={name: (wanted, reached[name]) for name, wanted in targets.wanted.items()},
        )

    def cache_by(self, entry: VariantEntry) -> str:
        """What matches an entry's cache, where it is matched."""
        return entry.cache_by or (self.match and self.match.cache_by) or CACHE_BY[0]

    def _kv_heads(self, notation: str) -> int | None:
        """Key/value heads that a notation has at the study's own sizes; None where it does not fit them."""
        try:
            return self._sizes(notation).kv_heads
        except ValueError:
            return None

    def comparable(self) -> dict[str, Any]:
        """What must be equal for runs to stand in one study: everything but name, description, variants,
        baseline, seeds, and how the machine does it (`MACHINE_FIELDS`).

        Of a sweep and of axes it is the keys, where they are given: their values may be added and removed.
        """
        left_out = dict.fromkeys(("name", "description", "variants", "baseline", "seeds", "sweep", "axes"), True)
        settings = self.model_dump(mode="json", exclude={**left_out, "training": set(MACHINE_FIELDS)})
        keys = {"sweep": self.sweep, "axes": self.axes and self.axes.values}
        return settings | {name: ", ".join(of) for name, of in keys.items() if of}
