"""What `twofold advise` prints: the assumptions, a table, the reasons, and what must not be overlooked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from twofold.analysis.device_plan import Use, assumptions
from twofold.analysis.devices import Device
from twofold.cli.output import show, table
from twofold.cli.plan_devices import milliseconds, rate
from twofold.cli.quantities import mib

if TYPE_CHECKING:
    from twofold.models.architecture import Architecture
    from twofold.study.ranking_record import Ask, Ranked, Ranking

VERDICTS = {"meets": "met", "open": "open", "misses": "missed", None: "–"}


def show_ranking(ranking: Ranking, model: Architecture, devices: Sequence[Device], *before: str) -> None:
    """Print a ranking for people, after the lines `before`."""
    reasons = [line for entry in ranking.ranked for line in _reasons(entry)]
    assumed = [_sizes(model), *_assumed(ranking.ask, devices)]
    show(*before, *assumed, "", _table(ranking), "", ranking.headline, "", *reasons, "", *ranking.notes)


def _sizes(model: Architecture) -> str:
    positions = "learned" if model.learned_positions else "rotary"
    return (
        f"assumed model: {model.layers} layers, width {model.width:,}, {model.heads} query heads of {model.head_dim}, "
        f"MLP {model.mlp:,}, vocabulary {model.vocab:,}, {model.block} block, {positions} positions to "
        f"{model.positions:,}"
    )


def _assumed(ask: Ask, devices: Sequence[Device]) -> list[str]:
    """Every assumption of the use, a line for each kind."""
    memory = "no memory budget" if ask.memory_bytes is None else f"{mib(ask.memory_bytes)} MiB for both"
    quality = "no quality budget" if ask.quality is None else f"at most {ask.quality:g} % of {ask.baseline}'s lost"
    use = Use(ask.context, ask.batch, ask.dtype, ask.efficiency, ask.price_per_hour)
    price = "" if ask.price_per_hour is None else f"; price {ask.price_per_hour:g} per hour"
    return [
        f"assumed use: sequences at once {ask.batch:,}, tokens in each {ask.context:,}; weights and cache in "
        f"{ask.dtype}, {memory}, none for activations and the framework; bits per byte: {quality}",
        *(f"assumed device, {assumptions(device, use)}{price}" for device in devices),
    ]


def _table(ranking: Ranking) -> Table:
    ask, ranked = ranking.ask, ranking.ranked
    columns = [
        ("", [f"{entry.rank}" for entry in ranked]),
        ("variant", [entry.variant for entry in ranked]),
        ("weights\nMiB", [mib(entry.weight_bytes) for entry in ranked]),
        ("cache\nMiB", [mib(entry.cache_bytes) for entry in ranked]),
        ("fits", [{True: "yes", False: "no", None: "–"}[entry.fits] for entry in ranked]),
        ("quality\nto baseline", [difference(entry) for entry in ranked]),
        ("from", [entry.source for entry in ranked]),
    ]
    if ask.quality is not None:
        columns.append((f"{ask.quality:g} %\nwhere measured", [VERDICTS[entry.verdict] for entry in ranked]))
    if ranked[0].device is not None:
        of_devices = [entry.device or {} for entry in ranked]
        columns.append(("ms/step\nat best", [milliseconds(one["decode"]["seconds"]) for one in of_devices]))
        columns.append(("tokens/s\nat best", [rate(one["tokens_per_second"]) for one in of_devices]))
    shown = table()
    for header, _ in columns:
        left = header in ("variant", "from")
        shown.add_column(header, justify="left" if left else "right", no_wrap=True)
    for cells in zip(*(values for _, values in columns), strict=True):
        shown.add_row(*cells)
    return shown


def difference(entry: Ranked) -> str:
    """The difference in percent with its interval; that of a published figure's loss is marked by a question mark."""
    if entry.source == "baseline":
        return "baseline"
    if entry.percent is None:
        return "unknown"
    shown = f"{entry.percent:+.2f} %"
    if entry.interval is not None:
        return f"{shown} [{entry.interval[0]:+.2f}, {entry.interval[1]:+.2f}]"
    return f"{shown} ?"


def _reasons(entry: Ranked) -> list[RenderableType]:
    warnings = [Text(f"   warning: {line}", style="yellow") for line in entry.warnings]
    return [f"{entry.rank}. {entry.variant}", *(f"   {line}." for line in entry.reasons), *warnings]
