"""How long work takes on a device at best: the larger of its bytes over bandwidth and its operations over the peak.

The roofline model (Williams, Waterman and Patterson 2009): reading and computing overlap fully, and nothing else costs
time, neither launches nor caches nor the network. Real steps take longer; `efficiency` takes a share of both roofs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from twofold.analysis.devices import Device

SECONDS_PER_HOUR = 3_600
MILLION = 1_000_000
LEAST_EFFICIENCY = 1e-3


@dataclass(frozen=True)
class Work:
    """What one step moves and computes: bytes of weights and of rows, and multiply-accumulates."""

    weight_bytes: int
    row_bytes: int
    macs: int

    @property
    def bytes(self) -> int:
        """All bytes that memory moves."""
        return self.weight_bytes + self.row_bytes

    @property
    def flops(self) -> int:
        """Floating-point operations: two for each multiply-accumulate."""
        return 2 * self.macs

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: operations for each byte."""
        return self.flops / self.bytes

    def as_dict(self) -> dict[str, int | float]:
        """The work as JSON takes it, with what follows from it."""
        return {**asdict(self), "bytes": self.bytes, "flops": self.flops, "intensity": self.intensity}


@dataclass(frozen=True)
class Roof:
    """Seconds that a device takes for some work at best."""

    memory_seconds: float
    compute_seconds: float

    @property
    def seconds(self) -> float:
        """The larger of the two, which the other hides behind."""
        return max(self.memory_seconds, self.compute_seconds)

    @property
    def bound(self) -> Literal["memory", "compute"]:
        """Which of the two it is."""
        return "memory" if self.memory_seconds >= self.compute_seconds else "compute"

    def as_dict(self) -> dict[str, Any]:
        """The times as JSON takes them."""
        return {**asdict(self), "seconds": self.seconds, "bound": self.bound}


def roof(work: Work, device: Device, dtype: str, efficiency: float = 1.0) -> Roof:
    """Seconds for `work` on numbers stored as `dtype`, at the share `efficiency` of both roofs.

    Raises ValueError for an efficiency below 0.001 or above 1, and for a dtype that the device lacks.
    """
    if not LEAST_EFFICIENCY <= efficiency <= 1:
        raise ValueError(
            f"efficiency is a share of the roof, at least {LEAST_EFFICIENCY:g} and at most 1, not {efficiency:g}"
        )
    return Roof(
        memory_seconds=work.bytes / (efficiency * device.bandwidth),
        compute_seconds=work.flops / (efficiency * device.peak(dtype)),
    )


def price_per_million(price_per_hour: float, tokens_per_second: float) -> float:
    """Price of a million tokens: price / (tokens per second · 3,600) · 10⁶, in the currency of the price.

    Raises ValueError for a price that is not a number of at least 0.
    """
    if not 0 <= price_per_hour < float("inf"):
        raise ValueError(f"a price per hour is a number of at least 0, not {price_per_hour:g}")
    return price_per_hour / (tokens_per_second * SECONDS_PER_HOUR) * MILLION
