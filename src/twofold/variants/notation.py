"""Notation: `K=V GQA-4` to `Variant` and back (`str(variant)`), with the paper's names as aliases."""

from __future__ import annotations

import difflib
import re

from twofold.variants.variant import Sharing, Variant

HEAD_COUNTS = (8, 4, 2)

PUBLISHED = (
    *(Variant(sharing, position_term=term) for term in (False, True) for sharing in Sharing),
    *(Variant(kv_heads=g) for g in (*HEAD_COUNTS, 1)),
    *(Variant(Sharing.KEY_VALUE, g) for g in (*HEAD_COUNTS, 1)),
)
"""The variants that the paper names, in its order: what `twofold variants` lists."""

_SHARINGS = {
    "QKV": Sharing.QKV,
    "Q=K": Sharing.QUERY_KEY,
    "Q=K-V": Sharing.QUERY_KEY,
    "K=V": Sharing.KEY_VALUE,
    "Q-K=V": Sharing.KEY_VALUE,
    "Q=K=V": Sharing.ALL,
}
_HEADS = re.compile(r"(Q-)?(?:(MHA)|(MQA)|GQA-?(\d+))")


def parse(text: str) -> Variant:
    """Read a variant: projection sharing, then heads, then `+`; each may be left out. Case does not matter.

    `QKV`, `K=V GQA-4`, `MQA`, `Q=K +`; the paper's names `Q=K-V`, `Q-K=V`, `Q-GQA-4`, `Q-MQA`, `(Q=K-V)+`;
    `derotated` after a shared value names the default treatment of rotary there.
    Raises ValueError, with the nearest known notation, for anything else.
    """
    words = _words(text)
    sharing: Sharing | None = None
    kv_heads: int | None = None
    heads_seen = position_term = derotated = False
    for word in words:
        heads = _HEADS.fullmatch(word)
        if word in _SHARINGS and sharing is None:
            sharing = _SHARINGS[word]
        elif heads and not heads_seen and not (heads[1] and sharing):
            heads_seen = True
            kv_heads = 1 if heads[3] else int(heads[4]) if heads[4] else None
            if heads[1]:
                sharing = Sharing.KEY_VALUE
        elif word == "+" and not position_term:
            position_term = True
        elif word == "DEROTATED" and not derotated:
            derotated = True
        else:
            raise ValueError(_unknown(text))
    if not words:
        raise ValueError(_unknown(text))
    variant = Variant(sharing or Sharing.QKV, kv_heads, position_term)
    if derotated and not variant.sharing.value_is_key:
        raise ValueError(
            f"{text!r}: derotated is a treatment of shared values, and {variant} gives the value a projection of "
            "its own, which rotary does not touch. Leave the word out"
        )
    return variant


def _words(text: str) -> list[str]:
    upper = text.upper().strip()
    if upper.startswith("(") and upper.endswith(")+"):
        upper = f"{upper[1:-2]} +"
    return re.sub(r"\s*\+", " + ", upper).split()


def _unknown(text: str) -> str:
    known = {name.upper(): name for v in PUBLISHED for name in (str(v), *v.aliases)}
    near = difflib.get_close_matches(" ".join(_words(text)), known, n=1, cutoff=0.5)
    hint = f"did you mean {known[near[0]]!r}? " if near else ""
    return (
        f"unknown variant {text!r}: {hint}A variant is QKV, Q=K, K=V or Q=K=V, then optionally MHA, GQA-g or MQA, "
        "then optionally +; see `twofold variants`"
    )
