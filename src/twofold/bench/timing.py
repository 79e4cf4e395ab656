"""How everything here is timed: ours and its alternatives in turn, in one run, so that a noisy machine hits all."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from twofold.bench.record import Row

Contender = Callable[[], float]
"""Does its work once and gives the seconds that it took."""

Watch = Callable[[int, int, str], None]
"""Is told the pieces of work done, how many there are in all, and what comes next."""

Times = dict[str, list[float]]
"""Seconds by contender, round by round; ours comes first."""


def timed(call: Callable[[], object]) -> Contender:
    """A contender that is the whole call."""

    def contender() -> float:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started

    return contender


def interleaved(contenders: Mapping[str, Contender], repeats: int, warm_up: int = 1) -> Times:
    """Time all contenders in each of `repeats` rounds, after `warm_up` rounds that do not count.

    Every other round goes through them backwards, so that none is always the one after the same other.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, not {repeats}")
    times: Times = {name: [] for name in contenders}
    order = list(contenders)
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for number in range(-warm_up, repeats):
            for name in order if number % 2 == 0 else order[::-1]:
                seconds = contenders[name]()
                if number >= 0:
                    times[name].append(seconds)
    finally:
        if collecting:
            gc.enable()
    return times


def paired(ours: list[float], theirs: list[float]) -> tuple[float, float]:
    """Median and interquartile range of theirs over ours, round by round."""
    ratios = np.asarray(theirs) / np.asarray(ours)
    first, median, third = np.percentile(ratios, (25, 50, 75))
    return float(median), float(third - first)


def rows(
    name: str, times: Times, roof_seconds: float | None = None, tokens: int | None = None, **keys: Any
) -> list[Row]:
    """One row for each alternative to the first contender, or one without where it is alone.

    `roof_seconds`: the least time that this machine allows. `tokens`: how many one measurement brings forward.
    """
    (_, ours), *others = times.items()
    seconds = float(np.median(ours))
    keys["milliseconds"] = 1e3 * seconds
    keys["roof_fraction"] = None if roof_seconds is None else roof_seconds / seconds
    keys["tokens_per_second"] = None if tokens is None else tokens / seconds
    if not others:
        return [Row(name=name, **keys)]
    found = []
    for alternative, theirs in others:
        ratio, spread = paired(ours, theirs)
        median = float(np.median(theirs))
        speed = None if tokens is None else tokens / median
        found.append(
            Row(
                name=name,
                alternative=alternative,
                alternative_milliseconds=1e3 * median,
                alternative_tokens_per_second=speed,
                ratio=ratio,
                spread=spread,
                **keys,
            )
        )
    return found
