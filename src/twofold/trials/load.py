"""Any study, of text or of tasks, from a YAML file or by the name of a built-in one, with some of its keys replaced."""

from __future__ import annotations

from collections.abc import Sequence

from twofold.study.load import builtin_studies, checked, checked_as, line_of, parse_yaml, study_text, yaml_texts
from twofold.study.settings import Key, apply_settings
from twofold.study.spec import StudySpec
from twofold.trials.spec import TaskStudySpec


def all_builtin_studies() -> dict[str, str]:
    """Name → YAML text of all studies that come with the package."""
    return dict(sorted({**builtin_studies(), **yaml_texts("twofold.trials")}.items()))


def load_any_study(file_or_name: str, settings: Sequence[str] = ()) -> StudySpec | TaskStudySpec:
    """Read a study; one with the key `tasks` is a study of tasks.

    `settings` replace values: `model.layers=2`, `tasks.0.steps=100`, the values in YAML. Raises ValueError in one line,
    with file and line number, or with the setting, and what is possible there, for anything that is wrong.
    """
    text, name = study_text(file_or_name, all_builtin_studies())
    tree, content = parse_yaml(text, name)
    changed = apply_settings(content, settings)

    def prefix(place: Key) -> str:
        changed_there = (key for key in changed if place[: len(key)] == key)
        key = next(changed_there, None)
        return f"{name}:{line_of(tree, place)}: " if key is None else f"--set {'.'.join(map(str, key))}: "

    return checked_as(TaskStudySpec, content, prefix) if "tasks" in content else checked(content, prefix)
