"""Numbers as a reader sees them: with their unit, a true minus sign, and no more digits than they deserve."""

from __future__ import annotations

from collections.abc import Sequence

from twofold.study.interaction import Interaction
from twofold.study.statistics import Comparison

_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024


def bytes_text(count: float) -> str:
    """Bytes in the largest binary unit that leaves at least 1: `512 B`, `1.5 KiB`, `2 MiB`."""
    power = 0
    while count >= _STEP and power < len(_BINARY_UNITS) - 1:
        count, power = count / _STEP, power + 1
    return f"{_trimmed(count)} {_BINARY_UNITS[power]}"


def count_text(count: float) -> str:
    """A count in short: `734`, `12.3 k`, `0.90 M`, `1.22 G`."""
    if count < 10_000:
        return f"{count:,.0f}"
    for size, unit in ((1e9, "G"), (8e5, "M")):
        if count >= size:
            return f"{count / (1e6 if unit == 'M' else 1e9):.2f} {unit}"
    return f"{count / 1e3:.1f} k"


def times_text(ratio: float) -> str:
    """A factor: `2×`, `10.7×`."""
    return f"{_trimmed(ratio)}×"


def percent_text(fraction: float) -> str:
    """A share in per cent: `12.5 %`."""
    return f"{_trimmed(100 * fraction)} %"


def bits_text(value: float) -> str:
    """Bits per byte with four decimals."""
    return f"{value:.4f}"


def signed_text(value: float) -> str:
    """A difference in bits per byte: `+0.0213`, `−0.0040`, `0.0000`."""
    text = f"{value:+.4f}".replace("-", "−")
    return text[1:] if text[1:].strip("0.") == "" else text


def interval_text(comparison: Comparison | Interaction) -> str:
    """`95 % interval +0.0175 to +0.0251`, or why there is none."""
    if comparison.interval is None:
        reason = "too few documents" if comparison.samples else comparison.method
        return f"no interval: {reason}"
    low, high = comparison.interval
    return f"95 % interval {signed_text(low)} to {signed_text(high)}"


def interaction_text(found: Interaction) -> str:
    """In a sentence, what sharing projections costs beside shared heads against what it costs alone."""
    _, heads, shared, _ = found.cells
    if not found.separable:
        return f"What {shared} costs beside {heads} cannot be told from what it costs alone ({interval_text(found)})."
    more = "more" if found.difference > 0 else "less"
    size = bits_text(abs(found.difference))
    return f"Beside {heads}, {shared} costs {size} bits per byte {more} than alone ({interval_text(found)})."


def list_text(names: Sequence[str]) -> str:
    """`A`, `A and B`, `A, B and C`."""
    *head, last = names
    return f"{', '.join(head)} and {last}" if head else last


def below_bigram_text(labels: Sequence[str]) -> str:
    """Who learnt too little for any comparison, without a full stop: `A and B do not beat a byte-bigram model`."""
    return f"{list_text(labels)} {'does' if len(labels) == 1 else 'do'} not beat a byte-bigram model"


def duration_text(seconds: float) -> str:
    """`48 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def _trimmed(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")
