"""How many bytes of a document its first tokens stand for."""

from __future__ import annotations

import numpy as np

from twofold.data.tokenizer import Tokenizer

_CUT_CHARACTER = 6
"""Bytes by which � can overstate a cut character: it has 3, and stands for 1 to 3, once for all or once for each."""


def kept_bytes(content: bytes, tokens: np.ndarray, kept: int, tokenizer: Tokenizer) -> int:
    """The bytes of `content` in the first `kept` of its `tokens` (all of them, without ENDs); exact.

    It is the place that cuts the content into the two texts that the tokens before and after the cut decode to. Both
    are needed where the cut goes through a character, since � does not tell how many bytes it stands for.

    Raises ValueError for a tokenizer that changes the text, so that no such place exists.
    """
    if kept >= len(tokens):
        return len(content)
    before = tokenizer.decode(tokens[:kept])
    most = len(before.encode())
    places = [
        place
        for place in range(max(0, most - _CUT_CHARACTER), min(most, len(content)) + 1)
        if _text(content[:place]) == before
    ]
    if len(places) > 1:
        after = tokenizer.decode(tokens[kept:])
        places = [place for place in places if _text(content[place:]) == after]
    if len(places) != 1:
        raise ValueError(
            f"the tokenizer {tokenizer.name} does not give a document's text back, so the bytes of its first {kept} of "
            f"{len(tokens)} tokens cannot be counted: take packing 'packed' or 'separate', or a context of at least "
            f"{len(tokens)}"
        )
    return places[0]


def _text(content: bytes) -> str:
    return content.decode(errors="replace")
