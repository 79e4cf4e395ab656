"""`RowLayer`: the rows of one decoder layer, in one storage, as a transformers cache layer.

It stores rows and knows nothing of queries, keys, rotary or sharing. Transformers' two-tensor interface carries the
two parts of a row: `update(heads, shared)` appends, and returns all rows so far in the dtype of the appended ones.
`append` does the same and returns the rows as they are kept, which is what a kernel reads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from twofold.cache.kept import KeptRows, dtype_of
from twofold.cache.storage import RowStorage
from twofold.kernels.decoder_step import Rows
from twofold.variants.layout import RowLayout

GROWTH = 1.5
"""A growing layer never reserves more than this many times the bytes it uses."""
_FRESH = 1.25  # a new storage takes half of that slack, so that cropping a few tokens does not move it
_WINDOW_SLACK = 8  # room for 1/8 more than the window: its rows move to the front once in so many tokens


class RowLayer(CacheLayerMixin):
    """Rows of B sequences. With `capacity` (tokens) it is allocated once and never moves; without, it grows.

    Rows are kept in the dtype they come in, and rows of another are refused later on. With `dtype` they are kept in
    that one: rounded when they are appended, and a copy in the dtype of the appended rows when `update` reads them.
    int8 rows have a float32 scale per row and head, see `cache.kept`.

    With `window` only the newest `window` rows are kept: what a query sees whose window includes its own token. A
    step of T tokens still gets the window − 1 rows before its first one and all T of its own. `capacity` then counts
    the tokens that may be appended, dropped ones included, and min(capacity, window + window // 8) rows are
    allocated.

    Shapes: `heads_BGTW` [B, G, T, head_width], `shared_BTW` [B, T, shared_width] or None, where T counts new tokens
    on the way in and all that this step sees on the way out.
    """

    supports_early_init = False  # the storage is made by the first rows, which know its dtype and device

    def __init__(
        self,
        layout: RowLayout,
        kv_heads: int,
        capacity: int | None = None,
        dtype: torch.dtype | str | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__()
        if window is not None and window < 1:
            raise ValueError(f"a window holds at least the token itself, so it must be at least 1, not {window}")
        self.layout = layout
        self.kv_heads = kv_heads
        self.capacity = capacity
        self.dtype = dtype_of(dtype)
        self.window = window
        self.is_sliding = window is not None
        self.record_past = False
        self.length = 0
        self._start = self._stop = 0  # where the kept rows lie in the storage
        self._storage: RowStorage | None = None
        self._most = sys.maxsize if capacity is None else capacity
        if window is not None:
            self._most = min(self._most, window + window // _WINDOW_SLACK)

    def __repr__(self) -> str:
        return f"RowLayer({self.length} tokens, {self.bytes_used:,} of {self.bytes_reserved:,} bytes used)"

    @property
    def bytes_used(self) -> int:
        """Bytes of the rows in use and their scales, from the shapes of their views."""
        if self._storage is None:
            return 0
        return sum(part.numel() * part.element_size() for part in self.kept() if part is not None)

    @property
    def bytes_reserved(self) -> int:
        """Bytes of the storages behind them, as the allocator was asked for them."""
        return 0 if self._storage is None else self._storage.nbytes

    @property
    def storage_id(self) -> int:
        """Identifies the storage, so that one that several layers read is counted once; 0 before the first rows."""
        return 0 if self._storage is None else self._storage.rows.untyped_storage().data_ptr()

    def kept(self) -> KeptRows:
        """Views of the rows in use, as they are kept. Only where there are any: see `is_initialized`."""
        assert self._storage is not None, "no rows were appended"
        return self._storage.read(self._start, self._stop)

    # Appending ------------------------------------------------------------------------------------------------

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor | None) -> None:
        """Allocate for the first rows: the whole capacity if there is one."""
        self._allocate(key_states, min(self._most, self._room(key_states.shape[2])))

    def update(
        self, key_states: Tensor, value_states: Tensor | None, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Append `heads_BGTW` (and `shared_BTW`) in place; the rows that these see, in the dtype of these, as views
        where it is the layer's. Raises ValueError for rows that do not fit.
        """
        return self.append(key_states, value_states).to(key_states.dtype)

    def append(self, heads_BGTW: Tensor, shared_BTW: Tensor | None = None) -> KeptRows:
        """Append in place; views of the rows that these see, as they are kept.

        These are all rows, `kept()`. With a window they are the newest window − 1 + T, `kept()` where T is 1, and only
        a T for which the storage has no room makes a copy, which the caller alone holds. Raises ValueError for rows
        that do not fit.
        """
        new, seen = heads_BGTW.shape[2], self._seen()  # read here at every step: see the test of compile
        storage = self._storage_for(heads_BGTW, shared_BTW)
        if self._overflows(storage, new):
            return self._through_a_copy(storage, seen, heads_BGTW, shared_BTW)
        storage = self._take(storage, seen, new)
        storage.write(self._stop - new, heads_BGTW, shared_BTW)
        return storage.read(self._stop - new - seen, self._stop)

    def has_room(self, batch: int, new: int, dtype: torch.dtype) -> bool:
        """Whether `claim` takes `new` rows of `batch` sequences that are made in `dtype`."""
        storage = self._storage
        if storage is None or self.layout.shared_width or not storage.rows.is_cpu or storage.rows.requires_grad:
            return False
        if (storage.batch, storage.dtype) != (batch, dtype if self.dtype is None else self.dtype):
            return False
        return not self._overflows(storage, new) and (self.capacity is None or self.length + new <= self.capacity)

    def claim(self, new: int) -> Rows:
        """Append rows that a kernel will write: where all lie that `new` tokens see. Only where it `has_room`."""
        assert self._storage is not None
        seen = self._seen()
        return self._take(self._storage, seen, new).memory(self._stop - new - seen, self._stop)

    def _seen(self) -> int:
        """Rows so far that the next token sees."""
        held = self._stop - self._start
        return held if self.window is None else min(held, self.window - 1)

    def _overflows(self, storage: RowStorage, new: int) -> bool:
        """Whether `new` rows and those that they see are more than a window has room for."""
        return self._stop + new > storage.tokens and not self.record_past and self._seen() + new > self._most

    def _take(self, storage: RowStorage, seen: int, new: int) -> RowStorage:
        """Count `new` rows as appended, after making room for them and the `seen` ones before."""
        if self._stop + new > storage.tokens:
            carried = self._stop - self._start if self.record_past else seen
            storage = self._make_room(storage, carried, carried + new)
        self.length += new
        self._stop += new
        if self.window is not None and not self.record_past:
            self._start = max(self._start, self._stop - self.window)
        return storage

    def restore(self, rows: KeptRows, length: int) -> None:
        """Take over `rows` as they were kept by a layer of this layout and window that had seen `length` tokens."""
        self._check_capacity(length)
        kept = rows.heads_BGSW.shape[2]
        self._allocate(rows.heads_BGSW, self._room(kept)).put(rows)
        self._stop, self.length = kept, length

    def _storage_for(self, heads_BGTW: Tensor, shared_BTW: Tensor | None) -> RowStorage:
        batch, kv_heads, new, width = heads_BGTW.shape
        assert (kv_heads, width) == (self.kv_heads, self.layout.head_width)
        assert (shared_BTW is not None) == (self.layout.shared_width > 0)
        self._check_capacity(self.length + new)
        storage, dtype = self._storage, heads_BGTW.dtype if self.dtype is None else self.dtype
        if storage is not None and storage.batch == batch and storage.dtype == dtype:
            return storage
        if storage is not None and self.length > 0:
            raise storage.refused(batch, heads_BGTW.dtype)
        self.lazy_initialization(heads_BGTW, shared_BTW)
        assert self._storage is not None
        return self._storage

    def _check_capacity(self, needed: int) -> None:
        if self.capacity is not None and needed > self.capacity:
            raise ValueError(f"the cache was made for {self.capacity} tokens and {needed} are needed: make it larger")

    # The storage ----------------------------------------------------------------------------------------------

    def _allocate(self, like: Tensor, tokens: int) -> RowStorage:
        self._storage = RowStorage.allocate(
            self.layout,
            self.kv_heads,
            batch=like.shape[0],
            tokens=tokens,
            dtype=like.dtype if self.dtype is None else self.dtype,
            device=like.device,
        )
        self.device = like.device
        self._start = self._stop = 0
        self.is_initialized = True
        return self._storage

    def _make_room(self, storage: RowStorage, carried: int, needed: int) -> RowStorage:
        """Bring the newest `carried` rows to the front of a storage with room for `needed`."""
        start = self._stop - carried
        if needed > storage.tokens:
            storage = self._storage = storage.resized(self._room(needed), start, self._stop)
        else:
            storage.slide(start, self._stop)
        self._start, self._stop = 0, carried
        return storage

    def _through_a_copy(
        self, storage: RowStorage, seen: int, heads_BGTW: Tensor, shared_BTW: Tensor | None
    ) -> KeptRows:
        """Append more rows than a window has room for: all that they see goes to a copy, and the window is kept."""
        assert self.window is not None
        end = seen + heads_BGTW.shape[2]
        step = storage.resized(end, self._stop - seen, self._stop)
        step.write(seen, heads_BGTW, shared_BTW)
        if storage.tokens < self._most:
            storage = self._storage = storage.resized(self._most, 0, 0)
        storage.put(step.read(end - self.window, end))
        self._start, self._stop = 0, self.window
        self.length += heads_BGTW.shape[2]
        return step.read(0, end)

    def _room(self, rows: int) -> int:
        """Rows to allocate where `rows` are needed; more than ever otherwise while the past is recorded."""
        if self.capacity is not None and rows <= self._most:
            return self._most
        return int(_FRESH * rows) if rows > self._most else min(self._most, int(_FRESH * rows))

    def _replace(self, change: Callable[[Tensor], Tensor]) -> None:
        """Put `change(tensor)` in the place of rows and scales."""
        if self._storage is not None:
            self._storage = self._storage.changed(change)

    # What generation does to a cache --------------------------------------------------------------------------

    @property
    def is_croppable(self) -> bool:
        """Whether any number of tokens can be cropped: a window drops rows that a crop would bring back."""
        return self.window is None or self.record_past

    def activate_past_recording(self) -> None:
        """From now on a window drops rows at the next `crop` only, so that any tokens until then can be cropped."""
        self.record_past = self.window is not None

    def get_seq_length(self) -> int:
        """Tokens so far, kept or not."""
        return self.length

    def get_max_length(self) -> int:
        """Capacity in tokens; -1 where it grows."""
        return -1 if self.capacity is None else self.capacity

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Positions that a step of `query_length` tokens sees rows of, and the first of these positions."""
        seen = self.length if self.window is None else min(self.length, self.window - 1)
        return seen + query_length, self.length - seen

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last -`tokens_to_remove` tokens; a growing layer gives back memory beyond `GROWTH`.

        Raises ValueError where the next token would need rows that a window has dropped.
        """
        if tokens_to_remove > 0:
            raise ValueError(f"crop takes minus the number of tokens to remove, not {tokens_to_remove}")
        if self._storage is None or (tokens_to_remove == 0 and not self.record_past):
            return
        left, kept = self.length + tokens_to_remove, self._stop - self._start + tokens_to_remove
        if left <= 0:
            self.reset()
            return
        if self.window is not None and kept < min(left, self.window - 1):
            raise ValueError(
                f"a window of {self.window} tokens has dropped what the next token would need after cropping "
                f"{-tokens_to_remove} of {self.length}: start again from a shorter text, or call "
                "`activate_past_recording` before the tokens that may be cropped"
            )
        self.length, self._stop = left, self._stop + tokens_to_remove
        if self.window is not None:
            kept = min(kept, self.window)
            self._start = self._stop - kept
        if self._storage.tokens > (GROWTH * kept if self.capacity is None else self._most):
            self._make_smaller(kept)

    def _make_smaller(self, kept: int) -> None:
        assert self._storage is not None
        self._storage = self._storage.resized(self._room(kept), self._start, self._stop)
        self._start, self._stop = 0, kept

    def reset(self) -> None:
        """Forget all tokens. A growing layer gives its storage back, a preallocated one keeps it."""
        self.length = self._start = self._stop = 0
        if self.capacity is None:
            self._storage = None
            self.is_initialized = False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Sequence b becomes what sequence `beam_idx[b]` was: in place, piece by piece."""
        if self._storage is not None and self.length > 0:
            self._storage.reorder(beam_idx, self._start, self._stop)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence `repeats` times, one beside the other."""
        self._replace(lambda part: part.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the sequences `indices` only."""
        self._replace(lambda part: part[indices.to(part.device)])

    def offload(self) -> None:
        """Move the storage to the CPU."""
        self._replace(lambda part: part.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        """Move the storage back to the device of its rows."""
        self._replace(lambda part: part.to(self.device, non_blocking=True))
