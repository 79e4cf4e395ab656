"""Folded against stock on small random models: logits, greedy and beam search, and the bytes of their caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, StaticCache
from transformers.cache_utils import Cache, EncoderDecoderCache

from twofold.cache.layer import RowLayer
from twofold.folding.families import attention_layers
from twofold.folding.fold import fold, new_cache, unfold
from twofold.folding.tiny import TINY, tiny_model

DTYPES = ("float32", "bfloat16")
TOKENS, NEW, BEAMS = 43, 13, 3
PADDING = 7
SINGLE = 14
"""Tokens that come one by one after the rest."""


@dataclass(frozen=True)
class Parity:
    """One family, form and dtype. Differences are the largest of any logit, over a full pass, chunks, single tokens,
    left padding, and past the window where there is one.

    `stock_difference` is stock's own: SDPA against eager attention, or, of models with eager alone, a batch against
    each of its texts. Bytes are those of the folded layers' caches, in storage.
    """

    family: str
    form: str
    dtype: str
    max_logit_difference: float
    stock_difference: float
    greedy_equal: bool
    beam_equal: bool
    bytes_before: int
    bytes_after: int

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON takes it."""
        return asdict(self)


def parity(
    families: Sequence[str] = tuple(TINY),
    dtypes: Sequence[str] = DTYPES,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Parity]:
    """A row for every family, form and dtype."""
    asked = [(family, form, dtype) for family in families for form in forms_of(family) for dtype in dtypes]
    rows = []
    for done, (family, form, dtype) in enumerate(asked):
        if progress is not None:
            progress(f"{family} {form} {dtype}", done, len(asked))
        rows.append(compare(family, form, dtype))
    return rows


def forms_of(family: str) -> tuple[str, ...]:
    """The forms that a family has."""
    return next(attention_layers(tiny_model(family)))[3].FORMS


def compare(family: str, form: str, dtype: str = "float32", seed: int = 0) -> Parity:
    """One row, on the family's small model with weights from `seed`."""
    model = tiny_model(family, seed).to(getattr(torch, dtype))
    found = checked(model, random_texts(model, seed), form)
    return Parity(family=family, form=form, dtype=dtype, **found)


def checked(model: PreTrainedModel, texts: Texts, form: str | None = None) -> dict[str, Any]:
    """What folding changes in a model: the figures of `Parity`. It is unfolded again, and no weight is touched."""
    with torch.no_grad():
        stock, before, bytes_before = texts.logits(), texts.generated(), texts.stored()
        own = texts.own_difference(stock)
        folding = fold(model, form)
        try:
            after, generated, bytes_after = texts.logits(), texts.generated(), texts.stored()
        finally:
            unfold(model)
    layers = [one.layer for one in folding.folds if one.layout is not None]
    return {
        "max_logit_difference": difference(stock, after),
        "stock_difference": own,
        "greedy_equal": torch.equal(before[0], generated[0]),
        "beam_equal": torch.equal(before[1], generated[1]),
        "bytes_before": sum(bytes_before[layer] for layer in layers),
        "bytes_after": sum(bytes_after[layer] for layer in layers),
    }


def random_texts(model: PreTrainedModel, seed: int) -> Texts:
    """Two sequences of random tokens, one of them padded on the left."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    ids_BT = torch.randint(5, vocabulary, (2, TOKENS), generator=generator)
    return Texts(model, ids_BT, (PADDING, 0))


def difference(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """The largest of any logit, pass by pass."""
    return max(float((a.double() - b.double()).abs().max()) for a, b in zip(one, other, strict=True))


class Texts:
    """Token ids [B, T], of which each sequence begins with so many of padding, and what a model makes of them."""

    def __init__(self, model: PreTrainedModel, ids_BT: Tensor, padding: Sequence[int]) -> None:
        self.model, self.ids_BT = model, ids_BT
        self.mask_BT = torch.ones_like(ids_BT)
        for sequence, tokens in enumerate(padding):
            self.mask_BT[sequence, :tokens] = 0
        tokens = ids_BT.shape[1]
        pieces = (tokens // 4, 1, 2, tokens // 3, 1)
        single = min(SINGLE, tokens - 1)
        self.chunks = ((tokens,), (*pieces, tokens - sum(pieces)), (tokens - single, *[1] * single))

    def logits(self) -> list[Tensor]:
        """Of every way to cut the texts into passes, what is not padding [positions, V]."""
        return [self._pass(chunks) for chunks in self.chunks]

    def _pass(self, chunks: Sequence[int]) -> Tensor:
        cache, at = new_cache(self.model), 0
        found: list[Tensor] = []
        positions_BT = (self.mask_BT.cumsum(-1) - 1).clamp(min=0)
        for tokens in chunks:
            here = slice(at, at + tokens)
            named = {"attention_mask": self.mask_BT[:, : at + tokens], "cache": cache, "use_cache": True}
            found.append(self.model(self.ids_BT[:, here], position_ids=positions_BT[:, here], **named).logits)
            at += tokens
        return torch.cat(found, dim=1)[self.mask_BT.bool()]

    def generated(self) -> tuple[Tensor, Tensor]:
        """Tokens of greedy decoding and of beam search."""
        named = {"attention_mask": self.mask_BT, "max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}
        named["pad_token_id"] = 0
        return self.model.generate(self.ids_BT, **named), self.model.generate(self.ids_BT, num_beams=BEAMS, **named)

    def own_difference(self, stock: Sequence[Tensor]) -> float:
        """Stock's own rounding: by SDPA against eager; with eager alone, together against each text by itself."""
        if self.model._supports_sdpa:
            with implementation(self.model, "eager"):
                return difference(stock, self.logits())
        alone = [Texts(self.model, self.ids_BT[[row]], [int(len(mask_T) - mask_T.sum())]) for row, mask_T in self.rows]
        return difference([stock[0]], [torch.cat([text._pass(self.chunks[0]) for text in alone])])

    @property
    def rows(self) -> list[tuple[int, Tensor]]:
        """Each text's number and mask [T]."""
        return list(enumerate(self.mask_BT))

    def stored(self) -> list[int]:
        """Bytes in each layer's storage after the texts, in a cache that is allocated at once where it can be."""
        cache = preallocated(self.model, self.ids_BT.shape[1]) or new_cache(self.model)
        for ids_BT in (self.ids_BT[:, :-1], self.ids_BT[:, -1:]):
            self.model(ids_BT, cache=cache, use_cache=True)
        layers = cache.self_attention_cache.layers if isinstance(cache, EncoderDecoderCache) else cache.layers
        return [stored_bytes(layer) for layer in layers]


def preallocated(model: PreTrainedModel, tokens: int) -> Cache | None:
    """A static cache; None for a model whose layers keep something that has none."""
    if not model._can_compile_fullgraph:
        return None
    return StaticCache(config=model.config, max_cache_len=tokens)


def stored_bytes(layer: Any) -> int:
    """Bytes of the storages behind a cache layer's keys and values, each counted once."""
    if isinstance(layer, RowLayer):
        return layer.bytes_reserved
    held = [part.untyped_storage() for part in (layer.keys, layer.values) if part is not None]
    return sum({storage.data_ptr(): storage.nbytes() for storage in held}.values())


@contextmanager
def implementation(model: PreTrainedModel, name: str) -> Iterator[None]:
    """The model with another attention implementation while the block lasts."""
    usual = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(usual)
