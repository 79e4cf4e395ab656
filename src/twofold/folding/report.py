"""What folding a model saves: bytes before and after, layer by layer, at one context and batch. No weight is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from twofold.analysis.published import CacheLayer
from twofold.analysis.published_source import read
from twofold.folding.fold import Folding, folding_of, plan
from twofold.folding.forms import FORMS, Fold
from twofold.variants.layout import RowLayout, cache_bytes, item_bytes


@dataclass(frozen=True)
class LayerReport:
    """One layer. `form` is None where it stays as it is, and `why` says what folds, or why not.

    Numbers are of one token; bytes of `context` tokens of `batch` sequences, of which a window keeps the newest.
    """

    layer: int
    kind: str
    form: str | None
    why: str
    window: int | None
    numbers_before: int
    numbers_after: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, repr=False)
class FoldingReport:
    """What a model caches before and after folding. Bytes are bytes of the cache alone."""

    model_type: str
    form: str | None
    context: int
    batch: int
    dtype: str
    layers: tuple[LayerReport, ...]
    bytes_before: int
    bytes_after: int
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        folded = sum(layer.form is not None for layer in self.layers)
        return (
            f"FoldingReport({folded} of {len(self.layers)} layers fold, {self.batch} × {self.context:,} tokens in "
            f"{self.dtype}: {self.bytes_before:,} bytes before, {self.bytes_after:,} after)"
        )

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON takes it."""
        return asdict(self)


def folding_report(
    model: PreTrainedModel, *, context: int | None = None, batch: int = 1, form: str | None = None
) -> FoldingReport:
    """What `fold(model, form)` would save, or saves where it was applied; nothing is changed, and no weight is read.

    `context` is the model's longest by default. Raises ValueError where nothing folds, as `fold` does, for sizes below
    1, and for a model that names no longest context where none is given.
    """
    text = model.config.get_text_config(decoder=True)
    context = _longest(text) if context is None else context
    for name, number in {"context": context, "batch": batch}.items():
        if number < 1:
            raise ValueError(f"{name} must be at least 1, not {number}")
    folding = folding_of(model) or plan(model, form)
    dtype = str(model.dtype).removeprefix("torch.")
    layers = tuple(_layers(model, folding, context, batch, dtype))
    return FoldingReport(
        model_type=text.model_type,
        form=folding.folds[0].form if folding.folds else None,
        context=context,
        batch=batch,
        dtype=dtype,
        layers=layers,
        bytes_before=sum(layer.bytes_before for layer in layers),
        bytes_after=sum(layer.bytes_after for layer in layers),
        notes=tuple(_notes(folding, layers, context, _longest_known(text))),
    )


def _longest_known(config: PreTrainedConfig) -> int | None:
    return getattr(config, "max_position_embeddings", None) or getattr(config, "max_target_positions", None)


def _longest(config: PreTrainedConfig) -> int:
    longest = _longest_known(config)
    if longest is None:
        raise ValueError(f"this {config.model_type} configuration names no longest context: give one")
    return longest


def _layers(model: PreTrainedModel, folding: Folding, context: int, batch: int, dtype: str) -> list[LayerReport]:
    folds = {fold.layer: fold for fold in folding.folds}
    reasons = {one.layer: one.reason for one in folding.stays}
    found = []
    for number, stored in enumerate(_stored(model, folding.folds)):
        before = sum(kept.bytes(context, dtype, batch) for kept in stored.stored or ())
        numbers = sum(kept.numbers for kept in stored.stored or () if kept.stride == 1 and not kept.unfinished)
        window = next((kept.window for kept in stored.stored or () if kept.window), None)
        fold = folds.get(number)
        if fold is None:
            why = reasons.get(number, "key and value share nothing that could be stored once")
            found.append(LayerReport(number, stored.kind, None, why, window, numbers, numbers, before, before))
            continue
        stock = _stock_bytes(fold, context, batch, dtype)
        before = before if stored.stored else stock
        after = before - stock + _folded_bytes(fold, context, batch, dtype)
        numbers = numbers or fold.stock
        left = numbers - fold.stock + fold.numbers
        found.append(
            LayerReport(number, stored.kind, fold.form, FORMS[fold.form], fold.window, numbers, left, before, after)
        )
    return found


def _stored(model: PreTrainedModel, folds: Sequence[Fold]) -> Sequence[CacheLayer]:
    """What transformers stores, by layer; layers without figures for a model whose cache is not known in general."""
    try:
        return read(model.config.to_dict()).layers
    except ValueError:
        empty = CacheLayer("attention", 0, 0, 0, (), None)
        return [empty] * (max(fold.layer for fold in folds) + 1)


def _stock_bytes(fold: Fold, context: int, batch: int, dtype: str) -> int:
    """What transformers keeps of this layer's keys and values: of a window one token less."""
    window = None if fold.window is None else fold.window - 1
    row = RowLayout.shared(max(fold.stock, 1))
    kept = cache_bytes(row, 1, tokens=context, itemsize=item_bytes(dtype), batch=batch, window=window)
    return kept if fold.stock else 0


def _folded_bytes(fold: Fold, context: int, batch: int, dtype: str) -> int:
    if fold.layout is None:
        return 0
    size = item_bytes(dtype)
    return cache_bytes(fold.layout, fold.kv_heads, tokens=context, itemsize=size, batch=batch, window=fold.window)


def _notes(folding: Folding, layers: Sequence[LayerReport], context: int, longest: int | None) -> list[str]:
    notes = []
    if longest is not None and context > longest:
        notes.append(f"{context:,} tokens are more than the {longest:,} positions of the model.")
    if folding.windows:
        widest = max(folding.windows.values())
        notes.append(
            f"{len(folding.windows)} sliding layers keep at most {widest:,} tokens. After a longer prompt transformers "
            "holds all of its keys and values until the next token; folded, they free what they drop at once."
        )
    if any(layer.form == "latent" for layer in layers):
        notes.append("The latent is what transformers stores as well: folding saves work at each step, and no bytes.")
    return notes
