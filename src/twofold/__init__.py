"""Twofold: transformers whose query, key and value projections share matrices.

Importing the package is cheap. The Hugging Face Auto classes know Twofold's models from then on: they are registered
when transformers' model classes are first imported, or at once where they already are. What folds models of
transformers (`fold`, `unfold`, `folded_cache`, `folding_report`) is loaded when it is first asked for.
"""

import sys
from importlib import import_module
from typing import Any

from wrapt import when_imported

from twofold.version import __version__

__all__ = ["__version__", "fold", "folded_cache", "folding_report", "unfold"]  # noqa: F822: see `__getattr__`

_HOMES = {
    "fold": "twofold.folding.fold",
    "unfold": "twofold.folding.fold",
    "folded_cache": "twofold.folding.fold",
    "folding_report": "twofold.folding.report",
}
_LAYERS = "transformers.modeling_layers"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'twofold' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


@when_imported(_LAYERS)
@when_imported("transformers.models.auto.modeling_auto")
def _register(_: object) -> None:
    layers = sys.modules.get(_LAYERS)
    if layers is not None and not hasattr(layers, "GradientCheckpointingLayer"):
        return  # it is being imported, and imports the Auto classes at its top: models need it whole
    import_module("twofold.models.decoder")
    import_module("twofold.models.encoder")
