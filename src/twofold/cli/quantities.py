"""Quantities as people write and read them: sizes of memory, bytes, shares."""

from __future__ import annotations

import re
from fractions import Fraction

MIB = 2**20

_UNITS = {
    "": 1,
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", start=1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", start=1)},
}
_BY_LOWER = {unit.lower(): factor for unit, factor in _UNITS.items()}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Bytes from `24GiB` (2³⁰ each), `24GB` (10⁹ each), `1.5TiB`, `512MiB`, or a plain number of bytes.

    Raises ValueError, naming the accepted forms, for anything else: `24G` does not say which of the two it means.
    """
    match = _SIZE.fullmatch(text.strip().replace("_", "").replace(",", ""))
    factor = _BY_LOWER.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(
            f"cannot read {text!r} as an amount of memory: write 24GiB (2^30 bytes each), 24GB (10^9 each), "
            "512MiB, 512MB, or a plain number of bytes"
        )
    # Fractions, so that 0.1GB is 100,000,000 and not one byte off.
    return int(Fraction(match[1]) * factor)


def parse_count(text: str) -> int:
    """A count from `1_200_000`, `1,200,000`, `1.2M`, `300K` or `2B`; raises ValueError for anything else."""
    match = _SIZE.fullmatch(text.strip().replace("_", "").replace(",", ""))
    factor = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"cannot read {text!r} as a number of tokens: write 1200000, 1_200_000, 1.2M, 300K or 2B")
    return int(Fraction(match[1]) * factor)


def mib(number: int) -> str:
    """Bytes in MiB = 2²⁰ bytes with thousands separators: two decimals, more where they would show only zeros."""
    amount = number / MIB
    decimals = 2 if amount >= 0.1 or amount == 0 else 5
    return f"{amount:,.{decimals}f}"


def percent(ratio: float) -> str:
    """A ratio in percent, with every digit that it has: `3.125 %`."""
    return f"{100 * ratio:.6g} %"
