"""`RowLayer`: the rows of one decoder layer, in one storage, as a transformers cache layer.

It stores rows and knows nothing of queries, keys, rotary or sharing. Transformers' two-tensor interface carries the
two parts of a row: `update(heads, shared)` appends, and returns views of all rows so far.

Memory order: per sequence the parts of each head are contiguous over tokens, [G, capacity, head_width], then the
shared part, [capacity, shared_width]. Streaming one head's rows is then one straight read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from twofold.variants.layout import RowLayout

GROWTH = 1.5
"""A growing layer never reserves more than this many times the bytes it uses."""
_FRESH = 1.25  # a new buffer takes half of that slack, so that cropping a few tokens does not move it
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""What rows can be kept in."""
_CHUNKS = 16  # reordering goes through the rows in this many pieces: its scratch memory is 1/16 of the rows


class RowLayer(CacheLayerMixin):
    """Rows of B sequences. With `capacity` (tokens) it is allocated once and never moves; without, it grows.

    Rows are kept in the dtype they come in, and rows of another are refused later on. With `dtype` they are kept in
    that one: rounded when they are appended, and a copy in the dtype of the appended rows when they are read.

    Shapes: `heads_BGTW` [B, G, T, head_width], `shared_BTW` [B, T, shared_width] or None, where T counts new tokens
    on the way in and all tokens on the way out.
    """

    is_croppable = True
    supports_early_init = False  # the buffer is made by the first rows, which know its dtype and device

    def __init__(
        self, layout: RowLayout, kv_heads: int, capacity: int | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        if dtype is not None and dtype not in DTYPES:
            raise ValueError(f"rows can be kept in {', '.join(str(known) for known in DTYPES)}, and not in {dtype}")
        self.layout = layout
        self.kv_heads = kv_heads
        self.capacity = capacity
        self.dtype = dtype
        self.length = 0
        self._buffer: Tensor | None = None

    def __repr__(self) -> str:
        return f"RowLayer({self.length} tokens, {self.bytes_used:,} of {self.bytes_reserved:,} bytes used)"

    @property
    def bytes_used(self) -> int:
        """Bytes of the rows in use, from the shapes of their views."""
        return sum(part.numel() * part.element_size() for part in self._parts())

    @property
    def bytes_reserved(self) -> int:
        """Bytes of the storage behind them, as the allocator was asked for it."""
        return 0 if self._buffer is None else self._buffer.untyped_storage().nbytes()

    @property
    def storage_id(self) -> int:
        """Identifies the storage, so that one that several layers read is counted once; 0 before the first rows."""
        return 0 if self._buffer is None else self._buffer.untyped_storage().data_ptr()

    def rows(self) -> tuple[Tensor, Tensor | None]:
        """Views of all rows as they are kept. Only where there are any: see `is_initialized`."""
        heads_BGSW, *rest = self._parts()
        return heads_BGSW, rest[0][:, 0] if rest else None

    # Appending ------------------------------------------------------------------------------------------------

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor | None) -> None:
        """Allocate for the first rows: the whole capacity if there is one."""
        self.device = key_states.device
        tokens = self.capacity if self.capacity is not None else int(_FRESH * key_states.shape[2])
        self._buffer = self._allocate(key_states, key_states.shape[0], tokens)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor | None, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Append `heads_BGTW` (and `shared_BTW`) in place; all rows, in the dtype of these, as views where it is the
        layer's. Raises ValueError for rows that do not fit.
        """
        heads_BGTW, shared_BTW = key_states, value_states
        self._check(heads_BGTW, shared_BTW)
        start, end = self.length, self.length + heads_BGTW.shape[2]
        if self.length == 0 and not self._made_for(heads_BGTW):
            self.lazy_initialization(heads_BGTW, shared_BTW)
        elif end > self._buffer_tokens:
            self._move(int(_FRESH * end))
        self.length = end
        heads_BGSW, shared_BSW = self.rows()
        heads_BGSW[:, :, start:].copy_(heads_BGTW)
        if shared_BSW is None or shared_BTW is None:
            return heads_BGSW.to(heads_BGTW.dtype), None
        shared_BSW[:, start:].copy_(shared_BTW)
        return heads_BGSW.to(heads_BGTW.dtype), shared_BSW.to(shared_BTW.dtype)

    def _check(self, heads_BGTW: Tensor, shared_BTW: Tensor | None) -> None:
        assert heads_BGTW.shape[1::2] == (self.kv_heads, self.layout.head_width)
        assert (shared_BTW is not None) == (self.layout.shared_width > 0)
        needed = self.length + heads_BGTW.shape[2]
        if self.capacity is not None and needed > self.capacity:
            raise ValueError(f"the cache was made for {self.capacity} tokens and {needed} are needed: make it larger")
        if self._buffer is None or self.length == 0:
            return
        if heads_BGTW.shape[0] != self._buffer.shape[0]:
            raise ValueError(
                f"the cache holds rows of {self._buffer.shape[0]} sequences and got rows of {heads_BGTW.shape[0]}: "
                "reset it, repeat its sequences (`batch_repeat_interleave`), or use a new one"
            )
        if self._buffer.dtype != self._kept_dtype(heads_BGTW):
            raise ValueError(
                f"the cache holds {self._buffer.dtype} rows and got {heads_BGTW.dtype}: use a new one, or make it with "
                "the dtype to keep rows in (`new_cache(dtype=...)`)"
            )

    def _made_for(self, rows: Tensor) -> bool:
        buffer = self._buffer
        return buffer is not None and (buffer.shape[0], buffer.dtype) == (rows.shape[0], self._kept_dtype(rows))

    def _kept_dtype(self, rows: Tensor) -> torch.dtype:
        return rows.dtype if self.dtype is None else self.dtype

    # The storage ----------------------------------------------------------------------------------------------

    @property
    def _buffer_tokens(self) -> int:
        assert self._buffer is not None
        return self._buffer.shape[1] // self.layout.numbers(self.kv_heads)

    def _allocate(self, like: Tensor, batch: int, tokens: int) -> Tensor:
        with torch.inference_mode(False):  # rows may be written outside the mode that the first ones came in
            return like.new_empty(batch, tokens * self.layout.numbers(self.kv_heads), dtype=self._kept_dtype(like))

    def _replace(self, change: Callable[[Tensor], Tensor]) -> None:
        """Put `change(buffer)` in the buffer's place."""
        if self._buffer is not None:
            with torch.inference_mode(False):  # as in `_allocate`
                self._buffer = change(self._buffer)

    def _parts(self) -> Iterator[Tensor]:
        """Views of the rows in use: [B, G, S, head_width], then [B, 1, S, shared_width] where rows have that part."""
        if self._buffer is None:
            return
        batch, tokens = self._buffer.shape[0], self._buffer_tokens
        border = tokens * self.kv_heads * self.layout.head_width
        for flat, count, width in (
            (self._buffer[:, :border], self.kv_heads, self.layout.head_width),
            (self._buffer[:, border:], 1, self.layout.shared_width),
        ):
            if width:
                yield flat.view(batch, count, tokens, width)[:, :, : self.length]

    def _move(self, tokens: int) -> None:
        """Move the rows in use into a new buffer of `tokens`."""
        assert self._buffer is not None
        old = list(self._parts())
        self._buffer = self._allocate(self._buffer, self._buffer.shape[0], tokens)
        for new, kept in zip(self._parts(), old, strict=True):
            new.copy_(kept)

    # What generation does to a cache --------------------------------------------------------------------------

    def get_seq_length(self) -> int:
        """Cached tokens S."""
        return self.length

    def get_max_length(self) -> int:
        """Capacity in tokens; -1 where it grows."""
        return -1 if self.capacity is None else self.capacity

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Cached positions after `query_length` more tokens, and the position of the first one."""
        return self.length + query_length, 0

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last -`tokens_to_remove` tokens; a growing layer gives back memory beyond `GROWTH`."""
        if tokens_to_remove > 0:
            raise ValueError(f"crop takes minus the number of tokens to remove, not {tokens_to_remove}")
        if not self.is_initialized or tokens_to_remove == 0:
            return
        self.length = max(0, self.length + tokens_to_remove)
        if self.length == 0:
            self.reset()
        elif self.capacity is None and self._buffer_tokens > GROWTH * self.length:
            self._move(int(_FRESH * self.length))

    def reset(self) -> None:
        """Forget all tokens. A growing layer gives its storage back, a preallocated one keeps it."""
        self.length = 0
        if self.capacity is None:
            self._buffer = None
            self.is_initialized = False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Sequence b becomes what sequence `beam_idx[b]` was: in place, piece by piece."""
        if self._buffer is None or self.length == 0:
            return
        index = beam_idx.to(self._buffer.device)
        assert len(index) == self._buffer.shape[0], "beams are reordered, not added or dropped"
        step = max(1, self.length // _CHUNKS)
        for part in self._parts():
            for start in range(0, self.length, step):
                piece = part[:, :, start : start + step]
                piece.copy_(piece.index_select(0, index))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence `repeats` times, one beside the other."""
        self._replace(lambda buffer: buffer.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the sequences `indices` only."""
        self._replace(lambda buffer: buffer[indices.to(buffer.device)])

    def offload(self) -> None:
        """Move the storage to the CPU."""
        self._replace(lambda buffer: buffer.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        """Move the storage back to the device of its rows."""
        self._replace(lambda buffer: buffer.to(self.device, non_blocking=True))
