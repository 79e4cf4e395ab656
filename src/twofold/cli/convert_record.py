"""What a conversion that shares leaves behind: conversion.json, checked when made and when read; its table."""

from __future__ import annotations

from pathlib import Path

from pydantic import FiniteFloat, NonNegativeInt, PositiveInt
from rich.table import Table

from twofold.cli.grids import Grid, drawn
from twofold.study.record import Environment, NotNegative, Part, read_checked

RECORD_FILE = "conversion.json"
REMEDY = "--show takes a folder that `twofold convert … --to VARIANT` wrote"
HEADINGS = ["layer", "variant", "cached", "lost", "of keys", "of values", "output lost", "refitted"]


class LayerPart(Part):
    """As `conversion.share.LayerRecord`, which says what the numbers are."""

    layer: NonNegativeInt
    variant: str
    cache_numbers: PositiveInt
    lost: NotNegative
    lost_key: NotNegative
    lost_value: NotNegative
    output_lost_unfitted: NotNegative
    output_lost: NotNegative


class FittedPart(Part):
    """The text that was fitted to: its hash, and how many windows of how many tokens."""

    sources: tuple[str, ...]
    sha256: str
    windows: tuple[PositiveInt, PositiveInt]


class PerplexityPart(Part):
    """Perplexities per token on a text, of the model and of what was made of it."""

    source: str
    sha256: str
    tokens: PositiveInt
    before: FiniteFloat
    after: FiniteFloat


class ConversionRecord(Part):
    """A conversion: `conversion.share.SharingRecord`, with what was converted by which command, and where."""

    model: str
    command: str
    to: str
    method: str
    variant: str
    tokens: PositiveInt
    refit: bool
    rotary_pairs: tuple[NonNegativeInt, ...]
    cache_numbers_before: PositiveInt
    cache_numbers: PositiveInt
    cache_share: NotNegative
    layers: tuple[LayerPart, ...]
    text: FittedPart
    perplexity: PerplexityPart | None
    environment: Environment


def read_record(place: Path) -> ConversionRecord:
    """The record in a folder, or that file. ValueError where there is no sound one."""
    return read_checked(place / RECORD_FILE if place.is_dir() else place, ConversionRecord, REMEDY)


def lines(record: ConversionRecord) -> list[Table | str]:
    """For the terminal: a line for each layer that was made anew, and what holds for all."""
    said = [
        f"{record.variant} by {record.method}, fitted to {record.tokens:,} tokens.",
        f"Cached numbers per token: {record.cache_numbers_before:,} before, {record.cache_numbers:,} now "
        f"({record.cache_share:.1%}).",
    ]
    if record.perplexity is not None:
        scored = record.perplexity
        said.append(
            f"Perplexity on {scored.source}: {scored.before:,.2f} before, {scored.after:,.2f} now "
            f"({scored.tokens:,} tokens)."
        )
    return [drawn(_grid(record)), *said]


def _grid(record: ConversionRecord) -> Grid:
    rows = [
        [
            str(one.layer),
            one.variant,
            f"{one.cache_numbers:,}",
            *(f"{lost:.4f}" for lost in (one.lost, one.lost_key, one.lost_value)),
            f"{one.output_lost_unfitted:.4f}",
            f"{one.output_lost:.4f}" if record.refit else "–",
        ]
        for one in record.layers
    ]
    return Grid(HEADINGS, rows, labels=2)
