"""`MemoryCache`: what a decoder with cross-attention keeps, rows of its own tokens and rows of the encoder's."""

from __future__ import annotations

from torch import Tensor

from twofold.cache.row_cache import RowCache


class MemoryCache:
    """Two row caches with the same sequences: `own` grows by every token, `memory` is filled at the first step.

    Operations on sequences act on both, those on tokens on `own` alone.
    """

    def __init__(self, own: RowCache, memory: RowCache) -> None:
        self.own = own
        self.memory = memory

    def __repr__(self) -> str:
        return f"MemoryCache({self.get_seq_length()} tokens and {self.memory.get_seq_length()} of a memory)"

    @property
    def bytes_used(self) -> int:
        """Bytes of all rows in use."""
        return self.own.bytes_used + self.memory.bytes_used

    @property
    def bytes_reserved(self) -> int:
        """Bytes of the storages behind them."""
        return self.own.bytes_reserved + self.memory.bytes_reserved

    def get_seq_length(self) -> int:
        """The decoder's tokens so far."""
        return self.own.get_seq_length()

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the decoder's last -`tokens_to_remove` tokens; the memory stays."""
        self.own.crop(tokens_to_remove)

    def reset(self) -> None:
        """Forget all tokens and the memory."""
        self.own.reset()
        self.memory.reset()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Sequence b becomes what sequence `beam_idx[b]` was."""
        self.own.reorder_cache(beam_idx)
        self.memory.reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence `repeats` times, one beside the other."""
        self.own.batch_repeat_interleave(repeats)
        self.memory.batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the sequences `indices` only, in that order."""
        self.own.batch_select_indices(indices)
        self.memory.batch_select_indices(indices)
