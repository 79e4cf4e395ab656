"""How many training tokens each variant takes to a training loss: quality as a saving of work."""

from __future__ import annotations

import math
from collections.abc import Sequence

from twofold.study.record import CurvePoint, Labelled, Run
from twofold.study.results import Results


class Progress(Labelled):
    """Training tokens to a loss, one number per seed; None where that seed's curve never gets there.

    `mean` is there where all seeds get there. `to_baseline` is the mean over the mean of the study's baseline with the
    same seeds, where all of both get there: 0.5 is half of its tokens.
    """

    seeds: tuple[int, ...]
    tokens: tuple[int | None, ...]
    mean: float | None
    to_baseline: float | None


def progress_to(loss: float, results: Results) -> tuple[Progress, ...]:
    """Every variant's training tokens to a training `loss` in nats per token. ValueError where that is no loss."""
    if not (math.isfinite(loss) and loss > 0):
        raise ValueError(f"a training loss is a number of nats per token above 0, not {loss:g}")
    by_label = {entry.label: [r for r in results.runs if r.label == entry.label] for entry in results.summary}
    baseline = {run.seed: tokens_to(loss, run.curve) for run in by_label[results.baseline]}
    return tuple(_progress(loss, runs, baseline) for runs in by_label.values())


def tokens_to(loss: float, curve: Sequence[CurvePoint]) -> int | None:
    """Tokens at the first point of a curve that is no higher than `loss`; None where none is.

    A point is the mean over the steps since the one before it, so a lucky batch alone does not count.
    """
    return next((point.tokens for point in curve if point.loss <= loss), None)


def _progress(loss: float, runs: Sequence[Run], baseline: dict[int, int | None]) -> Progress:
    tokens = [tokens_to(loss, run.curve) for run in runs]
    mean = _mean(tokens)
    theirs = _mean([baseline.get(run.seed) for run in runs])
    return Progress(
        label=runs[0].label,
        variant=runs[0].variant,
        seeds=tuple(run.seed for run in runs),
        tokens=tuple(tokens),
        mean=mean,
        to_baseline=mean / theirs if mean and theirs else None,
    )


def _mean(tokens: Sequence[int | None]) -> float | None:
    known = [count for count in tokens if count is not None]
    return sum(known) / len(known) if len(known) == len(tokens) else None
