"""The record of one bench: the machine, and one row per comparison. What `--json` and `--out` write. No torch."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from twofold.study.record import read_checked, to_json, write_atomically

ALWAYS = ("name", "milliseconds", "alternative", "alternative_milliseconds", "ratio", "spread", "roof_fraction")
"""Keys that every row has in JSON, null where nothing of the kind was measured."""


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Row(_Stored):
    """One thing of ours beside one alternative; a name comes once for each alternative.

    `name` is bench/subject/sizes. `milliseconds` are medians over the repeats. `ratio` is the median of the paired
    ratios alternative over ours, each of two measurements that came one after the other, and `spread` their
    interquartile range (third quartile minus first). `roof_fraction` is the time that the machine would need at its
    measured read bandwidth or arithmetic peak, whichever is longer, over ours.

    Rows of memory compare bytes: there `ratio` is the alternative's resident bytes over ours, and times are missing.
    `bytes` are those that one call must read, or those that a cache takes by the formula. `cache_bytes` are those that
    an engine itself reports of its cache.
    """

    name: str
    milliseconds: float | None = None
    alternative: str | None = None
    alternative_milliseconds: float | None = None
    ratio: float | None = None
    spread: float | None = None
    roof_fraction: float | None = None
    variant: str | None = None
    context: int | None = None
    bytes: int | None = None
    resident_bytes: int | None = None
    tokens_per_second: float | None = None
    alternative_tokens_per_second: float | None = None
    parameters: int | None = None
    cache_bytes: int | None = None
    alternative_cache_bytes: int | None = None

    @property
    def cache_share(self) -> float | None:
        """Of the alternative's cache, as engines report theirs; None where nobody asked one."""
        if self.cache_bytes is None or not self.alternative_cache_bytes:
            return None
        return self.cache_bytes / self.alternative_cache_bytes

    @property
    def subject(self) -> str:
        """The name without the bench's own."""
        return self.name.partition("/")[2]

    @property
    def resident_over_formula(self) -> float | None:
        """Resident bytes over the formula's; None where memory was not measured."""
        return self.resident_bytes / self.bytes if self.resident_bytes and self.bytes else None

    @model_serializer(mode="wrap")
    def _without_nothing(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if key in ALWAYS or value is not None}


class Machine(_Stored):
    """Where the rows were measured. Bandwidth (10⁹ bytes/s) and peak (10⁹ float32 operations/s, a multiply-add being
    two) were measured in the same run, with as many `threads`; None where the native library is missing.
    `load_average` is the system's over one minute, before and after: above the run's own threads, others worked too.
    """

    read_bandwidth_gbs: float | None
    fma_peak_gflops: float | None
    processor: str
    threads: int
    isa: str | None
    cores: int
    memory_bytes: int | None
    platform: str
    versions: dict[str, str | None]
    commit: str | None
    load_average: tuple[float, float] | None

    def roof_seconds(self, read: float, operations: float) -> float | None:
        """The least time to read so many bytes and do so many float32 operations, side by side; None if unknown."""
        if self.read_bandwidth_gbs is None or self.fma_peak_gflops is None:
            return None
        return 1e-9 * max(read / self.read_bandwidth_gbs, operations / self.fma_peak_gflops)


class BenchRecord(_Stored):
    """What one `twofold bench` measured. `left_out` says in a line each what was not, and why."""

    bench: str
    machine: Machine
    rows: tuple[Row, ...]
    repeats: int
    quick: bool
    command: str
    left_out: tuple[str, ...] = ()


def read_bench(path: Path) -> BenchRecord:
    """The record in a file; ValueError where it is missing or none."""
    return read_checked(path, BenchRecord, "give a file that `twofold bench … --out` wrote")


def write_bench(record: BenchRecord, path: Path) -> None:
    """Write the record as JSON, whole or not at all."""
    write_atomically(path, to_json(record))


def check_writable(paths: Sequence[Path | None]) -> None:
    """Raise ValueError before the work begins where a file could not be written after it."""
    for path in filter(None, paths):
        if not path.parent.is_dir():
            raise ValueError(f"{path}: there is no folder {path.parent} to write to")
        if path.is_dir():
            raise ValueError(f"{path} is a folder: give the name of a file")
        if shutil.disk_usage(path.parent).free == 0:
            raise ValueError(f"{path}: the disk is full")
