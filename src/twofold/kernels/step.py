"""One decode step's attention as a value: queries, rows, and where keys and values lie in them; checked as a whole."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

ROW_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int8)
"""What rows may be kept in. int8 rows come with a scale for each row and head."""
QUERY_DTYPES = ROW_DTYPES[:-1]
_TENSORS = ("queries", "rows", "shared rows", "scales", "shared scales", "starts", "lengths", "frequencies")
_INFINITY = float("inf")
_FAR = 2**53  # float64, in which angles are computed, tells whole numbers apart so far


class Step(NamedTuple):
    """The arguments of `decode.decode_attention`, which says what they mean; nothing is left to a default."""

    query: Tensor  # [B, H, T, D]
    heads: Tensor  # [B, G, S, W]
    shared: Tensor | None  # [B, S, W]
    key: tuple[int, int]
    value: tuple[int, int]
    shared_key: tuple[int, int] | None
    scale: float
    softcap: float
    starts: Tensor | None  # [B]
    lengths: Tensor | None  # [B]
    window: int | None
    scales: Tensor | None  # [B, G, S]
    shared_scales: Tensor | None  # [B, S]
    frequencies: Tensor | None  # [r/2]
    first_position: int

    @property
    def key_dim(self) -> int:
        """Numbers in a key: those of the head's own part and of the shared one."""
        own = self.key[1] - self.key[0]
        return own if self.shared_key is None else own + self.shared_key[1] - self.shared_key[0]

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All of them, the queries first, as `_TENSORS` names them."""
        query, heads, shared, _, _, _, _, _, starts, lengths, _, scales, shared_scales, frequencies, _ = self
        return query, heads, shared, scales, shared_scales, starts, lengths, frequencies

    @property
    def value_dim(self) -> int:
        """Numbers in a value."""
        return self.value[1] - self.value[0]

    def check(self) -> None:
        """Raises ValueError that says what disagrees. Reads shapes, dtypes and devices, never the tensors' contents."""
        _check_shapes(self)
        _check_spans(self)
        _check_scales(self)
        if not torch.compiler.is_compiling():  # for which they may be symbols
            _check_numbers(self)
        _check_positions(self)
        self.check_limits()

    def check_limits(self) -> None:
        """Raises ValueError for starts, lengths, a window or a softcap that do not fit, or tensors far apart."""
        _check_limits(self)
        _check_devices(self)

    def check_contents(self) -> None:
        """Raises ValueError for a start or a length outside the rows. Reads the tensors."""
        starts, lengths, rows = self.starts, self.lengths, self.heads.shape[2]
        wrong_B = torch.zeros(self.query.shape[0], dtype=torch.bool)
        if starts is not None:
            wrong_B = wrong_B | (starts < 0)
        if lengths is not None:
            wrong_B = wrong_B | (lengths < 0) | (lengths > rows)
        if bool(wrong_B.any()):
            raise misplaced(int(wrong_B.nonzero()[0]), rows, starts, lengths)


def misplaced(sequence: int, rows: int, starts_B: Tensor | None, lengths_B: Tensor | None) -> ValueError:
    """The error for a sequence whose start or length is not in its rows."""
    start = 0 if starts_B is None else int(starts_B[sequence])
    length = rows if lengths_B is None else int(lengths_B[sequence])
    return ValueError(f"sequence {sequence} starts at row {start} and has {length} rows, and {rows} rows are there")


def _check_shapes(step: Step) -> None:
    query, heads = step.query, step.heads
    if query.ndim != 4 or heads.ndim != 4 or query.shape[2] < 1:
        raise ValueError(
            f"queries must be [B, H, T, D] with T ≥ 1 and rows [B, G, S, W], not {list(query.shape)} "
            f"and {list(heads.shape)}"
        )
    if query.shape[0] != heads.shape[0]:
        raise ValueError(f"there are queries of {query.shape[0]} sequences and rows of {heads.shape[0]}")
    if heads.shape[1] < 1 or query.shape[1] % heads.shape[1]:
        raise ValueError(f"{query.shape[1]} query heads do not share {heads.shape[1]} key/value heads evenly")
    if query.dtype not in QUERY_DTYPES or heads.dtype not in ROW_DTYPES:
        raise ValueError(
            f"queries of {query.dtype} and rows of {heads.dtype}: queries may be {_names(QUERY_DTYPES)}, "
            f"rows {_names(ROW_DTYPES)}"
        )


