"""Any study, of text or of tasks, from a YAML file or by the name of a built-in one, with some of its keys replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from twofold.study.load import builtin_studies, checked, checked_as, line_of, parse_yaml, study_text, yaml_texts
from twofold.study.spec import StudySpec
from twofold.trials.spec import TaskStudySpec

Key = tuple[int | str, ...]


def all_builtin_studies() -> dict[str, str]:
    """Name → YAML text of all studies that come with the package."""
    return dict(sorted({**builtin_studies(), **yaml_texts("twofold.trials")}.items()))


def load_any_study(file_or_name: str, changes: Sequence[str] = ()) -> StudySpec | TaskStudySpec:
    """Read a study; one with the key `tasks` is a study of tasks.

    `changes` replace values: `model.layers=2`, `tasks.0.steps=100`, the values in YAML. Raises ValueError in one line,
    with file and line number, or with the change, and what is possible there, for anything that is wrong.
    """
    text, name = study_text(file_or_name, all_builtin_studies())
    tree, content = parse_yaml(text, name)
    changed = [_apply(change, content) for change in changes]

    def prefix(place: Key) -> str:
        changed_there = (key for key in changed if place[: len(key)] == key)
        key = next(changed_there, None)
        return f"{name}:{line_of(tree, place)}: " if key is None else f"--set {'.'.join(map(str, key))}: "

    return checked_as(TaskStudySpec, content, prefix) if "tasks" in content else checked(content, prefix)


def _apply(change: str, content: dict[str, Any]) -> Key:
    """Put one change in its place, making what is missing above it; the key that it changes."""
    dotted, equals, text = change.partition("=")
    if not (dotted and equals):
        raise ValueError(f"--set {change}: write a key of the study, =, and a value, such as model.layers=2")
    key: Key = tuple(int(step) if step.isdigit() else step for step in dotted.split("."))
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"--set {change}: the value is no YAML: {' '.join(str(error).split())}") from error
    here: Any = content
    for step, below in zip(key, (*key[1:], None), strict=True):
        is_there = step < len(here) if isinstance(here, list) and isinstance(step, int) else isinstance(here, dict)
        if not is_there:
            raise ValueError(f"--set {change}: there is no {step!r} to change; name keys as the study's file has them")
        if below is None:
            here[step] = value
        else:
            here = here.setdefault(step, {}) if isinstance(here, dict) else here[step]
    return key
