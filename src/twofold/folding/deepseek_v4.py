"""DeepSeek-V4 (arXiv 2606.19348), whose attention reads one entry per token as key and as value.

Its layers hand that entry to the cache twice, and read it once. transformers' sliding layer stores both: here they
have rows of one entry, form "row". The caches of its compressed layers (CSA, HCA) alias values to keys, and lose that
whenever a cache is reordered, repeated, selected from or moved, until the next token: here they never do.

The layers' forward pass stays the stock one, so outputs are the same bits. What compressed layers keep of older tokens
(compressed entries, and the tokens that wait for theirs) is neither key nor value of a token, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import CacheLayerMixin
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4CSACache, DeepseekV4HCACache

from twofold.folding.forms import Fold, Packing, folded_class
from twofold.folding.rows import alone
from twofold.variants.layout import RowLayout

FORMS = ("row",)
"""What there is to choose from."""


class FoldedDeepseekV4:
    """`DeepseekV4Attention`, which needs nothing but another cache."""


class OneTensor(CacheLayerMixin):
    """A compressed layer's cache whose window is one tensor, in storage of its own, whatever is done to it."""

    device: Any
    sliding_window: int
    buffer_kv: dict[str, Tensor | None]
    buffer_gate: dict[str, Tensor | None]
    compressed_kv: dict[str, Tensor | None]

    _layer_type = None  # what has one is made in the place of the stock class from then on, for every model
    is_croppable = False

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append, and keep the window in storage of its own; all entries that this step sees, twice."""
        seen = super().update(key_states, value_states, *args, **kwargs)
        assert self.keys is not None
        self._keep(alone(self.keys, self.sliding_window))
        return seen

    def store_compression_weights(self, name: str, kv: Tensor, gate: Tensor) -> tuple[Tensor, Tensor, int]:
        """As the stock cache; tokens that wait for their window are copied out of the prompt's."""
        ready = super().store_compression_weights(name, kv, gate)
        for buffer in (self.buffer_kv, self.buffer_gate):
            waiting = buffer[name]
            assert waiting is not None
            buffer[name] = alone(waiting.unsqueeze(1), 0).squeeze(1)
        return ready

    def crop(self, tokens_to_remove: int) -> None:
        """Remove nothing. Raises ValueError where that is not what is asked for."""
        if tokens_to_remove:
            raise ValueError(
                f"{-tokens_to_remove} tokens cannot be cropped from a compressed layer of DeepSeek-V4: its compressed "
                "entries were made of them; start again from a shorter text, or from a copy of its cache"
            )

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Sequence b becomes what sequence `beam_idx[b]` was."""
        self._change(lambda part: part.index_select(0, beam_idx.to(part.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence `repeats` times, one beside the other; with its compressed entries, which stock forgets."""
        self._change(lambda part: part.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the sequences `indices` only; with their compressed entries, which stock forgets."""
        self._change(lambda part: part[indices.to(part.device)])

    def offload(self) -> None:
        """Move the window to the CPU. The compressor reads what it keeps right after that, so that stays."""
        if self.keys is not None:
            self._keep(self.keys.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        """Move the window back to where it was."""
        if self.keys is not None:
            self._keep(self.keys.to(self.device, non_blocking=True))

    def _keep(self, window: Tensor) -> None:
        self.keys = self.values = window

    def _change(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.keys is not None:
            self._keep(change(self.keys))
        for states in self._states():
            states.update({name: change(state) for name, state in states.items() if state is not None})

    def _states(self) -> list[dict[str, Tensor | None]]:
        """What has sequences first, beside the window."""
        return [self.buffer_kv, self.buffer_gate, self.compressed_kv]


class OneTensorHCA(OneTensor, DeepseekV4HCACache):
    """Of a heavily compressed layer."""


class OneTensorCSA(OneTensor, DeepseekV4CSACache):
    """Of a sparsely read compressed layer."""

    def _states(self) -> list[dict[str, Tensor | None]]:
        return [*super()._states(), self.overlap_kv, self.overlap_gate]


_KEPT_AS = {DeepseekV4HCACache: OneTensorHCA, DeepseekV4CSACache: OneTensorCSA}


def plan_layer(model: PreTrainedModel, module: Any, name: str, form: str, facts: dict[str, Any]) -> Fold:
    """How a `DeepseekV4Attention` folds."""
    sliding = module.compressor is None
    return Fold(
        layer=module.layer_idx,
        name=name,
        form="row" if sliding else "window",
        layout=RowLayout.shared(module.head_dim),
        kv_heads=1,
        stock=(2 if sliding else 1) * module.head_dim,
        window=module.sliding_window,
        folded=folded_class(FoldedDeepseekV4, module.__class__),
        facts=facts,
        keeper=None if sliding else keep_one,
    )


def weights_obstacle(module: Any, form: str) -> str | None:
    """None: the weights have no part in it."""
    return None


def stored_once(module: Any, fold: Fold) -> Packing | None:
    """How a cache of a stock model keeps a sliding layer's entries; compressed layers' caches make their own."""
    if fold.keeper is not None:
        return None
    return Packing(lambda key_BGTD, _: key_BGTD, lambda rows: (rows.heads_BGSW, rows.heads_BGSW))


def keep_one(layer: CacheLayerMixin, fold: Fold) -> CacheLayerMixin:
    """A compressed layer's cache as one that keeps one tensor. Raises ValueError for a cache of another kind."""
    if isinstance(layer, OneTensor):
        return layer
    kept_as = _KEPT_AS.get(type(layer))
    if kept_as is None:
        raise ValueError(
            f"layer {fold.layer} of the model compresses older tokens, and a {type(layer).__name__} cannot keep what "
            "it makes of them: use a DynamicCache of the model's configuration"
        )
    layer.__class__ = kept_as
    return layer
