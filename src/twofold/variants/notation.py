"""Notation: `K=V GQA-4` to `Variant` and back (`str(variant)`), with the paper's names as aliases."""

from __future__ import annotations

import difflib
import re
from typing import Any

from twofold.variants.choices import ROLES, PositionTerm, Sharing
from twofold.variants.variant import Variant
from twofold.variants.words import NUMBERED, SHARINGS, WORDS, field_of

HEAD_COUNTS = (8, 4, 2)

PUBLISHED = (
    *(
        Variant(sharing, position_term=term)
        for term in (PositionTerm.NONE, PositionTerm.PUBLISHED)
        for sharing in Sharing
    ),
    *(Variant(kv_heads=g) for g in (*HEAD_COUNTS, 1)),
    *(Variant(Sharing.KEY_VALUE, g) for g in (*HEAD_COUNTS, 1)),
)
"""The variants that the paper names, in its order."""

_HEADS = re.compile(r"(Q-)?(?:(MHA)|(MQA)|GQA-?(\d+))")


def parse(text: str) -> Variant:
    """Read a variant: projection sharing, heads, other words and `+`; each may be left out. Case does not matter.

    `QKV`, `K=V GQA-4`, `MQA`, `Q=K +`; the paper's names `Q=K-V`, `Q-K=V`, `Q-GQA-4`, `Q-MQA`, `(Q=K-V)+`; then
    `derotated` (the default treatment of rotary for shared values), `on_read`, `kept` or `decoupled`; `MLA`; `diagonal`
    (without a sharing: Q=K=V); `no-WQ`, `no-WK`, `no-WV`, `simplified` (none of the three); `nonlinear-WQ`; `rank-n`;
    `linear`, `linear-relu`; `CLA-n`; `tied-n`; `+temperature`, `+key-bias`, `+relative`.
    Raises ValueError, with the nearest known notation, for anything else.
    """
    words = _words(text)
    if not words:
        raise ValueError(_unknown(text))
    given: dict[str, Any] = {}
    for word in words:
        for field, value in _meant(word, text).items():
            if field == "unprojected":
                value = _one_more(given.get(field, ()), value, text)
            elif field in given:
                raise ValueError(_unknown(text))
            given[field] = value
    if given.get("diagonal") and "sharing" not in given:
        given["sharing"] = Sharing.ALL
    variant = Variant(**given)
    if "DEROTATED" in words and not variant.sharing.value_is_key:
        raise ValueError(
            f"{text!r}: derotated is a treatment of shared values, and {variant} gives the value a projection of "
            "its own, which rotary does not touch. Leave the word out"
        )
    return variant


def _meant(word: str, text: str) -> dict[str, Any]:
    """The fields of `Variant` that one word sets."""
    if word in SHARINGS:
        return {"sharing": SHARINGS[word]}
    if word == "SIMPLIFIED":
        return {"sharing": Sharing.ALL, "unprojected": "key"}
    if heads := _HEADS.fullmatch(word):
        kv_heads = 1 if heads[3] else int(heads[4]) if heads[4] else None
        return {"kv_heads": kv_heads, **({"sharing": Sharing.KEY_VALUE} if heads[1] else {})}
    if field := field_of(word):
        return dict([field])
    raise ValueError(_unknown(text))


def _one_more(roles: tuple[str, ...], role: str, text: str) -> tuple[str, ...]:
    if role in roles:
        raise ValueError(_unknown(text))
    return tuple(sorted((*roles, role), key=ROLES.index))


def _words(text: str) -> list[str]:
    upper = text.upper().strip()
    if upper.startswith("(") and upper.endswith(")+"):
        upper = f"{upper[1:-2]} +"
    return re.sub(r"\s*\+", " +", upper).split()


def _unknown(text: str) -> str:
    known = {name.upper(): name for v in PUBLISHED for name in (str(v), *v.aliases)}
    known |= {word: name for word, (name, *_) in WORDS.items()} | {"SIMPLIFIED": "simplified"}
    known |= {f"{word.upper()}-2": f"{word}-2" for word in NUMBERED} | {f"NO-W{r}": f"no-W{r}" for r in "QKV"}
    hint = f"did you mean {near!r}? " if (near := _nearest(text, known)) else ""
    return (
        f"unknown variant {text!r}: {hint}A variant is QKV, Q=K, K=V or Q=K=V, then optionally MHA, GQA-g or MQA, "
        "then optionally other words (kept, CLA-2, …) and +; see `twofold variants`"
    )


def _nearest(text: str, known: dict[str, str]) -> str:
    """The text with its unknown words replaced, where that is a variant; else the known notation that is nearest."""
    repaired = [_repaired(word, known) for word in _words(text)]
    if all(repaired) and len(repaired) > 1 and repaired != _words(text):
        try:
            return str(parse(" ".join(repaired)))
        except ValueError:
            pass
    near = difflib.get_close_matches(" ".join(_words(text)), known, n=1, cutoff=0.5)
    return known[near[0]] if near else ""


def _repaired(word: str, known: dict[str, str]) -> str:
    if word in known or word in SHARINGS or word == "DEROTATED" or _HEADS.fullmatch(word) or field_of(word):
        return word
    near = difflib.get_close_matches(word, [name for name in known if " " not in name], n=1, cutoff=0.6)
    return near[0] if near else ""
