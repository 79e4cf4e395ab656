"""The words that a variant's notation is made of, one table for reading and writing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from twofold.variants.choices import ROLES, PositionTerm, Recurrence, Sharing, Treatment

if TYPE_CHECKING:
    from twofold.variants.variant import Variant

SHARINGS = {
    "QKV": Sharing.QKV,
    "Q=K": Sharing.QUERY_KEY,
    "Q=K-V": Sharing.QUERY_KEY,
    "K=V": Sharing.KEY_VALUE,
    "Q-K=V": Sharing.KEY_VALUE,
    "Q=K=V": Sharing.ALL,
}
_FIXED: dict[str, tuple[str, Any]] = {
    **{treatment.value: ("treatment", treatment) for treatment in Treatment},
    "on-read": ("treatment", Treatment.ON_READ),
    **{kind.value: ("recurrence", kind) for kind in Recurrence if kind.value},
    "linear-elu": ("recurrence", Recurrence.ELU),
    **{term.value: ("position_term", term) for term in PositionTerm if term.value},
    "MLA": ("latent", True),
    "diagonal": ("diagonal", True),
    "nonlinear-WQ": ("nonlinear_query", True),
}
WORDS = {word.upper(): (word, *meant) for word, meant in _FIXED.items()}
"""Word in capitals → the word, the field of `Variant` that it sets, and to what."""
NUMBERED = {"rank": "rank", "CLA": "row_layers", "tied": "matrix_layers"}
"""Words with a number after a dash → the field of `Variant` that it sets."""
_NUMBERED = re.compile(rf"({'|'.join(word.upper() for word in NUMBERED)})-?(\d+)")
_WITHOUT = re.compile(r"NO-W([QKV])")


def field_of(word: str) -> tuple[str, Any] | None:
    """The field of `Variant` that a word in capitals sets, and to what; None for a word that sets none.

    For a left-out projection it is one more role of `unprojected`.
    """
    if word in WORDS:
        return WORDS[word][1:]
    if numbered := _NUMBERED.fullmatch(word):
        return next(field for name, field in NUMBERED.items() if name.upper() == numbered[1]), int(numbered[2])
    if without := _WITHOUT.fullmatch(word):
        return "unprojected", next(role for role in ROLES if role.startswith(without[1].lower()))
    return None


def written(variant: Variant) -> str:
    """The notation of a variant: sharing, heads, then what else differs from plain attention, then `+`."""
    others = _others(variant)
    heads = variant.heads_notation
    told = variant.sharing is not Sharing.QKV or not (heads or variant.latent or variant.unprojected)
    words = [variant.sharing.value] if told else []
    words = ["simplified"] if _is_simplified(variant) else words
    words += [heads] if heads else []
    words += ["MLA"] if variant.latent else []
    return " ".join([*words, *others, *([variant.position_term.value] if variant.position_term.value else [])])


def _others(variant: Variant) -> list[str]:
    simplified = _is_simplified(variant)
    words = [f"no-W{role[0].upper()}" for role in variant.unprojected if not simplified]
    words += [variant.treatment.value] if variant.treatment is not Treatment.DEROTATED else []
    words += ["diagonal"] if variant.diagonal else []
    words += ["nonlinear-WQ"] if variant.nonlinear_query else []
    words += [f"rank-{variant.rank}"] if variant.rank else []
    words += [variant.recurrence.value] if variant.recurrence.value else []
    words += [f"CLA-{variant.row_layers}"] if variant.row_layers > 1 else []
    return words + ([f"tied-{variant.matrix_layers}"] if variant.matrix_layers > 1 else [])


def _is_simplified(variant: Variant) -> bool:
    """No matrix for any role: query, key and value are the input."""
    return variant.sharing is Sharing.ALL and variant.unprojected == ("key",)
