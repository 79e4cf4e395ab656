"""Real caches of all variants, one process each: what the system says they take, against the formula."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass

from twofold.analysis.costs import cache_bytes, cache_bytes_per_token, parameters, weight_bytes
from twofold.bench.process_memory import available_bytes, check_linux
from twofold.bench.record import Row
from twofold.bench.sizes import Effort, sized, variants
from twofold.bench.timing import Watch
from twofold.models.architecture import Architecture

BESIDE = 2**29
"""Bytes that a process takes beside its cache: Python, torch, a piece of rows."""

QUICK_CONTEXT = 4_096

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**16)}
"""glibc then gives every larger piece back to the system as soon as it is freed, and keeps none for later."""


@dataclass(frozen=True)
class Question:
    """What to hold: a model's size, tokens per sequence, sequences, dtype; or, with `limit`, bytes to get by with."""

    preset: str = "1.2B"
    context: int = 32_768
    batch: int = 1
    dtype: str = "float32"
    limit: int | None = None

    def __post_init__(self) -> None:
        for name in ("context", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, not {getattr(self, name)}")
        if self.dtype == "int8":
            raise ValueError("a row cache keeps float64, float32, bfloat16 or float16: choose one of these")

    def architecture(self, variant: str) -> Architecture:
        """The model of that preset, with as many positions as there are tokens in the context."""
        return sized(self.preset, variant, positions=self.context)


def measure(question: Question, effort: Effort, watch: Watch) -> tuple[list[Row], list[str]]:
    """A row for each variant: resident bytes beside the formula's, or the longest context that fits the limit.

    Raises ValueError before anything is allocated where the machine has too little memory free.
    """
    check_linux()
    names = variants(question.architecture("QKV").heads, effort.quick)
    check_room(question, names)
    found: list[Row] = []
    for number, variant in enumerate(names):
        watch(number, len(names), variant)
        found.append(fitting(question, variant) if question.limit else resident(question, variant))
    watch(len(names), len(names), "")
    return found if question.limit else [found[0], *(_beside(row, found[0]) for row in found[1:])], []


def check_room(question: Question, names: tuple[str, ...]) -> None:
    """Raise ValueError where the largest cache, or the limit, is more than the machine has free."""
    sizes = {
        name: cache_bytes(question.architecture(name), question.context, question.dtype, question.batch)
        for name in names
    }
    largest = max(sizes, key=sizes.__getitem__)
    weights = weight_bytes(question.architecture("QKV"), question.dtype)
    if question.limit and weights > question.limit:
        raise ValueError(
            f"the weights of {question.preset} alone take {weights:,} bytes, and the limit is {question.limit:,}: "
            "choose a smaller --preset or a higher --limit"
        )
    needed = question.limit or sizes[largest] + BESIDE
    if needed > (free := available_bytes()):
        what = "the limit" if question.limit else f"the cache of {largest} and its process"
        raise ValueError(
            f"{what} takes {needed / 2**30:.1f} GiB, and this machine has {free / 2**30:.1f} GiB free: choose a "
            "shorter --context, a smaller --batch or --preset, or end other programs"
        )


def resident(question: Question, variant: str) -> Row:
    """What filling a preallocated cache adds to a process."""
    expected = cache_bytes(question.architecture(variant), question.context, question.dtype, question.batch)
    batch = f"/batch-{question.batch}" if question.batch > 1 else ""
    return Row(
        name=f"memory/{question.preset}/{variant}/{question.context}/{question.dtype}{batch}",
        variant=variant,
        context=question.context,
        bytes=expected,
        resident_bytes=_child("resident", question, variant)["grown"],
    )


def fitting(question: Question, variant: str) -> Row:
    """The longest context with which a process generates within the limit. `resident_bytes`: its peak with that."""
    arch = question.architecture(variant)
    answer = _child("fitting", question, variant)
    return Row(
        name=f"memory/{question.preset}/{variant}/limit-{question.limit}/{question.dtype}",
        variant=variant,
        context=answer["context"],
        bytes=answer["context"] * question.batch * cache_bytes_per_token(arch, question.dtype),
        resident_bytes=answer["peak"],
        parameters=parameters(arch)["total"],
    )


def _beside(row: Row, first: Row) -> Row:
    """The row with the first variant's as its alternative."""
    assert row.resident_bytes is not None
    assert first.resident_bytes is not None
    ratio = first.resident_bytes / row.resident_bytes if row.resident_bytes else None  # less than a page
    return row.model_copy(update={"alternative": first.variant, "ratio": ratio})


def _child(task: str, question: Question, variant: str) -> dict[str, int]:
    """The answer of a fresh process (`bench.held`). OSError where it dies, as when the system ends it."""
    asked = json.dumps({"task": task, "variant": variant, **asdict(question)})
    command = [sys.executable, "-m", "twofold.bench.held", asked]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **ALLOCATOR}, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing; perhaps memory ran out"])[-1]
        raise OSError(f"{variant}: the process that held the cache ended with code {done.returncode}: {last}")
    return json.loads(done.stdout)
