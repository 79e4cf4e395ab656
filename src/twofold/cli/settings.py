"""Keys of a study file on the command line: `--set data.context=512`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import yaml


def apply_settings(content: dict[str, Any], settings: Iterable[str], parts: Sequence[str]) -> None:
    """Put each `part.key=value` into the content, the value read as YAML. ValueError where it is not of the parts."""
    for setting in settings:
        key, equals, value = setting.partition("=")
        part, _, name = key.partition(".")
        if not (equals and name and part in parts):
            example = "model.layers=6" if "model" in parts else "data.column=text"
            raise ValueError(f"--set {setting!r}: write KEY=VALUE with a key of {', '.join(parts)}, such as {example}")
        try:
            content.setdefault(part, {})[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"--set {setting!r}: the value is not YAML") from error
