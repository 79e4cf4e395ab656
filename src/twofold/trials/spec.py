"""A study of tasks: which tasks, whom to compare on them, with how many steps. Checked whole before anything runs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from twofold.study.axes import placed
from twofold.study.sizes import Notation, PlacedError, Sizes, SpecPart
from twofold.study.sweep import Sweep, points
from twofold.tasks.task import TaskSpec
from twofold.training.settings import TrainingSettings
from twofold.trials.kinds import KINDS
from twofold.trials.trial import EncoderSizes, TaskContender, Trial, contender
from twofold.variants.notation import parse


class TaskVariant(SpecPart):
    """A variant under a `name` of its own, with what of its model is not the study's."""

    variant: Notation
    name: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9 =+.,_()-]*$", max_length=60)
    model: dict[str, Any] = Field(default_factory=dict)

    @property
    def label(self) -> str:
        """What it is called in records and reports."""
        return self.name or self.variant


def _variant(value: Any) -> Any:
    if isinstance(value, str):
        return TaskVariant(variant=str(parse(value)))
    if isinstance(value, dict | TaskVariant):
        return TaskVariant.model_validate(value)
    raise ValueError("Input should be a variant, or a mapping with the key variant")


Variants = Annotated[tuple[Annotated[TaskVariant, BeforeValidator(_variant)], ...], Field(min_length=1)]


Level = tuple[tuple[int | str, ...], Mapping[str, Any]]
"""Where in the file sizes are given, and which."""

TRAINING = {"batch": 128, "learning_rate": 1e-3, "checkpoints": 1}
"""Defaults of `training` here."""


def _training(value: Any) -> Any:
    return {**TRAINING, **value} if isinstance(value, dict) else value


