"""The least work that a measurement contains: bytes to read and operations to do, for the machine's roof. No torch.

An operation is an addition or a multiplication, so that a multiply-accumulate counts twice. What a causal mask hides
is left out: a roof is a bound from below.
"""

from __future__ import annotations

from typing import NamedTuple

from twofold.analysis.costs import cache_bytes, macs, weight_bytes
from twofold.bench.sizes import DTYPE
from twofold.models.architecture import Architecture


class Work(NamedTuple):
    """Bytes that must come from memory, and operations."""

    bytes: int
    operations: int


def decode_step(arch: Architecture, context: int) -> Work:
    """One token of one sequence over `context` cached ones: all weights and all rows are read once."""
    head_width = arch.heads * arch.head_dim
    one = macs(arch, 1)["total"] - 2 * arch.layers * head_width
    operations = 2 * (one + 2 * arch.layers * head_width * context)
    return Work(weight_bytes(arch, DTYPE) + cache_bytes(arch, context, DTYPE), operations)


def prefill(arch: Architecture, tokens: int) -> Work:
    """All tokens of one sequence, and logits of the last one only."""
    counted = macs(arch, tokens)
    head = counted["head"] - arch.width * arch.vocab
    return Work(weight_bytes(arch, DTYPE), 2 * (counted["total"] - head - _hidden(arch, tokens)))


def training_step(arch: Architecture, sequences: int, tokens: int) -> Work:
    """Forward, and twice as much backward; the optimizer's few operations are left out.

    AdamW reads weight, gradient and two moments.
    """
    forward = 2 * sequences * (macs(arch, tokens)["total"] - _hidden(arch, tokens))
    return Work(4 * weight_bytes(arch, DTYPE), 3 * forward)


def _hidden(arch: Architecture, tokens: int) -> int:
    """Multiply-accumulates of scores and sums above the diagonal, which `macs` counts."""
    return arch.layers * tokens * (tokens - 1) * arch.heads * arch.head_dim
