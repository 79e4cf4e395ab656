"""Four named uses, each with all its assumptions, from `scenarios.yaml`."""

from __future__ import annotations

import difflib
from functools import cache
from importlib import resources

import yaml
from pydantic import PositiveFloat, PositiveInt

from twofold.study.record import Part


class Scenario(Part):
    """A use. `sizes` replace fields of the preset; `memory_mib` (2²⁰ bytes) holds weights and cache; `quality` is the
    percent of the baseline's bits per byte that may be lost.
    """

    about: str
    preset: str
    sizes: dict[str, str | int]
    context: PositiveInt
    batch: PositiveInt
    memory_mib: PositiveInt
    quality: PositiveFloat
    dtype: str
    device: str

    @property
    def memory_bytes(self) -> int:
        """Memory for weights and cache, in bytes."""
        return self.memory_mib * 2**20


@cache
def scenarios() -> dict[str, Scenario]:
    """All of them by name."""
    text = resources.files("twofold.study").joinpath("scenarios.yaml").read_text(encoding="utf-8")
    return {name: Scenario.model_validate(fields) for name, fields in yaml.safe_load(text).items()}


def scenario(name: str) -> Scenario:
    """The scenario of that name. ValueError with the nearest name and the list for another."""
    known = scenarios()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"unknown scenario {name!r}: {hint}The scenarios are {', '.join(known)}")
    return known[name]
