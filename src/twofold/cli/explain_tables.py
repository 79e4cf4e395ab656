"""What `twofold explain` prints: a line for each layer and the means, in the terminal or as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from twofold.cli.grids import Grid
from twofold.explain.record import Explanation, LayerMeasures


class Column(NamedTuple):
    """One measure of the table: its section and name in the record, and how it is printed."""

    heading: str
    section: str
    name: str
    form: str = ".3f"


COLUMNS = (
    Column("cosine\nK–V", "similarity", "cosine_kv", "+.4f"),
    Column("\nQ–K", "similarity", "cosine_qk", "+.4f"),
    Column("\nQ–V", "similarity", "cosine_qv", "+.4f"),
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
SHARING_COLUMNS = (
    Column("joint factor\nforetold", "sharing", "joint_predicted"),
    Column("\nby weights", "sharing", "joint_predicted_weights"),
    Column("\nnats/token", "sharing", "joint_loss", "+.4f"),
    Column("values from keys\nforetold", "sharing", "value_from_key_predicted"),
    Column("\nby weights", "sharing", "value_from_key_predicted_weights"),
    Column("\nnats/token", "sharing", "value_from_key_loss", "+.4f"),
)
WAYS = {"joint": "joint factor", "value_from_key": "values from keys"}
LABELS = "AB"


def heading(found: Sequence[Explanation]) -> list[str]:
    """A line for each model: its name, what it is, and what it read."""
    lines = []
    for label, one in zip(LABELS, found, strict=False):
        facts = ", ".join(f"{name} {value}" for name, value in one.architecture.items())
        read = f"; read {one.text.tokens:,} tokens of {one.text.source}" if one.text else ""
        variant = f" {one.variant}" if one.variant else ""
        lines.append(f"{label + '  ' if len(found) > 1 else ''}{one.model}{variant}: {facts}{read}")
        if one.sharing:
            lines.append(
                f"Sharing was fitted on {one.sharing.fitted_tokens:,} tokens; on {one.sharing.scored_tokens:,} others "
                f"the model's own loss is {one.sharing.baseline_loss:.4f} nats per token."
            )
    return lines


def tables(found: Sequence[Explanation]) -> list[Grid]:
    """The measures by layer; where the cost of sharing was measured also this by layer, and what went with it."""
    made = [layer_grid(found, COLUMNS)]
    if any(one.sharing for one in found):
        made += [layer_grid(found, SHARING_COLUMNS), _correlations(found)]
    return made


def layer_grid(found: Sequence[Explanation], columns: Sequence[Column]) -> Grid:
    """Measures by layer, and their means; of two models one below the other in each layer."""
    columns = [column for column in columns if any(one.series(column.section, column.name) for one in found)]
    several = len(found) > 1
    labels = ["layer", *(["model"] if several else [])]
    by_layer = [{layer.layer: layer for layer in one.layers} for one in found]
    rows = []
    for number in sorted({number for layers in by_layer for number in layers}):
        for label, layers in zip(LABELS, by_layer, strict=False):
            if number in layers:
                rows.append(_row(str(number), label, several, columns, _of_layer(layers[number])))
    for label, one in zip(LABELS, found, strict=False):
        rows.append(_row("mean", label, several, columns, _of_all(one)))
    return Grid([f"\n{name}" for name in labels] + [column.heading for column in columns], rows, len(labels))


def _correlations(found: Sequence[Explanation]) -> Grid:
    """Spearman's ρ between what was foretold and what sharing cost, over the layers."""
    several, rows = len(found) > 1, []
    for label, one in zip(LABELS, found, strict=False):
        for pair in one.sharing.correlations if one.sharing else ():
            interval = "–" if pair.low is None or pair.high is None else f"{pair.low:+.2f} to {pair.high:+.2f}"
            named = [WAYS.get(pair.method, pair.method), pair.predictor]
            numbers = [str(pair.layers), _cell(pair.spearman, "+.2f"), interval.replace("-", "−")]
            rows.append([*([label] if several else []), *named, *numbers])
    headings = ["way to share", "foretold by", "layers", "Spearman's ρ", "95 % interval"]
    return Grid([*(["model"] if several else []), *headings], rows, 2 + several)


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


def _row(name: str, label: str, several: bool, columns: Sequence[Column], number: Numbers) -> list[str]:
    return [name, *([label] if several else []), *(_cell(number(column), column.form) for column in columns)]


def _cell(value: float | None, form: str) -> str:
    if value is None:
        return "–"
    text = f"{value:{form}}".replace("-", "−")
    return text.lstrip("+−") if not text.strip("+−0.") else text
