"""A sweep: the points of settings at which every variant is tried, before its other seeds run at its best one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, ValidationError

from twofold.study.contenders import slug
from twofold.study.sizes import PlacedError, Sizes, VariantEntry
from twofold.training.settings import MACHINE_FIELDS, TrainingSettings

if TYPE_CHECKING:
    from twofold.study.spec import StudySpec

Point = Mapping[str, Any]
"""Dotted key → value, such as {"training.learning_rate": 0.003}; empty where nothing is swept."""

PARTS: dict[str, type[BaseModel]] = {"training": TrainingSettings, "model": Sizes}


def _checked(sweep: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    if not sweep:
        raise PlacedError((), f"name what to sweep, by a dotted key such as {_keys()[0]}")
    for key in sweep:
        _require_known(key)
    # In one order, so that no folder's name depends on how a file is laid out.
    return {key: _values(key, sweep[key]) for key in sorted(sweep)}


Sweep = Annotated[dict[str, tuple[Any, ...]], AfterValidator(_checked)]
"""Dotted key → at least two values, by key; several keys make a grid."""


def points(sweep: Mapping[str, tuple[Any, ...]] | None) -> tuple[Point, ...]:
    """Every point of the grid, the last key fastest; one empty point where nothing is swept."""
    swept = sweep or {}
    return tuple(dict(zip(swept, values, strict=True)) for values in product(*swept.values()))


def fields(point: Point, part: str) -> dict[str, Any]:
    """What a point says of one part of a study: field → value."""
    return {name: value for key, value in point.items() for at, _, name in [key.partition(".")] if at == part}


def swept_fields(sweep: Iterable[str] | None, part: str) -> set[str]:
    """The fields of one part of a study that are swept."""
    return {name for key in sweep or () for at, _, name in [key.partition(".")] if at == part}


def point_text(point: Point) -> str:
    """`learning_rate 0.003, batch 4`; empty for the empty point."""
    return ", ".join(f"{key.partition('.')[2]} {value_text(value)}" for key, value in point.items())


def point_slug(point: Point) -> str:
    """As part of a folder's name: `learning_rate=0.003`. No two points of a sweep share one."""
    return "_".join(f"{key.partition('.')[2]}={slug(str(value))}" for key, value in point.items())


def value_text(value: Any) -> str:
    """A swept value as a reader sees it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def require_effect(spec: StudySpec) -> None:
    """PlacedError where a swept size would not reach every variant: an entry gives its own, or `match` sets it."""
    swept = swept_fields(spec.sweep, "model")
    for index, entry in enumerate(spec.variants):
        alone = VariantEntry(variant=entry) if isinstance(entry, str) else entry
        for name in sorted(swept & alone.given.keys()):
            raise PlacedError(
                ("variants", index, name), f"model.{name} is swept, and this entry has its own: leave one of them out"
            )
        for name in sorted(swept & _matched_by(spec, alone)):
            raise PlacedError(("sweep", f"model.{name}"), f"match sets {name} itself: sweep another, or do not match")


def _matched_by(spec: StudySpec, entry: VariantEntry) -> set[str]:
    """The fields that `match` changes to bring an entry to its targets."""
    wanted = spec.match.wanted if spec.match else {}
    of_cache = {spec.cache_by(entry)} if "cache" in wanted else set()
    return of_cache | ({"mlp"} if wanted.keys() - {"cache"} else set())


def _keys() -> list[str]:
    names = [f"training.{name}" for name in TrainingSettings.model_fields if name not in MACHINE_FIELDS]
    names.sort(key=lambda name: name != "training.learning_rate")
    return [*names, *(f"model.{name}" for name in Sizes.model_fields)]


def _require_known(key: str) -> None:
    keys = _keys()
    if key.partition(".")[0] == "training" and key.partition(".")[2] in MACHINE_FIELDS:
        raise PlacedError((key,), "this says how a machine computes, and moves results by rounding only: sweep another")
    if key not in keys:
        near = difflib.get_close_matches(key, keys, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise PlacedError((key,), f"no field of training or model: {hint}The keys here are {', '.join(keys)}")


def _values(key: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values as their field takes them: YAML reads 1e-3 as text, for one."""
    part, _, name = key.partition(".")
    read: list[Any] = []
    for index, value in enumerate(values):
        if value is None:
            raise PlacedError((key, index), "give a value")
        try:
            taken = getattr(PARTS[part].model_validate({name: value}), name)
        except ValidationError as error:
            raise PlacedError((key, index), error.errors()[0]["msg"]) from error
        if taken in read:
            raise PlacedError((key, index), f"{value_text(taken)} is named twice: every point is tried once")
        read.append(taken)
    if len(read) < 2:
        raise PlacedError((key,), "a sweep needs at least two values; one alone stands in training or model")
    return tuple(read)
