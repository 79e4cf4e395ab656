"""From YAML to a checked study; faults name their line."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from twofold.study.sizes import PlacedError
from twofold.study.spec import StudySpec

Place = tuple[int | str, ...]
Spec = TypeVar("Spec", bound=BaseModel)

_PLAINER = {
    "string_pattern_mismatch": "use letters, digits, '.', '_' and '-' only",
    "tuple_type": "write a list, such as [a, b]",
    "dict_type": "write a mapping, such as {a: b}",
    "too_short": "name at least one",
}
"""Kinds of faults that pydantic words for programmers."""


def yaml_texts(package: str) -> dict[str, str]:
    """Name → YAML text of the studies that come with a package, in its folder `builtin`."""
    folder = resources.files(package) / "builtin"
    texts = {entry.name.removesuffix(".yaml"): entry.read_text() for entry in folder.iterdir()}
    return dict(sorted(texts.items()))


def builtin_studies() -> dict[str, str]:
    """Name → YAML text of the studies of text that come with the package."""
    return yaml_texts("twofold.study")


def load_study(file_or_name: str) -> StudySpec:
    """Read a study file, or a built-in study by name.

    Raises ValueError in one line, with file, line number and what is possible there, for anything that is wrong.
    """
    return parse_study(*study_text(file_or_name, builtin_studies()))


def study_text(file_or_name: str, builtin: Mapping[str, str]) -> tuple[str, str]:
    """The YAML text of a study file, or of a built-in study, and its name for messages. ValueError where none is."""
    if file_or_name in builtin:
        return builtin[file_or_name], f"{file_or_name}.yaml"
    path = Path(file_or_name)
    if not path.is_file():
        near = difflib.get_close_matches(file_or_name, builtin, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"no study {file_or_name!r}: {hint}give a YAML file, or one of the built-in studies {', '.join(builtin)}"
        )
    try:
        return path.read_text(encoding="utf-8"), str(path)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text file (byte {error.start} is not UTF-8)") from error


def parse_study(text: str, name: str) -> StudySpec:
    """Check YAML text; `name` stands before the line number in messages."""
    tree, content = parse_yaml(text, name)
    return checked(content, lambda place: f"{name}:{line_of(tree, place)}: ")


def parse_yaml(text: str, name: str) -> tuple[yaml.Node, dict[str, Any]]:
    """A mapping with its nodes, no key of which is given twice. ValueError with the line where it is none."""
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ValueError(f"{name}{line}: not YAML: {problem}") from error
    except RecursionError as error:
        raise ValueError(f"{name}: nested too deeply for a study") from error
    if not (isinstance(tree, yaml.MappingNode) and isinstance(content, dict)):
        raise ValueError(f"{name}: a study is a mapping with {', '.join(StudySpec.model_fields)}")
    for key in _repeated_keys(tree):
        raise ValueError(f"{name}:{key.start_mark.line + 1}: the key {key.value!r} is given twice")
    return tree, content


def checked(content: dict[str, Any], prefix: Callable[[Place], str] = lambda place: "") -> StudySpec:
    """Check a study's content. The ValueError of a fault starts with what `prefix` makes of its place."""
    return checked_as(StudySpec, content, prefix)


def checked_as(model: type[Spec], content: dict[str, Any], prefix: Callable[[Place], str]) -> Spec:
    """Check content as any model of a study."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        # A misspelt key is also missing under its right name: the spelling says more.
        fault = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        cause = fault.get("ctx", {}).get("error")
        place = fault["loc"] + (cause.place if isinstance(cause, PlacedError) else ())
        raise ValueError(prefix(place) + _explain(model, place, fault["type"], fault["msg"])) from error


def _repeated_keys(node: yaml.Node, depth: int = 4) -> Iterator[yaml.Node]:
    """Keys that came before in the study or any of its parts; YAML itself would silently keep the last."""
    if isinstance(node, yaml.MappingNode):
        keys = [key for key, _ in node.value]
        yield from (key for n, key in enumerate(keys) if key.value in [earlier.value for earlier in keys[:n]])
    if isinstance(node, yaml.CollectionNode) and depth:  # an alias can make a node hold itself
        for below in node.value:
            yield from _repeated_keys(below[1] if isinstance(below, tuple) else below, depth - 1)


def line_of(node: yaml.Node | None, place: Place) -> int:
    """The line of the key or item at `place`, or of the nearest thing above it that is there."""
    line = 1 if node is None else node.start_mark.line + 1
    for step in place:
        if isinstance(node, yaml.MappingNode):
            entry = next(((k, v) for k, v in node.value if k.value == str(step)), None)
            if entry is None:
                return line
            line, node = entry[0].start_mark.line + 1, entry[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int):
            node = node.value[step]
            line = node.start_mark.line + 1
        else:
            return line
    return line


def _explain(model: type[BaseModel], place: Place, kind: str, message: str) -> str:
    where = ".".join(str(step) for step in place)
    message = message.removeprefix("Value error, ")
    if kind == "extra_forbidden":
        choices = list(_model_at(model, place[:-1]).model_fields)
        near = difflib.get_close_matches(str(place[-1]), choices, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"unknown key {where!r}: {hint}The keys here are {', '.join(choices)}"
    if kind == "missing":
        return f"the key {where!r} is missing"
    if kind == "model_type":
        return f"{where}: give some of the keys {', '.join(_model_at(model, place).model_fields)}, or leave it out"
    message = _PLAINER.get(kind, message)
    return f"{where}: {message}" if where else message


def _model_at(model: type[BaseModel], place: Place) -> type[BaseModel]:
    for step in place:
        if isinstance(step, str):  # a number leads to an item of a list, and the list's type names its items'
            model = next(_models_in(model.model_fields[step].annotation))
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that a field's type names, such as the one of `Model | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
