"""`RowStorage`: room for rows, in one storage, and for the scales of int8 rows in another.

Memory order: per sequence the parts of each head are contiguous over tokens, [G, C, head_width], then the shared
part, [C, shared_width], where C counts the tokens there is room for. Streaming one head's rows is then one straight
read. Scales lie in the same order, [G, C] and then [C].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from twofold.cache.kept import KeptRows, write_quantised
from twofold.kernels import pages
from twofold.kernels.decoder_step import Rows
from twofold.variants.layout import RowLayout

_PIECES = 16  # reordering goes through the rows in this many pieces: its scratch memory is 1/16 of the rows


class RowStorage:
    """Room for `tokens` rows of `batch` sequences: `rows` [B, C · numbers], `scales` [B, parts, C] or None.

    Views of all the room are made here, once: a decode step makes only those of its own rows.
    """

    def __init__(self, layout: RowLayout, kv_heads: int, rows: Tensor, scales: Tensor | None) -> None:
        self.layout, self.kv_heads = layout, kv_heads
        self.rows, self.scales = rows, scales
        self.batch, self.dtype = rows.shape[0], rows.dtype
        self.tokens = rows.shape[1] // layout.numbers(kv_heads)
        border = self.tokens * kv_heads * layout.head_width
        # Whatever mode these are made in, they are written in others: a view of no-grad mode could not be.
        with torch.inference_mode(False), torch.enable_grad():
            self._heads_BGCW = rows[:, :border].view(self.batch, kv_heads, self.tokens, layout.head_width)
            self._shared_BCW = None
            if layout.shared_width:
                self._shared_BCW = rows[:, border:].view(self.batch, self.tokens, layout.shared_width)
            self._scales_BGC = self._shared_scales_BC = None
            if scales is not None:
                self._scales_BGC = scales[:, :kv_heads]
                self._shared_scales_BC = scales[:, kv_heads] if layout.shared_width else None
            self._rooms = [(self._heads_BGCW, self._scales_BGC)]
            if self._shared_BCW is not None:
                shared_scales = None if scales is None else scales[:, kv_heads:]
                self._rooms.append((self._shared_BCW.unsqueeze(1), shared_scales))

    @classmethod
    def allocate(
        cls, layout: RowLayout, kv_heads: int, *, batch: int, tokens: int, dtype: torch.dtype, device: torch.device
    ) -> RowStorage:
        """Memory that nothing was written to."""
        with torch.inference_mode(False):  # rows may be written outside the mode that the first ones came in
            rows = pages.empty(batch, tokens * layout.numbers(kv_heads), dtype=dtype, device=device)
            scales = None
            if dtype == torch.int8:
                scales = torch.empty(batch, layout.parts(kv_heads), tokens, dtype=torch.float32, device=device)
        return cls(layout, kv_heads, rows, scales)

    def resized(self, tokens: int, start: int, stop: int) -> RowStorage:
        """Other memory for `tokens` rows, with the rows from `start` to `stop` of this one at its front."""
        made = self.allocate(
            self.layout,
            self.kv_heads,
            batch=self.batch,
            tokens=tokens,
            dtype=self.dtype,
            device=self.rows.device,
        )
        for new, old in zip(made._parts(), self._parts(), strict=True):
            new.narrow(2, 0, stop - start).copy_(old.narrow(2, start, stop - start))
        return made

    @property
    def nbytes(self) -> int:
        """Bytes of the storages, as the allocator was asked for them."""
        held = self.rows.untyped_storage().nbytes()
        return held if self.scales is None else held + self.scales.untyped_storage().nbytes()

    def refused(self, batch: int, dtype: torch.dtype) -> ValueError:
        """The error for rows of `batch` sequences that do not fit those that are kept here."""
        if self.batch != batch:
            return ValueError(
                f"the cache holds rows of {self.batch} sequences and got rows of {batch}: "
                "reset it, repeat its sequences (`batch_repeat_interleave`), or use a new one"
            )
        return ValueError(
            f"the cache holds {self.dtype} rows and got {dtype}: use a new one, or make it with "
            "the dtype to keep rows in (`new_cache(dtype=...)`)"
        )

    def write(self, at: int, heads_BGTW: Tensor, shared_BTW: Tensor | None) -> None:
        """Put T rows at `at`, rounded to this storage's dtype."""
        tokens = heads_BGTW.shape[2]
        given = [heads_BGTW] if shared_BTW is None else [heads_BGTW, shared_BTW.unsqueeze(1)]
        for part_BGTW, (room_BGCW, scales_BGC) in zip(given, self._rooms, strict=True):
            to_BGTW = room_BGCW.narrow(2, at, tokens)
            if scales_BGC is None:
                to_BGTW.copy_(part_BGTW)
            else:
                write_quantised(part_BGTW, to_BGTW, scales_BGC.narrow(2, at, tokens))

    def put(self, rows: KeptRows) -> None:
        """Put rows that were kept elsewhere at the front, as they are."""
        for number, given in enumerate(rows):
            # A view of its own for each: the one before has changed what both lie in, which matters for gradients.
            own = self.read(0, rows.heads_BGSW.shape[2])[number]
            assert (own is None) == (given is None)
            if own is not None and given is not None:
                own.copy_(given)

    def read(self, start: int, stop: int) -> KeptRows:
        """Views of the rows from `start` to `stop`."""
        tokens = stop - start
        heads_BGSW = self._heads_BGCW.narrow(2, start, tokens)
        shared_BSW = None if self._shared_BCW is None else self._shared_BCW.narrow(1, start, tokens)
        if self._scales_BGC is None:
            return KeptRows(heads_BGSW, shared_BSW)
        scales_BS = None if self._shared_scales_BC is None else self._shared_scales_BC.narrow(1, start, tokens)
        return KeptRows(heads_BGSW, shared_BSW, self._scales_BGC.narrow(2, start, tokens), scales_BS)

    def memory(self, start: int, stop: int) -> Rows:
        """Where the rows of heads from `start` to `stop` lie, for a kernel that reads and writes them itself."""
        heads_BGCW, scales_BGC = self._heads_BGCW, self._scales_BGC
        batch, group, row, _ = heads_BGCW.stride()
        address = heads_BGCW.data_ptr() + start * row * heads_BGCW.element_size()
        if scales_BGC is None:
            return Rows(self.dtype, address, (batch, group, row), stop - start)
        of_batch, of_group, of_scale = scales_BGC.stride()
        scales_address = scales_BGC.data_ptr() + start * of_scale * scales_BGC.element_size()
        strides = (of_batch, of_group, of_scale)
        return Rows(self.dtype, address, (batch, group, row), stop - start, scales_address, strides)

    def slide(self, start: int, stop: int) -> None:
        """Move the rows from `start` to `stop` to the front, in pieces that do not overlap where they go."""
        for part in self._parts():
            for begin in range(start, stop, start):
                tokens = min(start, stop - begin)
                part.narrow(2, begin - start, tokens).copy_(part.narrow(2, begin, tokens))

    def reorder(self, index: Tensor, start: int, stop: int) -> None:
        """Sequence b becomes what sequence `index[b]` was: in place, piece by piece, from `start` to `stop`."""
        assert len(index) == self.batch, "beams are reordered, not added or dropped"
        index = index.to(self.rows.device)
        step = max(1, (stop - start) // _PIECES)
        for part in self._parts():
            for begin in range(start, stop, step):
                piece = part.narrow(2, begin, min(step, stop - begin))
                piece.copy_(piece.index_select(0, index))

    def changed(self, change: Callable[[Tensor], Tensor]) -> RowStorage:
        """A storage of `change`d tensors, which have sequences first: repeated, selected, elsewhere."""
        with torch.inference_mode(False):  # as in `allocate`
            scales = None if self.scales is None else change(self.scales)
            return RowStorage(self.layout, self.kv_heads, change(self.rows), scales)

    def _parts(self) -> list[Tensor]:
        """Views of everything, with tokens in dimension 2."""
        return [*(room for room, _ in self._rooms), *([] if self.scales is None else [self.scales])]
