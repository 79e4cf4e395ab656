"""One decode step of a whole decoder in one native call: all blocks and the last norm, for one to four tokens.

Reading the weights is most of such a step's work. Made operation by operation it takes torch and Python longer than
that for a small model, so here the blocks are walked natively. Who calls has found that the shapes fit together, that
tensors are plain ones on a CPU, and that nobody looks on (`kernels.direct`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from twofold.kernels import native
from twofold.kernels.matvec import MAX_TOKENS

MOST_TOKENS = MAX_TOKENS
"""Of all sequences together."""
DTYPES = (torch.float32, torch.bfloat16)
"""Of hidden states, norms and biases. Weights may be int8 as well, with scales."""
CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3}  # enum DType in csrc/types.h
_LINEAR = struct.Struct("=8q")  # StepLinear in csrc/decoder_step.h
_NORM = struct.Struct("=3qd")  # StepNorm
_ROWS = struct.Struct("=10q")  # StepRows
_STEP = struct.Struct("=24q2dq3qd2q")  # DecoderStep
_NOTHING = bytes(_LINEAR.size)


class Tail(IntEnum):
    """What follows a key in its row."""

    NOTHING = 0
    VALUE = 1
    RAW = 2  # the dims of the key that rotary turns, unturned


class Reading(IntEnum):
    """What is done to what a head read."""

    AS_IT_IS = 0
    TURNED_BACK = 1
    ROLLED = 2  # its last dims, as many as rotary turns, to the front


class Activation(IntEnum):
    """What follows the first product of an MLP: of enum Then in csrc/matvec.h."""

    SILU_GATED = 0  # nothing: the gate does
    GELU = 2
    GELU_TANH = 3
    RELU = 4


class Form(NamedTuple):
    """How the layers of a decoder make queries and rows, and what they read."""

    heads: int
    groups: int
    head_dim: int
    query_is_key: bool
    keys_turned: bool  # as they lie in rows; else they are turned when they are read
    tail: Tail
    reading: Reading
    row_width: int
    key_start: int
    value_start: int
    scale: float
    softcap: float


class Rows(NamedTuple):
    """Memory of a layer's rows from the first that the step sees, with room for those of the new tokens at the end."""

    dtype: torch.dtype
    address: int
    strides: tuple[int, int, int]  # of [B, G, S] in numbers
    tokens: int  # S
    scales_address: int = 0
    scales_strides: tuple[int, int, int] = (0, 0, 0)


def packed_linear(weight_NK: Tensor | None, bias_N: Tensor | None = None, scales_N: Tensor | None = None) -> bytes:
    """A matrix as the native library reads it; None for no such matrix. It stays in use as long as it lies there."""
    if weight_NK is None:
        return _NOTHING
    bias = (0, 0) if bias_N is None else (bias_N.data_ptr(), CODES[bias_N.dtype])
    scales = 0 if scales_N is None else scales_N.data_ptr()
    shape = weight_NK.shape
    return _LINEAR.pack(
        weight_NK.data_ptr(), CODES[weight_NK.dtype], weight_NK.stride(0), shape[0], shape[1], *bias, scales
    )


def packed_norm(weight_M: Tensor, bias_M: Tensor | None, epsilon: float) -> bytes:
    """A LayerNorm, or without a bias an RMSNorm."""
    return _NORM.pack(weight_M.data_ptr(), 0 if bias_M is None else bias_M.data_ptr(), CODES[weight_M.dtype], epsilon)


def decoder_step(
    x_BTM: Tensor,
    positions_BT: Tensor,
    frequencies: Tensor | None,
    form: Form,
    activation: Activation,
    blocks: bytes,
    last_norm: bytes,
    rows: Sequence[Rows],
    windows: Sequence[int | None],
    *,
    total: int,
    starts_B: Tensor | None = None,
    first_position: int = 0,
) -> Tensor:
    """Hidden states [B, T, M] after all blocks and the last norm; the tokens' rows are written into `rows`.

    `blocks` are, one after the other, two `packed_norm` (before attention and before the MLP) and seven `packed_linear`
    (query, key, value, output, gate, up, down). `positions_BT` [B or 1, T] int64 and `frequencies` [r/2] float64 turn
    queries and keys. `total`, `starts_B` (int64) and `first_position` as in `attention.decoding.DecodeMask`.
    """
    batch, tokens, width = x_BTM.shape
    x_BTM, positions_BT = x_BTM.contiguous(), positions_BT.contiguous()
    out_BTM = torch.empty_like(x_BTM)
    each = b"".join(
        [
            _ROWS.pack(of.address, *of.strides, of.tokens, window or 0, of.scales_address, *of.scales_strides)
            for of, window in zip(rows, windows, strict=True)
        ]
    )
    step = _STEP.pack(
        batch,
        tokens,
        width,
        form.heads,
        form.groups,
        form.head_dim,
        x_BTM.data_ptr(),
        CODES[x_BTM.dtype],
        out_BTM.data_ptr(),
        positions_BT.data_ptr(),
        0 if len(positions_BT) == 1 else tokens,
        *((0, 0) if frequencies is None else (frequencies.data_ptr(), len(frequencies))),
        form.query_is_key,
        form.keys_turned,
        form.tail,
        form.reading,
        CODES[rows[0].dtype],
        form.row_width,
        form.key_start,
        form.value_start,
        0 if starts_B is None else starts_B.data_ptr(),
        total,
        first_position,
        form.scale,
        form.softcap,
        len(rows),
        *_NORM.unpack(last_norm),
        torch.get_num_threads(),
        activation,
    )
    if native.library().twofold_decoder_step(step, blocks, each):
        raise MemoryError(f"no memory for a decode step of {batch * tokens} tokens")
    return out_BTM
