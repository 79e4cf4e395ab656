"""What records of studies say of a variant's quality: its difference to a baseline, unchanged, and where it is from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, PositiveInt, ValidationError

from twofold.study.contrast import OVER_SEEDS
from twofold.study.record import Part, Run
from twofold.study.results import RESULTS_JSON, Results, read_results
from twofold.study.statistics import Comparison, VariantSummary

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Checked = TypeVar("Checked", bound=BaseModel)
_ROUNDING = 1e-6  # relative; shares that differ by it are equal


class Evidence(Part):
    """One variant against the baseline in one study. `comparison` is the study's own, in bits per byte.

    `percent` and `interval` are the same in percent of the baseline's bits per byte. `parameters` are the measured
    model's, `tokens` those it was trained on, `context`, `heads` and `rotary` its windows' length, its query heads and
    its positions (`Architecture`), None where the record does not say. `cache_share` is of the baseline's cache.
    `untrained` names who learnt too little to be compared, `matched` what the study kept equal.
    """

    variant: str
    file: str
    study: str
    corpus: str
    comparison: Comparison
    percent: FiniteFloat
    interval: tuple[FiniteFloat, FiniteFloat] | None
    seeds: tuple[int, ...]
    parameters: PositiveInt
    tokens: int | None
    context: int | None
    heads: int | None
    rotary: str | None
    cache_share: Positive
    matched: tuple[str, ...]
    untrained: tuple[str, ...]

    @property
    def strength(self) -> tuple[bool, bool, bool, int, int]:
        """What makes one record better evidence than another: trained enough, an interval, over seeds, size, tokens."""
        over_seeds = self.comparison.method == OVER_SEEDS
        return not self.untrained, self.interval is not None, over_seeds, self.parameters, self.tokens or 0

    def is_weaker_than(self, share: float) -> bool:
        """Whether the measured model kept more of the baseline's cache than `share`: it shared less."""
        return self.cache_share > share * (1 + _ROUNDING)


class _Sizes(BaseModel):
    heads: PositiveInt | None = None
    rotary: str | None = None


class _Windows(BaseModel):
    context: PositiveInt | None = None


class _Configuration(BaseModel):
    """What is read of a run's configuration; the rest is ignored."""

    model_config = ConfigDict(strict=True)

    tokens: PositiveInt | None = None
    sizes: _Sizes = _Sizes()
    data: _Windows = _Windows()
    matched: dict[str, Any] = {}


class _Level(BaseModel):
    """What is read of a summary's entry."""

    bits_per_byte: Positive
    cache_bytes_per_token: Positive
    total_parameters: PositiveInt


class Records(Part):
    """The evidence in some files, the strongest first for each variant; `unused` says why others gave none."""

    files: tuple[str, ...]
    evidence: dict[str, tuple[Evidence, ...]]
    unused: tuple[str, ...]


def result_files(places: Iterable[Path]) -> tuple[Path, ...]:
    """Every results.json among `places`: files, and folders with all that is below them, each once and in order.

    Raises ValueError for a place that is not there, and for a file that is no results.json.
    """
    found: dict[Path, None] = {}
    for place in places:
        if place.is_dir():
            found |= dict.fromkeys(sorted(place.rglob(RESULTS_JSON)))
        elif place.is_file() and place.suffix == ".json":
            found[place] = None
        else:
            raise ValueError(f"{place} holds no records: give a study's folder, or its {RESULTS_JSON}")
    return tuple(found)


def read_evidence(files: Sequence[Path], baseline: str) -> Records:
    """The evidence against `baseline` (a notation) in studies of text.

    Records of studies of tasks score other things and are left out, as are studies without the baseline, and entries
    whose model differs from the study's by more than the variant (their label is not the notation).
    """
    found: dict[str, list[Evidence]] = {}
    unused, used = [], []
    for file in files:
        try:
            results = read_results(file)
        except ValueError as error:
            unused.append(_why_unread(file, error))
            continue
        try:
            entries = list(_in_study(file, results, baseline))
        except ValueError as error:
            unused.append(f"{file}: {error}")
            continue
        if entries:
            used.append(str(file))
        else:
            unused.append(f"{file}: it compares nothing with a plain {baseline}")
        for entry in entries:
            found.setdefault(entry.variant, []).append(entry)
    ordered = {
        variant: tuple(sorted(those, key=lambda e: e.strength, reverse=True)) for variant, those in found.items()
    }
    return Records(files=tuple(used), evidence=ordered, unused=tuple(unused))


def _why_unread(file: Path, error: ValueError) -> str:
    if b'"bigram_bits_per_byte"' not in file.read_bytes():
        return f"{file}: it is not a study of text"
    return str(error)


def _in_study(file: Path, results: Results, baseline: str) -> Iterable[Evidence]:
    entries = {entry.label: entry for entry in results.summary if entry.label == entry.variant}
    level = entries.get(baseline)
    if level is None:
        return
    for entry in entries.values():
        if entry is not level:
            yield _evidence(file, results, entry, level)


def _evidence(file: Path, results: Results, entry: VariantSummary, level: VariantSummary) -> Evidence:
    """One entry as evidence. ValueError, in one line, for what a damaged record says of it."""
    comparison, run = _comparison(results, entry.label, level.label), _run(results, entry.label)
    found, base = _level(entry), _level(level)
    scale = 100 / base.bits_per_byte
    asked = _checked(_Configuration, run.configuration, f"the configuration of {entry.label}")
    told = {
        "variant": entry.variant,
        "file": str(file),
        "study": results.study,
        "corpus": results.corpus.name,
        "comparison": comparison,
        "percent": scale * comparison.difference,
        "interval": comparison.interval and (scale * comparison.interval[0], scale * comparison.interval[1]),
        "seeds": tuple(seed for seed in entry.seeds if seed in level.seeds),
        "parameters": found.total_parameters,
        "tokens": asked.tokens,
        "context": asked.data.context,
        "heads": asked.sizes.heads,
        "rotary": asked.sizes.rotary,
        "cache_share": found.cache_bytes_per_token / base.cache_bytes_per_token,
        "matched": tuple(asked.matched),
        "untrained": tuple(label for label in (entry.label, level.label) if label in results.untrained),
    }
    return _checked(Evidence, told, f"{entry.label} against {level.label}")


def _level(entry: VariantSummary) -> _Level:
    told = {
        "bits_per_byte": entry.bits_per_byte.mean,
        "cache_bytes_per_token": entry.cache_bytes_per_token,
        "total_parameters": entry.parameters.get("total"),
    }
    return _checked(_Level, told, f"the summary of {entry.label}")


def _comparison(results: Results, a: str, b: str) -> Comparison:
    if not any({one.a, one.b} == {a, b} for one in results.comparisons):
        raise ValueError(f"it has no comparison of {a} with {b}")
    return results.comparison(a, b)


def _run(results: Results, label: str) -> Run:
    found = next((run for run in results.runs if run.label == label), None)
    if found is None:
        raise ValueError(f"it has no run of {label}")
    return found


def _checked(model: type[Checked], told: dict[str, Any], what: str) -> Checked:
    """`told` as `model`; ValueError with the first fault in one line."""
    try:
        return model.model_validate(told)
    except ValidationError as error:
        fault = error.errors()[0]
        raise ValueError(f"{what}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from error
