"""Axes: one study at several contexts, packings and sizes, as a family of ordinary studies, its members."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

from twofold.study.contenders import slug
from twofold.study.sizes import ModelSpec, PlacedError, Sizes, SpecPart
from twofold.study.sweep import swept_fields

if TYPE_CHECKING:
    from twofold.study.spec import StudySpec

Made = TypeVar("Made", bound=BaseModel)

MEMBERS_FOLDER = "members"
PRESET_SIZES = ("layers", "width", "heads", "head_dim", "mlp")
"""What a preset on the axis brings: of these, nothing that the study's own model gives stays."""


def _size(value: Any) -> Any:
    if isinstance(value, str):
        return Sizes(preset=value)
    if isinstance(value, Sizes):
        return value
    if isinstance(value, dict) and value:
        return Sizes.model_validate(value)
    raise ValueError("write a preset's name, or a mapping with keys of model")


class AxesSpec(SpecPart):
    """What the members of a family differ in: any of the three, each with at least two values."""

    context: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    packing: tuple[str, ...] | None = None
    size: tuple[Annotated[Sizes, BeforeValidator(_size)], ...] | None = None

    @model_validator(mode="after")
    def _has_axes(self) -> Self:
        if not self.values:
            raise ValueError(f"name at least one axis: {', '.join(AxesSpec.model_fields)}")
        for axis, values in self.values.items():
            if len(values) < 2:
                raise PlacedError((axis,), "an axis needs at least two values")
            for index, value in enumerate(values):
                if value in values[:index]:
                    raise PlacedError((axis, index), f"{_shown(value)} is named twice: every member is made once")
        return self

    @property
    def values(self) -> dict[str, tuple[Any, ...]]:
        """Axis → its values, for the axes that are given."""
        given = {axis: getattr(self, axis) for axis in AxesSpec.model_fields}
        return {axis: values for axis, values in given.items() if values is not None}


@dataclass(frozen=True)
class Member:
    """One member of a family: axis → value as a reader sees it, its folder below the family's, its study.

    A study without axes is its own one member, in its own folder.
    """

    values: Mapping[str, int | str]
    folder: str
    spec: StudySpec

    def __str__(self) -> str:
        return values_text(self.values)


def values_text(values: Mapping[str, Any]) -> str:
    """`context 128, packing padded`."""
    return ", ".join(f"{axis} {value}" for axis, value in values.items())


def members(spec: StudySpec) -> tuple[Member, ...]:
    """The members of a study, the last axis fastest. PlacedError where a value does not fit."""
    if spec.axes is None:
        return (Member({}, "", spec),)
    axes = spec.axes.values
    return tuple(_member(spec, dict(zip(axes, values, strict=True))) for values in product(*axes.values()))


def require_no_clash(spec: StudySpec) -> None:
    """PlacedError where the sweep and the sizes of the axes would both set a field."""
    sizes: Sequence[Sizes] = (spec.axes and spec.axes.size) or ()
    for size in sizes:
        brought = {*size.given, *(PRESET_SIZES if size.preset else ())}
        for name in sorted(brought & swept_fields(spec.sweep, "model")):
            raise PlacedError(("sweep", f"model.{name}"), f"axes.size sets {name} too: leave one of the two out")


def _member(spec: StudySpec, values: Mapping[str, Any]) -> Member:
    shown = {axis: _shown(value) for axis, value in values.items()}
    of_data = {axis: value for axis, value in values.items() if axis != "size"}
    size: Sizes = values.get("size", Sizes())
    kept = {k: v for k, v in spec.model.given.items() if not (size.preset and k in PRESET_SIZES)}
    made = spec.model_copy(
        update={
            "name": ".".join([spec.name, *(f"{axis}-{slug(str(value))}" for axis, value in shown.items())])
            .replace("=", "-")
            .replace("+", "-"),
            "data": placed(("axes",), lambda: type(spec.data).model_validate({**spec.data.model_dump(), **of_data})),
            "model": placed(("axes", "size"), lambda: ModelSpec.model_validate({**kept, **size.given})),
            "axes": None,
        }
    )
    folder = ",".join(f"{axis}={slug(str(value))}" for axis, value in shown.items())
    return Member(shown, f"{MEMBERS_FOLDER}/{folder}", made)


def placed(place: tuple[int | str, ...], make: Callable[[], Made]) -> Made:
    """What `make` validates; the first fault as a PlacedError at `place`."""
    try:
        return make()
    except ValidationError as error:
        fault = error.errors()[0]
        cause = fault.get("ctx", {}).get("error", fault["msg"])
        raise PlacedError(place, f"{'.'.join(map(str, fault['loc']))}: {cause}".removeprefix(": ")) from error


def _shown(value: Any) -> int | str:
    if not isinstance(value, Sizes):
        return value
    others = [f"{name} {size}" for name, size in value.given.items() if name != "preset"]
    return ", ".join([*([value.preset] if value.preset else []), *others])
