"""What `twofold explain` prints in the terminal: a line for each layer, and the means."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.table import Table

from twofold.cli.output import table
from twofold.explain.record import Explanation, LayerMeasures


class Column(NamedTuple):
    """One measure of the table: its section and name in the record, and how it is printed."""

    heading: str
    section: str
    name: str
    form: str = ".3f"


COLUMNS = (
    Column("cosine\nK–V", "similarity", "cosine_kv", "+.4f"),
    Column("\nrandom", "similarity", "cosine_kv_random", "+.4f"),
    Column("overlap\nK–V", "similarity", "overlap_kv"),
    Column("\nrandom", "similarity", "overlap_kv_random"),
    Column("rank\nK", "rank", "k", ".1f"),
    Column("rank\nV", "rank", "v", ".1f"),
    Column("\nof", "rank", "k_most", ".0f"),
    Column("CKA\nK–V", "similarity", "cka_kv"),
    Column("\nrandom", "similarity", "cka_kv_random"),
    Column("R²\nV from K", "similarity", "r2_v_from_k"),
    Column("\nrandom", "similarity", "r2_v_from_k_random"),
)
LABELS = "AB"


def heading(found: Sequence[Explanation]) -> list[str]:
    """A line for each model: its name, what it is, and what it read."""
    lines = []
    for label, one in zip(LABELS, found, strict=False):
        facts = ", ".join(f"{name} {value}" for name, value in one.architecture.items())
        read = f"; read {one.text.tokens:,} tokens of {one.text.source}" if one.text else ""
        variant = f" {one.variant}" if one.variant else ""
        lines.append(f"{label + '  ' if len(found) > 1 else ''}{one.model}{variant}: {facts}{read}")
    return lines


def layer_table(found: Sequence[Explanation]) -> Table:
    """Measures by layer, and their means; of two models one below the other in each layer."""
    columns = [column for column in COLUMNS if any(one.series(column.section, column.name) for one in found)]
    shown = table()
    for name in ["layer", *(["model"] if len(found) > 1 else [])]:
        shown.add_column(f"\n{name}", no_wrap=True)
    for column in columns:
        shown.add_column(column.heading, justify="right", no_wrap=True)
    by_layer = [{layer.layer: layer for layer in one.layers} for one in found]
    for number in sorted({number for layers in by_layer for number in layers}):
        for label, layers in zip(LABELS, by_layer, strict=False):
            if number in layers:
                _row(shown, str(number), label, len(found) > 1, columns, _of_layer(layers[number]))
    shown.add_section()
    for label, one in zip(LABELS, found, strict=False):
        _row(shown, "mean", label, len(found) > 1, columns, _of_all(one))
    return shown


def remarks(found: Sequence[Explanation]) -> list[str]:
    """The notes of the records, each once."""
    return list(dict.fromkeys(note for one in found for note in one.notes))


Numbers = Callable[[Column], float | None]


def _of_layer(layer: LayerMeasures) -> Numbers:
    return lambda column: layer.number(column.section, column.name)


def _of_all(one: Explanation) -> Numbers:
    def mean(column: Column) -> float | None:
        values = [value for value in one.series(column.section, column.name) if value is not None]
        return statistics.fmean(values) if values else None

    return mean


def _row(shown: Table, name: str, label: str, several: bool, columns: Sequence[Column], number: Numbers) -> None:
    cells = [_cell(number(column), column.form) for column in columns]
    shown.add_row(name, *([label] if several else []), *cells)


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}".replace("-", "−")
