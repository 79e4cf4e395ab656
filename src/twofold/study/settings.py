"""Keys of a study file on the command line: `--set data.context=512`, `--set tasks.0.steps=100`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import yaml

Key = tuple[int | str, ...]


def apply_settings(content: dict[str, Any], settings: Iterable[str], parts: Sequence[str] = ()) -> list[Key]:
    """Put each `key=value` into its place in the content, the value read as YAML, and what is missing above it; the
    keys that were set.

    What the file said once and used twice (an alias) is set in the one place alone. With `parts`, keys are `part.key`
    of these alone. ValueError for anything else, and where there is no such place.
    """
    content.update(_unshared(content))
    return [_put(content, setting, parts) for setting in settings]


def _unshared(value: Any) -> Any:
    """The same with lists and mappings of its own everywhere."""
    if isinstance(value, dict):
        return {key: _unshared(below) for key, below in value.items()}
    return [_unshared(below) for below in value] if isinstance(value, list) else value


def _put(content: dict[str, Any], setting: str, parts: Sequence[str]) -> Key:
    dotted, equals, text = setting.partition("=")
    key: Key = tuple(int(step) if step.isdigit() else step for step in dotted.split("."))
    if not (equals and all(str(step) for step in key)) or (parts and (len(key) < 2 or key[0] not in parts)):
        of = f"a key of {', '.join(parts)}" if parts else "a key as the study's file has it"
        example = "data.column=text" if parts and "model" not in parts else "model.layers=6"
        raise ValueError(f"--set {setting!r}: write KEY=VALUE with {of}, such as {example}")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"--set {setting!r}: the value is not YAML") from error
    here: Any = content
    for step in key[:-1]:
        _require_place(here, step, setting)
        here = here.setdefault(step, {}) if isinstance(here, dict) else here[step]
    _require_place(here, key[-1], setting)
    here[key[-1]] = value
    return key


def _require_place(here: Any, step: int | str, setting: str) -> None:
    if isinstance(here, dict) or (isinstance(here, list) and isinstance(step, int) and step < len(here)):
        return
    raise ValueError(f"--set {setting!r}: there is no {step!r} to set: name keys as the study's file has them")
