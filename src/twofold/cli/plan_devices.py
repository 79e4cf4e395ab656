"""What `twofold plan --device` adds: a table for each device, with every assumption."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from twofold.analysis.device_plan import DevicePlan, Use, assumptions
from twofold.analysis.devices import Device, find_devices
from twofold.cli.grids import drawn, of_columns
from twofold.cli.quantities import mib


def asked_devices(
    names: Sequence[str] | None, file: Path | None, *, price: float | None, efficiency: float | None
) -> tuple[Device, ...]:
    """The devices named, none where none is. ValueError for options that mean nothing without one."""
    if names:
        return find_devices(names, file)
    without = {"--devices": file, "--price": price, "--efficiency": efficiency}
    given = [option for option, value in without.items() if value is not None]
    if given:
        raise ValueError(f"{given[0]} needs a device: add --device, such as --device H100")
    return ()


def by_name(plans: Sequence[DevicePlan], name: str) -> list[dict[str, Any]]:
    """The plans of one model, or of one way to cache it, as JSON takes them."""
    return [one.as_dict() for one in plans if one.name == name]


def device_tables(plans: Sequence[DevicePlan]) -> list[RenderableType]:
    """For each device its table and what it rests on, and for all what is counted."""
    if not plans:
        return []
    devices = list(dict.fromkeys(plan.device.name for plan in plans))
    shown: list[RenderableType] = []
    for name in devices:
        of_device = [plan for plan in plans if plan.device.name == name]
        shown += ["", _table(of_device), assumptions(of_device[0].device, of_device[0].use)]
    return [*shown, "", *_counted(plans[0].use)]


def _counted(use: Use) -> list[str]:
    price = "" if use.price_per_hour is None else f" The price is {use.price_per_hour:g} per hour, of full hours."
    return [
        f"A step makes one token of each sequence; sequences: {use.batch:,}, each of {use.context:,} tokens; weights "
        f"and rows in {use.dtype}; weights are read once per step, rows once per sequence. "
        "Time is the larger of bytes over bandwidth and operations over the peak, two operations per multiply-add: "
        "a bound that no program beats, not a measurement.",
        "Prefill is of all prompts of that length, the masked half of the scores counted. Room is left for neither "
        f"activations nor the framework.{price}",
    ]


def _table(plans: Sequence[DevicePlan]) -> Table:
    priced = plans[0].use.price_per_hour is not None
    columns: list[tuple[str, list[str]]] = [
        (plans[0].device.name, [plan.name for plan in plans]),
        ("weights\nMiB/step", [mib(plan.decode.weight_bytes) for plan in plans]),
        ("rows\nMiB/step", [mib(plan.decode.row_bytes) for plan in plans]),
        ("FLOP\n/byte", [f"{plan.decode.intensity:,.2f}" for plan in plans]),
        ("ms\n/step", [milliseconds(plan.decode_time.seconds) for plan in plans]),
        ("bound\nby", [plan.decode_time.bound for plan in plans]),
        ("tokens\n/s", [rate(plan.tokens_per_second) for plan in plans]),
        ("prefill\ns", [_three_digits(plan.prefill_time.seconds) for plan in plans]),
        ("fits", ["yes" if plan.fits else "no" for plan in plans]),
        ("most\nseqs", [f"{plan.largest_batch:,}" for plan in plans]),
        (
            "longest\ncontext",
            ["any" if plan.largest_context is None else f"{plan.largest_context:,}" for plan in plans],
        ),
    ]
    if priced:
        columns.append(("price/10⁶\ntokens", [_price(plan.price_per_million_tokens) for plan in plans]))
    return drawn(of_columns(columns))


def milliseconds(seconds: float) -> str:
    """Milliseconds with three digits: `0.125`, `57.1`, `1,234`."""
    return _three_digits(1_000 * seconds)


def rate(per_second: float) -> str:
    """A number per second with three digits and no exponent."""
    return _three_digits(per_second)


def _three_digits(number: float) -> str:
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}" if number >= 0.001 else f"{number:.2e}"


def _price(price: float | None) -> str:
    return "–" if price is None else _three_digits(price)
