"""The study file: what to compare, on which text, with how many tokens. Checked whole before anything runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from twofold.data.byte_tokens import VOCABULARY
from twofold.data.corpus import STANDARD_LIBRARY
from twofold.models.architecture import Architecture
from twofold.models.presets import architecture
from twofold.study.contenders import Contender, changes, label
from twofold.study.match import COSTS, Targets, cost, matched
from twofold.training.settings import MACHINE_FIELDS, TrainingSettings
from twofold.variants.notation import parse

Notation = Annotated[str, AfterValidator(lambda text: str(parse(text)))]


CacheBy = Literal["heads", "head_dim"]


def _target(value: Any) -> Any:
    if isinstance(value, str):
        return str(parse(value))
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**62:
        return value
    raise ValueError("give a variant, or a number of at least 1")


Target = Annotated[int | str, BeforeValidator(_target)]


class PlacedError(ValueError):
    """A fault between fields, with the key below, if any, that it is best shown at."""

    def __init__(self, place: tuple[int | str, ...], message: str) -> None:
        super().__init__(message)
        self.place = place


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSpec(_Part):
    """The text: `source` as `load_corpus` takes it, cut into windows of `context` tokens, a share held out."""

    source: str = STANDARD_LIBRARY
    context: int = Field(256, ge=1)
    held_out: float = Field(0.03, gt=0, lt=1)


class SampleSpec(_Part):
    """After training: how many bytes of a held-out document are the prompt, and how many tokens follow."""

    prompt: int = Field(96, ge=1)
    tokens: int = Field(256, ge=2)


class _Sizes(_Part):
    """The fields of `Architecture` that a study file may give; what is left out comes from elsewhere."""

    preset: str | None = None
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    head_dim: int | None = None
    mlp: int | None = None
    positions: int | None = None
    block: str | None = None
    rotary: str | None = None
    tied: bool | None = None
    dropout: float | None = None
    rotary_base: float | None = None
    norm_epsilon: float | None = None
    initial_deviation: float | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The sizes that were given."""
        return self.model_dump(include=set(_Sizes.model_fields), exclude_none=True)


class ModelSpec(_Sizes):
    """A preset, and the fields of `Architecture` that replace the preset's."""

    preset: str = "tiny"

    @model_validator(mode="after")
    def _is_a_model(self) -> Self:
        try:
            self.architecture("QKV")
        except ValueError as error:
            raise PlacedError(_named(error, self.model_fields_set), str(error)) from error
        return self

    def architecture(self, variant: str, **replaced: Any) -> Architecture:
        """The sizes with a variant, some of them `replaced`; bytes and the document separator make the vocabulary."""
        return architecture(**{**self.given, **replaced}, variant=variant, vocab=VOCABULARY)


class VariantEntry(_Sizes):
    """A variant with sizes of its own: those given replace the study's, for this entry alone.

    `name` is its label; `cache_by` says what matches its cache, where that is not as in `match`.
    """

    variant: Notation
    name: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9 =+.,_()-]*$", max_length=60)
    cache_by: CacheBy | None = None

    @field_validator("name")
    @classmethod
    def _is_no_notation(cls, name: str | None) -> str | None:
        try:
            parse(name or "")
        except ValueError:
            return name
        raise ValueError(f"{name!r} is a variant's notation, which this entry may not be: choose a name that is none")


class MatchSpec(_Part):
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


class StudySpec(_Part):
    """One study. `tokens` is the training budget of each run; every variant is trained with every seed.

    `baseline` is the label that differences are shown to; without it, QKV, or else the first.
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
        return self

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """The variants with their labels and sizes, matched where the study matches. PlacedError where one cannot."""
        targets = self._targets()
        return tuple(self._contender(index, entry, targets) for index, entry in enumerate(self.variants))

    def _targets(self) -> Targets:
        wanted = self.match.wanted if self.match else {}
        numbers = {}
        for name, value in wanted.items():
            try:
                reference = self.model.architecture(value) if isinstance(value, str) else None
            except ValueError as error:
                raise PlacedError(("match", name), str(error)) from error
            numbers[name] = cost(name, reference, self.data.context) if reference else int(value)
        if self.match and self.match.cache_by and not self.match.cache:
            raise PlacedError(("match", "cache_by"), "match.cache is not given, and nothing else is matched by this")
        return Targets(numbers, self.data.context)

    def _contender(self, index: int, entry: str | VariantEntry, targets: Targets) -> Contender:
        alone = VariantEntry(variant=entry) if isinstance(entry, str) else entry
        if alone.cache_by and "cache" not in targets.wanted:
            raise PlacedError(("variants", index, "cache_by"), "match.cache is not given: there is nothing to match")
        own = alone.given
        by = alone.cache_by or (self.match and self.match.cache_by) or "heads"
        try:
            sizes = matched(self.model.architecture(alone.variant, **own), targets, by, own)
        except ValueError as error:
            raise PlacedError(("variants", index, *_named(error, own)), str(error)) from error
        changed = changes(self.model.architecture("QKV"), self._kv_heads(alone.variant), sizes, own)
        reached = targets.costs(sizes)
        return Contender(
            label=alone.name or label(sizes, changed, own),
            architecture=sizes,
            changed=changed,
            matched={name: (wanted, reached[name]) for name, wanted in targets.wanted.items()},
        )

    def _kv_heads(self, notation: str) -> int | None:
        """Key/value heads that a notation has at the study's own sizes; None where it does not fit them."""
        try:
            return self.model.architecture(notation).kv_heads
        except ValueError:
            return None

    def comparable(self) -> dict[str, Any]:
        """What must be equal for runs to stand in one study: everything but name, description, variants,
        baseline, seeds, and how the machine does it (`MACHINE_FIELDS`).
        """
        left_out = dict.fromkeys(("name", "description", "variants", "baseline", "seeds"), True)
        return self.model_dump(mode="json", exclude={**left_out, "training": set(MACHINE_FIELDS)})


def _named(error: ValueError, given: Iterable[str]) -> tuple[str, ...]:
    """The first given field that a message names: a fault between fields is shown there."""
    words = [word.strip(",:;()") for word in str(error).split()]
    return tuple(word for word in words if word in given)[:1]
