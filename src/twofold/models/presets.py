"""Named sizes. `300M` and `1.2B` are the language models of arXiv 2606.04032; `tiny` trains on a laptop."""

from __future__ import annotations

import difflib
from typing import Any

from twofold.models.architecture import FIELDS, Architecture

_PAPER: dict[str, Any] = {
    "block": "paper",
    "vocab": 50_304,
    "positions": 2_048,
    "dropout": 0.1,
    "tied": True,
}

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "block": "modern",
        "layers": 4,
        "width": 128,
        "heads": 4,
        "mlp": 344,
        "vocab": 257,
        "positions": 2_048,
    },
    "300M": {**_PAPER, "layers": 20, "width": 1_024, "heads": 16, "mlp": 4_096},
    "1.2B": {**_PAPER, "layers": 22, "width": 2_048, "heads": 32, "mlp": 8_192},
}


def architecture(preset: str, **overrides: Any) -> Architecture:
    """The preset's `Architecture` with some fields replaced; overrides that are None are left out.

    Where the width or the number of heads is overridden, head_dim follows unless it is given too.
    Raises ValueError, naming the choices, for an unknown preset or field.
    """
    if preset not in PRESETS:
        raise ValueError(f"unknown preset {preset!r}: choose one of {', '.join(PRESETS)}")
    unknown = sorted(set(overrides) - set(FIELDS))
    if unknown:
        near = difflib.get_close_matches(unknown[0], FIELDS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"unknown model field {unknown[0]!r}: {hint}The fields are {', '.join(FIELDS)}")
    return Architecture(**{**PRESETS[preset], **{k: v for k, v in overrides.items() if v is not None}})
