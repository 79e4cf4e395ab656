"""Tables of `twofold fold`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from twofold.cli.grids import Grid
from twofold.cli.output import table
from twofold.cli.quantities import mib

ROUNDING = 1e-6
"""Differences of float32 logits that count as none."""

if TYPE_CHECKING:
    from twofold.folding.report import FoldingReport, LayerReport


def heading(report: FoldingReport) -> str:
    """What was asked for, and the cache before and after as a whole."""
    share = report.bytes_after / report.bytes_before if report.bytes_before else 1.0
    return (
        f"{report.model_type}, {len(report.layers)} layers, {report.batch} × {report.context:,} tokens in "
        f"{report.dtype}: cache {mib(report.bytes_before)} MiB, folded {mib(report.bytes_after)} MiB ({share:.1%})"
    )


def layer_table(report: FoldingReport) -> Table:
    """One line for each run of layers that are alike."""
    shown = table()
    for header, right in (
        ("layers", True),
        ("kind", False),
        ("form", False),
        ("numbers\n/token", True),
        ("\nfolded", True),
        ("cache\nMiB", True),
        ("\nfolded", True),
        ("why", False),
    ):
        shown.add_column(header, justify="right" if right else "left", no_wrap=header != "why")
    by_kind = sorted(report.layers, key=lambda layer: (_alike(layer), layer.layer))
    for _, alike in groupby(by_kind, key=_alike):
        layers = list(alike)
        first = layers[0]
        shown.add_row(
            _numbers([layer.layer for layer in layers]),
            first.kind,
            first.form or "–",
            f"{first.numbers_before:,}",
            f"{first.numbers_after:,}" if first.form else "",
            mib(sum(layer.bytes_before for layer in layers)),
            mib(sum(layer.bytes_after for layer in layers)) if first.form else "",
            first.why,
        )
    return shown


def parity_grid(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """Folded against stock, one line for each family, form and dtype."""
    words = ("family", "form", "dtype")
    headings = [*words, "logits off by", "stock's own", "greedy", "beams", "bytes", "bytes folded"]
    told = {True: "equal", False: "differ"}
    return Grid(
        headings,
        [
            [
                *(row[name] for name in words),
                *(f"{row[name]:.1e}" for name in ("max_logit_difference", "stock_difference")),
                *(told[row[name]] for name in ("greedy_equal", "beam_equal")),
                *(f"{row[name]:,}" for name in ("bytes_before", "bytes_after")),
            ]
            for row in rows
        ],
        labels=len(words),
    )


def parity_remarks(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How to read the table, and what it comes to."""
    exact = [row for row in rows if row["dtype"] == "float32"]
    within = [row for row in exact if row["max_logit_difference"] <= 2 * max(row["stock_difference"], ROUNDING)]
    searched = [row for row in exact if row["greedy_equal"] and row["beam_equal"]]
    return [
        "logits off by: the largest difference of any logit, folded from stock; stock's own: of its SDPA from its "
        "eager attention, or of a batch from each of its texts; bytes: of folded layers' caches, of two short texts",
        f"in float32 {len(within)} of {len(exact)} are within twice stock's own (or {ROUNDING:.0e}), and "
        f"{len(searched)} of {len(exact)} generate the same tokens, greedily and by beams",
    ]


def check_lines(found: dict[str, Any]) -> list[str | Text]:
    """What `--check` found."""
    told = {True: "equal", False: "differ"}
    off, own = found["max_logit_difference"], found["stock_difference"]
    lines: list[str | Text] = [
        "",
        f"checked in {found['dtype']} on {found['tokens']} tokens of {found['text']}: logits differ by at most "
        f"{off:.1e} (stock's SDPA from its eager attention: {own:.1e}); greedy tokens {told[found['greedy_equal']]}, "
        f"beams {told[found['beam_equal']]}",
    ]
    if off > 2 * own:
        lines.append(Text("warning: that is more than twice stock's own difference", style="yellow"))
    return lines


def _alike(layer: LayerReport) -> tuple[Any, ...]:
    return (layer.form is None, layer.kind, layer.form or "", layer.why, layer.numbers_before, layer.numbers_after)


def _numbers(layers: Sequence[int]) -> str:
    """`5, 11, …, 59 (10)` for many, each for few."""
    if len(layers) <= 4:
        return ", ".join(map(str, layers))
    return f"{layers[0]}, {layers[1]}, …, {layers[-1]} ({len(layers)})"