def _training_only(sweep: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    for key in sweep:
        if not key.startswith("training."):
            raise PlacedError((key,), "a study of tasks sweeps training alone, such as training.learning_rate")
    return sweep


class TaskEntry(SpecPart):
    """One task of a study. What of `steps`, `model`, `variants`, `sweep` and `until` it gives is its alone, and
    `settings` are those of `training` that are.

    In a file the task's own keys stand beside these: `{task: reverse, length: 32, steps: 800}`.
    """

    of: TaskSpec = Field(exclude=True)
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ,._-]*$", max_length=60)
    steps: int | None = Field(None, ge=1)
    model: dict[str, Any] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)
    variants: Variants | None = None
    sweep: Sweep | None = None
    until: float | None = Field(None, gt=0, le=1)

    @model_validator(mode="before")
    @classmethod
    def _apart(cls, value: Any) -> Any:
        """The task's keys go into `of`."""
        content = {"task": value} if isinstance(value, str) else value
        if not isinstance(content, dict):
            raise ValueError("write a task's name, or a mapping with the key task")
        own = {key: content[key] for key in content if key in cls.model_fields and key != "of"}
        of = _task({key: content[key] for key in content if key not in own})
        return {"of": of, "name": of.task, **own}

    @field_validator("of", mode="plain")
    @classmethod
    def _is_checked(cls, value: TaskSpec) -> TaskSpec:
        return value

    @model_serializer(mode="wrap")
    def _together(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written = {key: value for key, value in handler(self).items() if key == "name" or key in self.model_fields_set}
        return {**self.of.model_dump(mode="json"), **written}


def _task(content: dict[str, Any]) -> TaskSpec:
    name = content.get("task")
    if name not in KINDS:
        near = difflib.get_close_matches(str(name), KINDS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise PlacedError(("task",), f"no task {name!r}: {hint}The tasks are {', '.join(KINDS)}")
    kind = KINDS[name]
    for key in content.keys() - kind.model_fields.keys():
        keys = [*kind.model_fields, *(one for one in TaskEntry.model_fields if one != "of")]
        near = difflib.get_close_matches(key, keys, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise PlacedError((key,), f"unknown key {key!r}: {hint}The keys here are {', '.join(keys)}")
    return placed((), lambda: kind.model_validate(content))


class TaskStudySpec(SpecPart):
    """One study of tasks. Every variant is trained on every task: with the first seed at each point of the `sweep`,
    and with the others at the point whose validation score is best. `steps` are those of each run.

    `model` holds sizes of encoders (`EncoderSizes`), or for causal tasks those of a study of text. `training`
    replaces defaults of `TrainingSettings`. Differences are to the `baseline`, without one to QKV, or else the first.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    tasks: tuple[TaskEntry, ...] = Field(min_length=1)
    model: dict[str, Any] = Field(default_factory=dict)
    variants: Variants
    baseline: str | None = None
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**32)], ...] = Field((0,), min_length=1)
    steps: int = Field(ge=1)
    training: Annotated[TrainingSettings, BeforeValidator(_training)] = TrainingSettings.model_validate(TRAINING)
    looks: int = Field(10, ge=1, description="how often a run is scored on validation examples while it trains")
    until: float | None = Field(None, gt=0, le=1, description="a look with this score ends a run's training")
    sweep: Sweep | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for index, seed in enumerate(self.seeds):
            if seed in self.seeds[:index]:
                raise PlacedError(("seeds", index), f"{seed} is named twice in seeds: every run is made once")
        folders: set[str] = set()
        for index, entry in enumerate(self.tasks):
            trial = self._trial(index, entry)
            if trial.folder.lower() in folders:
                raise PlacedError(("tasks", index), f"two tasks are called {entry.name!r}: give one another name")
            folders.add(trial.folder.lower())
            if trial.steps < self.looks:
                raise PlacedError(("tasks", index), f"{trial.steps} steps cannot be looked at {self.looks} times")
        return self

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The tasks with whom they compare."""
        return tuple(self._trial(index, entry) for index, entry in enumerate(self.tasks))

    @property
    def run_count(self) -> int:
        """Runs that the study comes to."""
        return sum(trial.run_count for trial in self.trials)

    def _trial(self, index: int, entry: TaskEntry) -> Trial:
        own = entry.model_fields_set
        sweep = entry.sweep if "sweep" in own else self.sweep
        try:
            _training_only(sweep or {})
        except PlacedError as error:
            where = ("tasks", index, "sweep") if entry.sweep else ("sweep",)
            raise PlacedError((*where, *error.place), str(error)) from error
        training = {**self.training.model_dump(), **entry.settings}
        found = self._contenders(index, entry)
        labels = [one.label for one in found]
        baseline = self.baseline or ("QKV" if "QKV" in labels else labels[0])
        if baseline not in labels:
            raise PlacedError(
                ("baseline",), f"{baseline!r} is not compared on {entry.name}: one of {', '.join(labels)}"
            )
        return Trial(
            name=entry.name,
            task=entry.of,
            contenders=found,
            baseline=baseline,
            points=points(sweep),
            seeds=self.seeds,
            steps=entry.steps or self.steps,
            training=placed(("tasks", index, "settings"), lambda: TrainingSettings.model_validate(training)),
            looks=self.looks,
            until=entry.until if "until" in own else self.until,
        )

    def _contenders(self, index: int, entry: TaskEntry) -> tuple[TaskContender, ...]:
        variants = entry.variants or self.variants
        place = ("tasks", index, "variants") if entry.variants else ("variants",)
        found: dict[str, TaskContender] = {}
        for number, one in enumerate(variants):
            levels: list[Level] = [
                (("model",), self.model),
                (("tasks", index, "model"), entry.model),
                ((*place, number, "model"), one.model),
            ]
            sizes = {key: value for _, level in levels for key, value in level.items()}
            try:
                made = contender(one.label, one.variant, sizes, entry.of)
            except ValidationError as error:
                raise _misfit(error, levels) from error
            except ValueError as error:
                raise PlacedError((*place, number), f"on {entry.name}: {error}") from error
            if made.slug.lower() in found:
                raise PlacedError((*place, number), f"{made.label} is named twice, or shares a folder with another")
            found[made.slug.lower()] = made
        return tuple(found.values())


def _misfit(error: ValidationError, levels: Sequence[Level]) -> PlacedError:
    """The first fault in sizes, at the last of the `levels` that gives the key."""
    fault = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    key = str(fault["loc"][0]) if fault["loc"] else ""
    place = next(where for where, given in reversed(levels) if key in given or len(where) == 1)
    if fault["type"] == "extra_forbidden":
        keys = [*EncoderSizes.model_fields] if error.title == EncoderSizes.__name__ else [*Sizes.model_fields]
        near = difflib.get_close_matches(key, keys, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return PlacedError((*place, key), f"unknown key {key!r}: {hint}The keys here are {', '.join(keys)}")
    return PlacedError((*place, key), str(fault["msg"]).removeprefix("Value error, "))
