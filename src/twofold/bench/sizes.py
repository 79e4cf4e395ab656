"""What is measured: the variants, the model of 15 million parameters, and how much of it all. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from twofold.models.architecture import Architecture
from twofold.models.presets import architecture

DTYPE = "float32"
"""What models are measured in. Attention alone is also measured over smaller rows."""

GROUPS = (4, 2)
"""Key/value heads of the GQA variants: the first that the query heads can be shared out among."""

_15M: dict[str, Any] = {
    "layers": 6,
    "width": 384,
    "heads": 6,
    "mlp": 1_032,
    "vocab": 11_264,
    "positions": 32_768,
}
"""QKV has 15,002,496 parameters with the modern block; 11,264 tokens, whose embedding is also the head."""


@dataclass(frozen=True)
class Effort:
    """How long to measure: `repeats` rounds, and only a few sizes and variants where it is to be `quick`."""

    repeats: int
    quick: bool = False

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise ValueError(f"--repeats must be at least 1, not {self.repeats}")


def variants(heads: int, quick: bool = False) -> tuple[str, ...]:
    """The eight variants of arXiv 2606.04032's decoders in a model of `heads` query heads; `quick`: the extremes."""
    if quick:
        return ("QKV", "K=V", "K=V MQA")
    groups = next((g for g in GROUPS if heads % g == 0 and g < heads), 1)
    grouped = (f"GQA-{groups}", f"K=V GQA-{groups}") if groups > 1 else ()
    return ("QKV", "Q=K", "K=V", "Q=K=V", *grouped[:1], "MQA", *grouped[1:], "K=V MQA")


def fifteen_million(variant: str = "QKV", block: str = "modern", **others: Any) -> Architecture:
    """The decoder of 15 million parameters; other variants have fewer."""
    return Architecture(**{**_15M, "variant": variant, "block": block, **others})


def sized(name: str, variant: str = "QKV", **others: Any) -> Architecture:
    """A size by its name: `15M`, or a preset's. Raises ValueError for an unknown one."""
    return fifteen_million(variant, **others) if name == "15M" else architecture(name, variant=variant, **others)
