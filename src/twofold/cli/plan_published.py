"""`twofold plan --config`: the cache of a published model, layer kind by layer kind, from its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from twofold.analysis.published_plan import LayerKind, PublishedPlan, Row
from twofold.cli.grids import drawn, of_columns
from twofold.cli.output import show, table
from twofold.cli.plan_devices import device_tables
from twofold.cli.quantities import mib, percent

if TYPE_CHECKING:
    from twofold.analysis.existing import ExistingPlan


def show_existing(found: ExistingPlan, *before: str) -> None:
    """Print what a published model caches, after the lines `before`."""
    plan = found.plan
    notes = [f"{kind.kind}: {line}" for kind in plan.kinds for line in _at_own_widths(kind)]
    warnings = [Text(f"warning: {line}", style="yellow") for line in plan.warnings]
    shown = (_heading(plan), "", _layers(plan), "", _figures(plan), *device_tables(found.on_devices), "")
    show(*before, *shown, *notes, *plan.notes, *warnings)


def _heading(plan: PublishedPlan) -> str:
    counted = ""
    if plan.parameters is not None and plan.weight_bytes is not None:
        counted = f"{plan.parameters:,} parameters, weights {mib(plan.weight_bytes)} MiB;\n"
    return f"{plan.model_type}, {plan.layers} layers; {counted}{'weights and ' if counted else ''}cache in {plan.dtype}"


def _layers(plan: PublishedPlan) -> Table:
    """One line for each kind of rows in each kind of layer."""
    shown = table()
    headers = (
        "layers",
        "kind",
        "keeps",
        "KV heads\n/query",
        "numbers\n/row",
        "window",
        "stored\n/row",
        "share of\nMHA",
    )
    for header in headers:
        left = header in ("kind", "keeps")
        shown.add_column(header, justify="left" if left else "right", no_wrap=True)
    for kind in plan.kinds:
        share = "–" if kind.share_of_own_widths is None else percent(kind.share_of_own_widths)
        first = [f"{kind.layers}", kind.kind]
        for row in kind.rows:
            shown.add_row(*first, _keeps(row), _heads(row, kind), f"{row.numbers:,}", _window(row), _stored(row), share)
            first, share = ["", ""], ""
        if not kind.rows:
            shown.add_row(*first, "nothing", *[""] * 5)
    return shown


def _keeps(row: Row) -> str:
    if row.unfinished:
        return row.what
    return row.what if row.tokens_per_row == 1 or row.window == 1 else f"{row.what}, 1 per {row.tokens_per_row} tokens"


def _heads(row: Row, kind: LayerKind) -> str:
    return f"{row.kv_heads}/{kind.query_heads}" if kind.query_heads else "–"


def _window(row: Row) -> str:
    if row.unfinished:
        return f"<{row.tokens_per_row}"
    return "–" if row.window is None else f"{row.window:,}"


def _stored(row: Row) -> str:
    return "?" if row.stored is None else f"{row.stored:,}"


def _figures(plan: PublishedPlan) -> Table:
    columns = [
        ("cache", [one.name for one in plan.figures]),
        ("bytes\n/token", [_number(one.bytes_per_token) for one in plan.figures]),
        ("past all\nwindows", [_number(one.bytes_per_token_past_windows) for one in plan.figures]),
        (f"MiB\n/{plan.context:,}", [mib(one.bytes) for one in plan.figures]),
        ("share of\nMHA", [f"{100 * one.share:.4g} %" for one in plan.figures]),
    ]
    if plan.batch > 1:
        columns.insert(4, (f"MiB\n/batch {plan.batch}", [mib(one.bytes_batch) for one in plan.figures]))
    if plan.memory_bytes is not None:
        columns.append(("these\nfit", [f"{one.sequences_that_fit:,}" for one in plan.figures]))
    return drawn(of_columns(columns))


def _number(value: float) -> str:
    """Thousands separators, and decimals only where there are any."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def _at_own_widths(kind: LayerKind) -> list[str]:
    """Where keys and values differ in width there are two yardsticks, and both are printed."""
    if kind.key_dim == kind.value_dim or kind.share_of_own_widths is None or kind.share_of_value_width is None:
        return []
    heads, key, value = kind.query_heads, kind.key_dim, kind.value_dim
    numbers = sum(row.numbers for row in kind.rows)
    return [
        f"{numbers:,} numbers per token and layer: {percent(kind.share_of_own_widths)} of keys and values at their own "
        f"widths, {heads}·({key} + {value}), and {percent(kind.share_of_value_width)} of 2·{heads}·{value}."
    ]
