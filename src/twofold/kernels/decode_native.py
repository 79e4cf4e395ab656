"""Decode attention by the native library, as the torch operator twofold::decode_attention.

Being an operator, it can be traced by torch.compile and torch.export. It has no gradient.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from twofold.kernels import direct, native
from twofold.kernels.step import Step, misplaced

MOST_POSITIONS = 8
"""Query positions of one step at most; more is a prefill, which is matrix products."""
_ROW_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3}
_FIELDS = struct.Struct("=37q2dq")  # DecodeArguments in csrc/decode.h
_SCHEMA = (
    "(Tensor query, Tensor heads, Tensor? shared, int[] key, int[] value, int[]? shared_key, float scale, "
    "float softcap, Tensor? starts, Tensor? lengths, int? window, Tensor? scales, Tensor? shared_scales, "
    "Tensor? frequencies, int first_position) -> Tensor"
)


def attend(step: Step) -> Tensor:
    """The output [B, H, T, value width] in the query's dtype; `step` must have been checked and `obstacle` be None.

    Raises ValueError where a start or a length does not lie in the rows.
    """
    if type(step.query) is type(step.heads) is Tensor and not torch.compiler.is_compiling():
        return _attend(*step)  # the way through the dispatcher takes longer than a short context
    return torch.ops.twofold.decode_attention(*step)


def obstacle(step: Step) -> str | None:
    """Why the native library cannot do this step, or None."""
    query, heads, shared = step.query, step.heads, step.shared
    if not native.AVAILABLE:
        return native.why_not()
    if not (query.is_cpu and heads.is_cpu):
        return f"queries are on {query.device.type} and rows on {heads.device.type}"
    if query.shape[2] > MOST_POSITIONS:
        return f"{query.shape[2]} query positions are more than {MOST_POSITIONS}"
    if query.dtype == torch.float64 or heads.dtype not in _ROW_CODES:
        return f"queries of {query.dtype} and rows of {heads.dtype} would be computed in float32"
    parts = (step.key, step.value) if step.shared_key is None else (step.key, step.value, step.shared_key)
    for start, stop in parts:
        if (stop - start) % 8:
            return f"key and value must have a multiple of 8 dims: {', '.join(f'[{a}:{b})' for a, b in parts)}"
    if heads.stride(3) != 1 or (shared is not None and shared.stride(2) != 1):
        return "the numbers of a row are not contiguous"
    return direct.obstacle(*step.tensors) or None


def _attend(
    query: Tensor,
    heads: Tensor,
    shared: Tensor | None,
    key: Sequence[int],
    value: Sequence[int],
    shared_key: Sequence[int] | None,
    scale: float,
    softcap: float,
    starts: Tensor | None,
    lengths: Tensor | None,
    window: int | None,
    scales: Tensor | None,
    shared_scales: Tensor | None,
    frequencies: Tensor | None,
    first_position: int,
) -> Tensor:
    batch, query_heads, positions, _ = query.shape
    queries = query if query.dtype == torch.float32 else query.float()
    if queries.stride(3) != 1:
        queries = queries.contiguous()
    if starts is not None:
        starts = starts.contiguous()
    if lengths is not None:
        lengths = lengths.contiguous()
    if frequencies is not None:
        frequencies = frequencies.to(torch.float64).contiguous()
    out = query.new_empty((batch, query_heads, positions, value[1] - value[0]), dtype=torch.float32)
    strides = queries.stride()
    heads_strides = heads.stride()
    arguments = _FIELDS.pack(
        batch,
        query_heads,
        heads.shape[1],
        positions,
        heads.shape[2],
        queries.data_ptr(),
        *strides[:3],
        out.data_ptr(),
        _ROW_CODES[heads.dtype],
        heads.data_ptr(),
        *heads_strides[:3],
        *((0, 0, 0) if shared is None else (shared.data_ptr(), *shared.stride()[:2])),
        key[0],
        key[1] - key[0],
        value[0],
        value[1] - value[0],
        *((0, 0) if shared_key is None else (shared_key[0], shared_key[1] - shared_key[0])),
        0 if starts is None else starts.data_ptr(),
        0 if lengths is None else lengths.data_ptr(),
        window or 0,
        *((0, 0, 0, 0) if scales is None else (scales.data_ptr(), *scales.stride())),
        *((0, 0, 0) if shared_scales is None else (shared_scales.data_ptr(), *shared_scales.stride())),
        *((0, 0) if frequencies is None else (frequencies.data_ptr(), len(frequencies))),
        first_position,
        scale,
        softcap,
        torch.get_num_threads(),
    )
    if failed := native.library().twofold_decode(arguments):
        raise _failure(failed, heads.shape[2], starts, lengths)
    return out if query.dtype == torch.float32 else out.to(query.dtype)


def _failure(code: int, rows: int, starts: Tensor | None, lengths: Tensor | None) -> Exception:
    if code < 0:
        return MemoryError("no memory for the partial results of decode attention")
    return misplaced(code - 1, rows, starts, lengths)


def _fake(
    query: Tensor, heads: Tensor, shared: Tensor | None, key: Sequence[int], value: Sequence[int], *_: object
) -> Tensor:
    return query.new_empty((*query.shape[:3], value[1] - value[0]))


_DEFINITIONS = torch.library.Library("twofold", "FRAGMENT")
_DEFINITIONS.define("decode_attention" + _SCHEMA)
_DEFINITIONS.impl("decode_attention", _attend, "CPU")
torch.library.register_fake("twofold::decode_attention", _fake, lib=_DEFINITIONS)
