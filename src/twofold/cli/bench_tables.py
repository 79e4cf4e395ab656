"""The tables and lines that `twofold bench` prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from twofold.cli.output import table
from twofold.cli.quantities import mib

if TYPE_CHECKING:
    from rich.table import Table

    from twofold.bench.record import BenchRecord, Machine, Row

LEFT = ("measured", "alternative")
BUSY = 0.75
"""Load average for each thread, before a run, from which its figures say more about others' work."""


def _number(value: float | None, form: str) -> str | None:
    return None if value is None else f"{value:{form}}"


def _cache(row: Row) -> str | None:
    """As an engine reports it, or by the formula where resident bytes stand beside it."""
    size = row.cache_bytes or (row.bytes if row.resident_bytes else None)
    return None if size is None else mib(size)


_CELLS: dict[str, Callable[[Row], str | None]] = {
    "measured": lambda row: row.subject,
    "ms": lambda row: _number(row.milliseconds, ",.3f"),
    "tokens/s": lambda row: _number(row.tokens_per_second, ",.0f"),
    "cache MiB": _cache,
    "resident MiB": lambda row: mib(row.resident_bytes) if row.resident_bytes else None,
    "of formula": lambda row: _number(row.resident_over_formula, ".2%") if row.parameters is None else None,
    "longest context": lambda row: _number(row.context, ",") if row.parameters and row.resident_bytes else None,
    "alternative": lambda row: row.alternative,
    "its ms": lambda row: _number(row.alternative_milliseconds, ",.3f"),
    "its cache MiB": lambda row: None if row.alternative_cache_bytes is None else mib(row.alternative_cache_bytes),
    "of its cache": lambda row: _number(row.cache_share, ".0%"),
    "ratio": lambda row: _number(row.ratio, ".2f"),
    "spread": lambda row: _number(row.spread, ".2f"),
    "of roof": lambda row: _number(row.roof_fraction, ".0%"),
}
"""Heading → what stands below it; a column in which no row has anything is left out."""


def summary(record: BenchRecord) -> Table:
    """One line per row."""
    headings, rows = _table(record)
    shown = table()
    for heading in headings:
        shown.add_column(heading, justify="left" if heading in LEFT else "right", no_wrap=heading == "measured")
    for row in rows:
        shown.add_row(*row)
    return shown


def markdown(record: BenchRecord) -> str:
    """The same in Markdown, with what belongs to it below."""
    headings, rows = _table(record)
    rule = [":--" if heading in LEFT else "--:" for heading in headings]
    lines = [f"| {' | '.join(cells)} |" for cells in (headings, rule, *rows)]
    return "\n".join([*lines, "", *(f"- {line}" for line in remarks(record))])


def remarks(record: BenchRecord) -> list[str]:
    """How to read the table, where it was measured, what is missing, and slopes where there are any."""
    return [*_method(record), *_slopes(record), _where(record.machine), *_disturbed(record), *record.left_out]


def _table(record: BenchRecord) -> tuple[list[str], list[list[str]]]:
    columns = {heading: [cell(row) for row in record.rows] for heading, cell in _CELLS.items()}
    kept = {heading: cells for heading, cells in columns.items() if any(cell is not None for cell in cells)}
    return list(kept), [["–" if cell is None else cell for cell in cells] for cells in zip(*kept.values(), strict=True)]


def _method(record: BenchRecord) -> Sequence[str]:
    if record.bench == "memory":
        if any(row.parameters for row in record.rows):
            return ["resident: the process's largest resident size (VmHWM), Python, torch and weights included"]
        return ["resident: what filling the cache added to a process's resident size (VmRSS); ratio: of the first's"]
    rounds = f"{record.repeats} round{'s' if record.repeats > 1 else ''}"
    return [
        f"medians of {rounds}, all contenders in turn in each; ratio: alternative over ours, the median of the rounds' "
        "ratios, and spread their interquartile range"
    ]


def _slopes(record: BenchRecord) -> list[str]:
    from twofold.bench.slopes import slopes

    if record.bench != "generate":
        return []
    found = []
    for slope in slopes(record):
        bound = (
            "" if slope.at_bandwidth is None else f" (its rows at the read bandwidth: {slope.at_bandwidth / 1e3:.3f})"
        )
        found.append(
            f"{slope.subject}: {slope.per_thousand / 1e3:+.3f} ms per token for 1,000 tokens of context{bound}"
        )
    return found


def _disturbed(record: BenchRecord) -> list[str]:
    """A warning where others kept the processor busy before times were taken."""
    machine = record.machine
    if record.bench == "memory":
        return []
    before = None if machine.load_average is None else machine.load_average[0]
    if before is None or before <= BUSY * machine.threads:
        return []
    return [
        f"NOT RELIABLE: others kept this machine busy (load average {before:.1f} with {machine.threads} threads before "
        "the run); measure again when it is quiet"
    ]


def _where(machine: Machine) -> str:
    roof = "no roof: the native library is missing"
    if machine.read_bandwidth_gbs is not None and machine.fma_peak_gflops is not None:
        roof = f"roof in the same run: {machine.read_bandwidth_gbs:.1f} GB/s, {machine.fma_peak_gflops:.0f} GFLOP/s"
    loads = ""
    if machine.load_average is not None:
        loads = f"; load average {machine.load_average[0]:.2f} before, {machine.load_average[1]:.2f} after"
    threads = f"{machine.threads} thread{'s' if machine.threads > 1 else ''}"
    return f"{machine.processor}, {threads}, {machine.isa or 'no native library'}; {roof}{loads}"
