"""Twofold: transformers whose query, key and value projections share matrices.

Importing the package is cheap. The Hugging Face Auto classes know Twofold's models from then on: they are registered
when transformers' model classes are first imported, or at once where they already are.
"""

from importlib import import_module

from wrapt import when_imported

from twofold.version import __version__

__all__ = ["__version__"]


@when_imported("transformers.models.auto.modeling_auto")
def _register(_: object) -> None:
    import_module("twofold.models.decoder")
    import_module("twofold.models.encoder")
