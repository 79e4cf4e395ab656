"""`StateLayer`: the state of one recurrent decoder layer, of constant size, as a transformers cache layer.

It stores a state and knows nothing of features, keys or values: a layer hands over the step, a function from a state
to what was read out and the state after it. What was added to a state cannot be taken out again. So transformers'
operations that go back to fewer tokens are refused, and the model of such a layer must say `_is_stateful`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

Advance = Callable[[Tensor], tuple[Tensor, Tensor]]
"""A state to what was read out of it and the state after it."""


class StateLayer(CacheLayerMixin):
    """One state [B, *shape] for all tokens so far, zeros for none; float32, or the wider dtype of what comes in.

    `shape`: that of one sequence's state, [G, D, Dv + 1] for linear attention.
    """

    supports_early_init = False  # the state is made by the first step, which knows its batch, dtype and device
    is_croppable = False
    is_sliding = False

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.length = 0
        self._state: Tensor | None = None

    def __repr__(self) -> str:
        return f"StateLayer({self.length} tokens, {self.bytes_used:,} of {self.bytes_reserved:,} bytes used)"

    @property
    def bytes_used(self) -> int:
        """Bytes of the state, from its shape: the same for any number of tokens, and 0 before the first."""
        return 0 if self._state is None else self._state.numel() * self._state.element_size()

    @property
    def bytes_reserved(self) -> int:
        """Bytes of the storage behind it, as the allocator was asked for them."""
        return 0 if self._state is None else self._state.untyped_storage().nbytes()

    @property
    def storage_id(self) -> int:
        """Identifies the storage; 0 before the first token."""
        return 0 if self._state is None else self._state.untyped_storage().data_ptr()

    def kept(self) -> Tensor:
        """The state [B, *shape] itself. Only where there is one: see `is_initialized`."""
        assert self._state is not None, "no token was seen"
        return self._state

    # Stepping -------------------------------------------------------------------------------------------------

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor | None = None) -> None:
        """The state of no tokens, for sequences like those of `key_states` [B, G, T, D]."""
        dtype = torch.promote_types(key_states.dtype, torch.float32)
        self._keep(torch.zeros(key_states.shape[0], *self.shape, dtype=dtype, device=key_states.device))
        self.device = key_states.device

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor | None = None,
        advance: Advance | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Take a step over the T tokens of `key_states` [B, G, T, D]; what `advance` read, and the state after it.

        `advance` gets the state before. Raises ValueError for other sequences than before, and without `advance`.
        """
        if advance is None:
            raise ValueError(
                "this cache keeps the state of a linear attention layer, and a model wants to store keys and values "
                "in it: use it with the model that made it"
            )
        read, after = advance(self._state_for(key_states))
        assert after.shape == self.kept().shape, f"a state of {list(self.kept().shape)} became {list(after.shape)}"
        self._keep(after)
        self.length += key_states.shape[2]
        return read, after

    def restore(self, state: Tensor, length: int) -> None:
        """Take over a `state` [B, *shape] that was kept by a layer of this shape after `length` tokens."""
        assert state.shape[1:] == self.shape
        self._keep(state)
        self.device, self.length = state.device, length

    def _state_for(self, key_states: Tensor) -> Tensor:
        dtype = torch.promote_types(key_states.dtype, torch.float32)
        state = self._state
        if state is None or (self.length == 0 and (len(state), state.dtype) != (len(key_states), dtype)):
            self.lazy_initialization(key_states)
        elif len(state) != len(key_states):
            raise ValueError(
                f"the cache holds the states of {len(state)} sequences and got tokens of {len(key_states)}: "
                "reset it, repeat its sequences (`batch_repeat_interleave`), or use a new one"
            )
        elif state.dtype != dtype:
            raise ValueError(f"the cache holds a {state.dtype} state and {dtype} is needed: use a new one")
        return self.kept()

    def _keep(self, state: Tensor) -> None:
        with torch.inference_mode(False):  # a step outside the mode that this one came in may need gradients
            self._state = state.clone() if state.is_inference() else state
        self.is_initialized = True

    def _replace(self, change: Callable[[Tensor], Tensor]) -> None:
        if self._state is not None:
            self._keep(change(self._state))

    # What generation does to a cache --------------------------------------------------------------------------

    def get_seq_length(self) -> int:
        """Tokens so far."""
        return self.length

    def get_max_length(self) -> int:
        """−1: any number of tokens."""
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Positions that a step of `query_length` tokens reads, and the first of these positions: all, and 0."""
        return self.length + query_length, 0

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last -`tokens_to_remove` tokens: none, or all. Raises ValueError for any number between."""
        if tokens_to_remove > 0:
            raise ValueError(f"crop takes minus the number of tokens to remove, not {tokens_to_remove}")
        if self.length + tokens_to_remove <= 0:
            self.reset()
        elif tokens_to_remove < 0:
            raise ValueError(
                f"{-tokens_to_remove} of {self.length} tokens cannot be cropped: a linear attention layer keeps the "
                "sum over all of them, and no single one. Start again with the shorter text, or keep a copy of the "
                "cache (`copy.deepcopy`) before the tokens that may be cropped"
            )

    def activate_past_recording(self) -> None:
        """Raises ValueError: nothing of the past could be recorded short of a state for each token."""
        raise ValueError(
            "a cache whose tokens can be cropped later is needed here (assisted generation asks for it), and a linear "
            "attention layer keeps the sum over all tokens, and no single one: use a model with softmax attention, "
            "or a plain `generate()`"
        )

    def reset(self) -> None:
        """Forget all tokens, and give the state's memory back."""
        self.length = 0
        self._state = None
        self.is_initialized = False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Sequence b becomes what sequence `beam_idx[b]` was."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence `repeats` times, one beside the other."""
        self._replace(lambda state: state.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the sequences `indices` only, in that order."""
        self._replace(lambda state: state[indices.to(state.device)])

    def offload(self) -> None:
        """Move the state to the CPU."""
        self._replace(lambda state: state.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        """Move the state back to the device of its tokens."""
        self._replace(lambda state: state.to(self.device, non_blocking=True))
