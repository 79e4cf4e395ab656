"""Cache layers of folded models, and how the empty layers of a stock cache become them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
    StaticLayer,
)

from twofold.cache.layer import RowLayer
from twofold.folding.forms import Fold, Packing
from twofold.folding.sights import UNKNOWN


class FoldedLayer(RowLayer):
    """The rows of one folded layer. `keys` and `values` are views of its one storage, for who iterates over a cache.

    `first_B` [B] is the position of each sequence's row 0, for forms that turn keys when they read them.
    """

    first_B: Tensor | None = None  # noqa: N815

    def update(
        self, key_states: Tensor, value_states: Tensor | None, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Append rows, as `RowLayer` does; what comes as key and value at once is kept once, and comes back twice."""
        self._require_rows(key_states, value_states)
        if value_states is not key_states:
            return super().update(key_states, value_states)
        heads_BGSW, _ = super().update(key_states, None)
        return heads_BGSW, heads_BGSW

    def _require_rows(self, key_states: Tensor, value_states: Tensor | None) -> None:
        given = key_states.shape[1], key_states.shape[-1]
        has_shared = value_states is not None and value_states is not key_states
        if given != (self.kv_heads, self.layout.head_width) or has_shared != (self.layout.shared_width > 0):
            raise ValueError(
                f"this cache holds rows of a folded model, {self.kv_heads} × {self.layout.head_width} numbers for each "
                f"token, and got {given[0]} × {given[1]}: give each model a cache of its own"
            )

    @property
    def keys(self) -> Tensor | None:
        """[B, G, S, key's own dims]: what is key in the heads' part of the rows; None before the first."""
        if not self.is_initialized:
            return None
        return self.kept().heads_BGSW[..., self.layout.key.start : self.layout.key.stop]

    @keys.setter
    def keys(self, value: Tensor | None) -> None:
        assert value is None, "rows are written by `update` alone"

    @property
    def values(self) -> Tensor | None:
        """[B, G, S, value's dims], or where all heads share a part of the row that part, [B, 1, S, shared_width]."""
        if not self.is_initialized:
            return None
        kept = self.kept()
        if kept.shared_BSW is not None:
            return kept.shared_BSW.unsqueeze(1)
        return kept.heads_BGSW[..., self.layout.value.start : self.layout.value.stop]

    @values.setter
    def values(self, value: Tensor | None) -> None:
        assert value is None, "rows are written by `update` alone"

    def stands(self, first_B: Tensor) -> None:
        """Row 0 of each sequence stands at these positions, where they are not `UNKNOWN`. Raises ValueError where it
        stood elsewhere.
        """
        before_B = self.first_B
        if before_B is None or len(before_B) != len(first_B):
            self.first_B = first_B
            return
        known_B = (before_B != UNKNOWN) & (first_B != UNKNOWN)
        if not torch.compiler.is_compiling() and not torch.equal(before_B[known_B], first_B[known_B]):
            raise ValueError(
                f"a cache of values turns keys by their place, and row 0 of its sequences stood at positions "
                f"{before_B[known_B].tolist()} before and at {first_B[known_B].tolist()} now: give positions without "
                'gaps, or fold with form="row"'
            )
        self.first_B = torch.where(first_B == UNKNOWN, before_B, first_B)

    def reset(self) -> None:
        """Forget all tokens."""
        super().reset()
        self.first_B = None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Sequence b becomes what sequence `beam_idx[b]` was."""
        super().reorder_cache(beam_idx)
        self.batch_first(lambda first_B: first_B[beam_idx.to(first_B.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence `repeats` times, one beside the other."""
        super().batch_repeat_interleave(repeats)
        self.batch_first(lambda first_B: first_B.repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the sequences `indices` only."""
        super().batch_select_indices(indices)
        self.batch_first(lambda first_B: first_B[indices.to(first_B.device)])

    def batch_first(self, change: Any) -> None:
        """Put `change(first_B)` in its place."""
        if self.first_B is not None and len(self.first_B) > 1:
            self.first_B = change(self.first_B)


class PackedLayer(FoldedLayer):
    """Rows behind a stock layer, which gives and takes keys and values: they are made of the rows again at each step,
    for the one layer that is at work.
    """

    def __init__(self, fold: Fold, packing: Packing) -> None:
        assert fold.layout is not None
        super().__init__(fold.layout, fold.kv_heads, window=fold.window)
        self.packing = packing

    def update(
        self, key_states: Tensor, value_states: Tensor | None, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append what [B, G, T, D] of both need; all keys and values that these tokens see."""
        assert value_states is not None
        return self.packing.unpack(self.append(self.packing.pack(key_states, value_states)))


class ReleasedWindow(DynamicSlidingWindowLayer):
    """transformers' sliding layer, which after a prompt keeps a view of the whole prompt's keys and values: here the
    window is copied out of it, and the rest is free.

    A step of one token leaves one token more than the window in storage, as there, and is not copied again.
    """

    keys: Tensor
    values: Tensor

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append, and keep the window in storage of its own."""
        seen = super().update(key_states, value_states, *args, **kwargs)
        if not self.record_past:
            self._release()
        return seen

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last -`tokens_to_remove` tokens, and free what a recorded past held."""
        super().crop(tokens_to_remove)
        self._release()

    def _release(self) -> None:
        self.keys = alone(self.keys, self.sliding_window)
        self.values = alone(self.values, self.sliding_window)


def alone(view_BGSD: Tensor, tokens: int) -> Tensor:
    """The view, copied out of its storage where that holds more than `tokens` and the view's own."""
    held = view_BGSD.untyped_storage().nbytes() // max(1, view_BGSD.element_size() * view_BGSD[:, :, :1].numel())
    return view_BGSD.clone() if held > max(view_BGSD.shape[2], tokens) else view_BGSD


def adopt(cache: Cache, folds: Sequence[Fold], windows: Mapping[int, int]) -> None:
    """Swap the empty layers of `cache` for those of a folded model: `folds` by their rows, and stock sliding layers
    (`windows`, by layer) for ones that free what they drop.

    Raises ValueError for a cache that holds a stock model's keys and values, that was made for other rows, or that does
    more than keep them (quantised, paged).
    """
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    layers = getattr(cache, "layers", None)
    if layers is None:
        raise ValueError(
            f"a folded model keeps rows in a DynamicCache or a StaticCache, and not in {type(cache).__name__}: leave "
            "`cache` and `cache_implementation` out, or unfold the model for paged attention"
        )
    for fold in folds:
        if fold.layout is None:
            continue
        while cache.layer_class_to_replicate is not None and len(layers) <= fold.layer:
            layers.append(cache.layer_class_to_replicate())
        if fold.layer >= len(layers):
            continue  # made for the first layers alone, where generation leaves early
        layers[fold.layer] = (fold.keeper or _folded)(layers[fold.layer], fold)
    for layer in windows:
        if layer < len(layers) and type(layers[layer]) is DynamicSlidingWindowLayer:
            layers[layer] = _released(layers[layer])


def _folded(layer: CacheLayerMixin, fold: Fold) -> CacheLayerMixin:
    assert fold.layout is not None
    if isinstance(layer, FoldedLayer):
        if (layer.layout, layer.kv_heads, layer.window) != (fold.layout, fold.kv_heads, fold.window):
            raise ValueError(
                f"layer {fold.layer} of this cache holds rows of {layer.layout.numbers(layer.kv_heads)} numbers, and "
                f"the model makes rows of {fold.numbers}: use a new cache"
            )
        return layer
    plain = (DynamicLayer, StaticLayer, DynamicSlidingWindowLayer, ReleasedWindow)
    if type(layer) not in plain or (fold.window is None and getattr(layer, "is_sliding", False)):
        raise ValueError(
            f"layer {fold.layer} of the model is folded and keeps rows, and a {type(layer).__name__} keeps something "
            'else: use a plain DynamicCache or StaticCache (cache_implementation "dynamic", "static", "offloaded")'
        )
    if int(layer.get_seq_length()):
        raise ValueError(
            f"this cache holds {int(layer.get_seq_length())} tokens of the model before it was folded: start with an "
            "empty cache"
        )
    made = FoldedLayer(fold.layout, fold.kv_heads, getattr(layer, "max_cache_len", None), window=fold.window)
    made.record_past = getattr(layer, "record_past", False)
    return made


def _released(layer: DynamicSlidingWindowLayer) -> DynamicSlidingWindowLayer:
    if layer.is_initialized:
        return layer
    made = ReleasedWindow(layer.sliding_window)
    made.record_past = layer.record_past
    return made
