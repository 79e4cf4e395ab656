"""What arXiv 2606.04032 reports of its language models, and why none of it can stand in for a measurement."""

from __future__ import annotations

import math

SOURCE = "arXiv 2606.04032"
BASELINE = "QKV"

PERPLEXITIES: dict[str, dict[str, float]] = {
    "300M": {
        "QKV": 5.11,
        "K=V": 5.27,
        "Q=K": 5.36,
        "Q=K=V": 6.41,
        "GQA-4": 5.15,
        "MQA": 5.19,
        "K=V GQA-4": 5.32,
        "K=V MQA": 5.36,
    },
    "1.2B": {"QKV": 5.004, "K=V": 5.128, "GQA-8": 5.030, "K=V GQA-8": 5.158, "MQA": 5.057, "K=V MQA": 5.212},
}
"""Preset of that size → variant → validation perplexity per token."""

WEAKNESSES = (
    "one seed, and no interval",
    "each document is padded to 2,049 tokens and the padding is scored, so that these are no perplexities of text",
    "the variants differ in parameters by up to 15 % and in cache by up to 64 times; none are matched",
    "cache sizes are arithmetic: the released generation keeps no cache",
    "its downstream scores lie at chance (36 against 35) and decide nothing",
)
RELEASED_GROUPS = "its 300M K=V GQA-4 was released with 8 key/value heads, so that this may be the score of K=V GQA-8"
_RELEASED_OTHERWISE = ("300M", "K=V GQA-4")


def loss_difference(preset: str, variant: str) -> float | None:
    """Percent by which a variant's loss exceeds QKV's: 100·(ln PPL / ln PPL of QKV − 1).

    Bits per byte of the same text in the same tokens are proportional to the loss, and so compare with this. None for
    what the paper does not report.
    """
    found = PERPLEXITIES.get(preset, {})
    if variant not in found:
        return None
    return 100 * (math.log(found[variant]) / math.log(found[BASELINE]) - 1)


def doubts(preset: str, variant: str) -> tuple[str, ...]:
    """What weakens one figure, beside what weakens them all."""
    return (RELEASED_GROUPS,) if (preset, variant) == _RELEASED_OTHERWISE else ()
