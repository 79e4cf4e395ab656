"""A healing's numbers as finished texts, for the page and for the terminal. No plotly."""

from __future__ import annotations

from typing import NamedTuple

from twofold.healing.record import HealRecord, Measured, TrainingRecord
from twofold.report.formats import duration_text, percent_text


class ModelRow(NamedTuple):
    """One model; `share` is its cache's part of the teacher's."""

    name: str
    variant: str
    perplexity: str
    bits_per_byte: str
    cache: str
    share: str
    recall: str


class TrainingRow(NamedTuple):
    """How one model was trained."""

    name: str
    tokens: str
    steps: str
    trained: str
    time: str
    speed: str
    best: str


def model_rows(record: HealRecord) -> list[ModelRow]:
    """A row for each model: quality, cache and recall."""
    return [_model(name, found, record.before) for name, found in record.rows()]


def training_rows(record: HealRecord) -> list[TrainingRow]:
    """A row for the healed model, and one for the control where there is one."""
    each = {"healed": record.training} | ({"control": record.control.training} if record.control else {})
    return [_training(name, trained) for name, trained in each.items()]


def _model(name: str, found: Measured, before: Measured) -> ModelRow:
    return ModelRow(
        name,
        found.variant,
        f"{found.validation.perplexity:,.3f}",
        f"{found.validation.bits_per_byte:.4f}",
        f"{found.cache_bytes_per_token:,.0f}",
        percent_text(found.cache_bytes_per_token / before.cache_bytes_per_token),
        f"{100 * found.recall.accuracy:.1f} ± {100 * found.recall.standard_error:.1f} %",
    )


def _training(name: str, trained: TrainingRecord) -> TrainingRow:
    return TrainingRow(
        name,
        f"{trained.tokens:,}",
        f"{trained.steps:,}",
        f"{trained.trained:,}",
        duration_text(trained.seconds),
        f"{trained.tokens_per_second:,.0f}",
        f"{trained.best.perplexity:,.3f} after {trained.best.tokens:,}",
    )
