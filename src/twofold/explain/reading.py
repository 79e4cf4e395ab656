"""A text as a model reads it: its tokens in windows, and the first of them for the attention maps."""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from twofold.explain.activations import LayerActivations
from twofold.explain.attention_patterns import repeated_tokens
from twofold.explain.load import Opened
from twofold.explain.record import AttentionMap, TextRead

CONTEXT = 512
"""Tokens of a window, by default: maps of T² numbers are held for all heads of a layer."""
SHOWN = 48
"""Tokens that attention maps are kept of."""
MOST_MAPS = 640
"""Maps that a record holds; of a model with more heads the first layers of those asked for."""
DIGITS = 3
REPEATED, TEXTS = 64, 4
"""Random tokens that come twice, and how many such texts."""


class Text(NamedTuple):
    """A text to read: its name, its bytes, how many tokens from its beginning are read at most, and of a window."""

    source: str
    content: bytes
    tokens: int
    context: int = CONTEXT


class Given(NamedTuple):
    """Windows of token ids [B, T], and what the record says of them."""

    ids_BT: Tensor  # noqa: N815
    read: TextRead


def read_text(opened: Opened, text: Text) -> Given:
    """The windows of a text, without special tokens.

    T is at most the model's positions and `text.context`; tokens that fill no window are left out. Raises ValueError
    where the model reads no text, has no tokenizer, or the text has fewer than two tokens.
    """
    config = opened.model.config.get_text_config(decoder=True)
    if getattr(config, "reads", "tokens") != "tokens":
        raise ValueError(f"{opened.name} reads {config.reads} and no text: leave --text out")
    tokenizer = opened.tokenizer()
    ids = tokenizer.encode(text.content)[: text.tokens].astype("int64")
    if len(ids) < 2:
        raise ValueError(f"{text.source} has {len(ids)} tokens, and a token has no other to look at alone: give more")
    length = min(len(ids), text.context, getattr(config, "max_position_embeddings", None) or text.context)
    ids = ids[: len(ids) // length * length]
    pieces = tuple(tokenizer.decode([token]) for token in ids[: min(SHOWN, length)])
    digest = sha256(text.content).hexdigest()
    read = TextRead(source=text.source, sha256=digest, tokens=len(ids), window=length, pieces=pieces)
    return Given(torch.from_numpy(ids).view(-1, length), read)


def repeated_text(config: PreTrainedConfig, seed: int) -> Tensor:
    """Random tokens that come twice [B, 2 · length], as many as the model's positions and vocabulary allow.

    Raises ValueError for a model that reads no tokens, or too few.
    """
    if getattr(config, "reads", "tokens") != "tokens":
        raise ValueError(f"the model reads {config.reads} and no tokens: leave --patterns out")
    positions = getattr(config, "max_position_embeddings", None) or 2 * REPEATED
    return repeated_tokens(config.vocab_size, min(REPEATED, positions // 2, config.vocab_size), TEXTS, seed)


def maps_of(found: LayerActivations, tokens: int, room: int) -> list[AttentionMap]:
    """The maps of a layer's heads over the first tokens of the first window; none where they would be more than `room`,
    and for a linear recurrence.
    """
    if found.scored is None or found.scored.maps_BHTT.shape[1] > room:
        return []
    maps_HTT = found.scored.maps_BHTT[0, :, :tokens, :tokens].clamp(0, 1)
    return [
        AttentionMap(layer=found.layer, head=head, weights=tuple(map(_row, one.tolist())))
        for head, one in enumerate(maps_HTT)
    ]


def _row(weights: list[float]) -> tuple[float, ...]:
    """Rounded, up to the last weight that is not 0."""
    rounded = [round(weight, DIGITS) for weight in weights]
    while rounded and rounded[-1] == 0:
        rounded.pop()
    return tuple(rounded)
