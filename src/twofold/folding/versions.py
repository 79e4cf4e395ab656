"""The versions of transformers that folding was tested with; another one must show first that outputs stay the same."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from twofold.environment import package_version

TESTED = ("5.24.0",)
"""From the oldest that this package takes to the newest there was; a test holds the installed one to be among them."""
MOST = 1e-5
"""What logits of a small float32 model may differ by, or twice what stock's own ways do."""

_checked: set[str] = set()


def require_known(families: Iterable[str]) -> None:
    """Warn once where this version of transformers was not tested, and fold a small model of each family first.

    Raises ValueError where its outputs change.
    """
    version = package_version("transformers") or "of no known version"
    if version in TESTED:
        return
    if not _checked:
        warnings.warn(
            f"folding was tested with transformers {', '.join(TESTED)}, and this is {version}: small models are "
            "folded and compared first",
            stacklevel=3,
        )
    for family in families:
        if family not in _checked:
            _checked.add(family)  # first: the check itself folds
            _require_equal(family, version)


def _require_equal(family: str, version: str) -> None:
    from twofold.folding.parity import compare, forms_of
    from twofold.folding.tiny import TINY

    if family not in TINY:
        return
    for form in forms_of(family):
        found = compare(family, form)
        if not found.max_logit_difference <= max(MOST, 2 * found.stock_difference):
            _checked.discard(family)
            raise ValueError(
                f"with transformers {version} a folded {family} model gives other logits, off by "
                f"{found.max_logit_difference:.1e}: use transformers {TESTED[-1]}"
            )
