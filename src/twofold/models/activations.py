"""What an MLP may have between its matrices, by block style. No torch."""

from __future__ import annotations

from collections.abc import Mapping

ACTIVATIONS: Mapping[str, Mapping[str, str]] = {
    "paper": {
        "gelu": "x·Φ(x), arXiv 1606.08415",
        "gelu_tanh": "its approximation by a tanh, section 2 there: GPT-2's",
        "relu": "max(x, 0): OPT's",
    },
    "modern": {"silu": "of a gate, arXiv 2002.05202"},
}
"""Block → its activations with their meaning; the first is the usual one."""


def usual_activation(block: str) -> str:
    """The activation of blocks of this style where nothing is said."""
    return next(iter(ACTIVATIONS[block]))


def require_activation(block: str, name: str) -> None:
    """Raise ValueError, with the choices, unless blocks of this style have this activation."""
    here = ACTIVATIONS[block]
    if name in here:
        return
    others = [block for block, those in ACTIVATIONS.items() if name in those]
    hint = f", or use block {others[0]}" if others else ""
    listed = "; ".join(f"{name} ({meaning})" for name, meaning in here.items())
    raise ValueError(f"block {block} has no activation {name!r}: choose {listed}{hint}")