def _check_spans(step: Step) -> None:
    heads, shared = step.heads, step.shared
    if (shared is None) != (step.shared_key is None):
        raise ValueError("shared rows and the span shared_key of their key come together: one of them is missing")
    parts = [("key", step.key, heads.shape[3]), ("value", step.value, heads.shape[3])]
    if shared is not None and step.shared_key is not None:
        if shared.ndim != 3 or shared.shape[:2] != (heads.shape[0], heads.shape[2]) or shared.dtype != heads.dtype:
            raise ValueError(
                f"shared rows must be [B, S, W] = [{heads.shape[0]}, {heads.shape[2]}, W] of {heads.dtype}, "
                f"not {list(shared.shape)} of {shared.dtype}"
            )
        parts.append(("shared key", step.shared_key, shared.shape[2]))
    for name, (start, stop), width in parts:
        if not 0 <= start < stop <= width:
            raise ValueError(f"the {name} [{start}:{stop}) does not lie in a part of {width} numbers")
    if step.query.shape[3] != step.key_dim:
        raise ValueError(f"queries have {step.query.shape[3]} dims and the rows' keys {step.key_dim}")


def _check_scales(step: Step) -> None:
    batch, groups, rows, _ = step.heads.shape
    quantised = step.heads.dtype == torch.int8
    wanted = (
        ("scales_BGS", step.scales, quantised, (batch, groups, rows)),
        ("shared_scales_BS", step.shared_scales, quantised and step.shared is not None, (batch, rows)),
    )
    for name, scales, needed, shape in wanted:
        if (scales is not None) != needed:
            kind = f"{step.heads.dtype} rows" + ("" if step.shared is None else " with a shared part")
            raise ValueError(f"{kind} {'need' if needed else 'take no'} {name}")
        if scales is not None and (scales.shape != shape or scales.dtype != torch.float32):
            raise ValueError(f"{name} must be {list(shape)} of torch.float32, not {list(scales.shape)} {scales.dtype}")


def _check_numbers(step: Step) -> None:
    window, first = step.window, step.first_position
    if window is not None and not (hasattr(window, "__index__") and window <= _FAR):
        raise ValueError(f"a window is a whole number of rows, up to 2^53, not {window}")
    if not (hasattr(first, "__index__") and -_FAR <= first <= _FAR):
        raise ValueError(f"first_position must be a whole number within ±2^53, not {first}")
    if not (hasattr(step.scale, "__float__") and -_INFINITY < step.scale < _INFINITY):
        raise ValueError(f"scale must be a finite number, or None for D^(-1/2), not {step.scale!r}")
    if not hasattr(step.softcap, "__float__"):
        raise ValueError(f"softcap must be a positive number, or 0 for none, not {step.softcap!r}")


def _check_limits(step: Step) -> None:
    batch = step.query.shape[0]
    for name, limits in (("starts_B", step.starts), ("lengths_B", step.lengths)):
        if limits is not None and (limits.shape != (batch,) or limits.dtype != torch.int64):
            raise ValueError(f"{name} must be [{batch}] of torch.int64, not {list(limits.shape)} of {limits.dtype}")
    if step.window is not None and step.window < 1:
        raise ValueError(f"a window holds 1 row or more, not {step.window}")
    if not 0 <= step.softcap < _INFINITY:
        raise ValueError(f"softcap must be a positive number, or 0 for none, not {step.softcap}")


def _check_positions(step: Step) -> None:
    turns = step.frequencies
    if turns is None:
        return
    if turns.ndim != 1 or turns.dtype not in (torch.float64, torch.float32) or 2 * len(turns) > step.key_dim:
        raise ValueError(
            f"frequencies must be [r/2] of float64 or float32 with r at most the key's {step.key_dim} dims, "
            f"not {list(turns.shape)} of {turns.dtype}"
        )


def _check_devices(step: Step) -> None:
    device = step.query.device
    for tensor in step.tensors:
        if tensor is not None and tensor.device != device:
            name = next(name for name, one in zip(_TENSORS, step.tensors, strict=True) if one is tensor)
            raise ValueError(f"queries are on {device} and {name} on {tensor.device}: they must be on one device")


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
