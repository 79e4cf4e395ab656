"""What a decode step does once per token beside products and attention, in one native call each.

RMSNorm, rotary positions and int8 rows are few numbers, and take torch several operations each, of which each costs
more than its arithmetic. These functions take plain CPU tensors for which `serves` was true; they have no gradient.
"""

from __future__ import annotations

import struct

import torch
from torch import Tensor, nn

from twofold.kernels import direct, native

MOST_NUMBERS = 2**15
"""Of one call: beyond, torch's operations run on several threads."""
_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # enum DType in csrc/types.h
_PLAIN_TENSORS = (Tensor, nn.Parameter)  # not other subclasses: those have operations of their own
_NORM = struct.Struct("=6qd")  # NormTask in csrc/per_token.h
_TURN = struct.Struct("=13qdq")  # TurnTask
_QUANTISE = struct.Struct("=17q")  # QuantiseTask


def serves(x: Tensor, *others: Tensor) -> bool:
    """Whether the native library takes `x`, with tensors of its dtype beside it, and nobody wants to look on.

    A graph that is compiled or exported keeps to torch's operations, which a compiler joins as well.
    """
    if torch.compiler.is_compiling() or not native.AVAILABLE or x.dtype not in _CODES:
        return False
    for tensor in (x, *others):
        if tensor.dtype != x.dtype or not tensor.is_cpu or type(tensor) not in _PLAIN_TENSORS:
            return False
    # Sizes last: while a tracer listens they are tensors.
    return not direct.obstacle(x, *others) and 0 < x.numel() <= MOST_NUMBERS


def rms_norm(x: Tensor, weight_M: Tensor, epsilon: float) -> Tensor:
    """x / √(mean x² + ε) · weight over the last dim M (Zhang and Sennrich, 2019, arXiv 1910.07467), in x's dtype.

    Sums are float32, and the result is rounded once.
    """
    x = x.contiguous()
    out, width = torch.empty_like(x), x.shape[-1]
    weight_M = weight_M.contiguous()
    native.library().twofold_rms_norm(
        _NORM.pack(
            _CODES[x.dtype], x.numel() // width, width, x.data_ptr(), weight_M.data_ptr(), out.data_ptr(), epsilon
        )
    )
    return out


def turn(x_BTHD: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    """The first r dims turned, see `rotary.turn`. Each number is rounded once."""
    strides = x_BTHD.stride()
    if strides[3] != 1:
        x_BTHD = x_BTHD.contiguous()
        strides = x_BTHD.stride()
    cos, sin = cos.contiguous(), sin.contiguous()
    out = torch.empty_like(x_BTHD, memory_format=torch.contiguous_format)
    sequences, positions, _, turned = cos.shape
    native.library().twofold_turn(
        _TURN.pack(
            _CODES[x_BTHD.dtype],
            *x_BTHD.shape,
            turned,
            x_BTHD.data_ptr(),
            *strides[:3],
            cos.data_ptr(),
            sin.data_ptr(),
            0 if sequences == 1 else positions * turned,
            sign,
            out.data_ptr(),
        )
    )
    return out


def quantise(x_BGTW: Tensor, out_BGTW: Tensor, scales_BGT: Tensor) -> None:
    """Write int8 numbers and float32 scales of each row's part, bit by bit as `cache.kept.quantise` makes them.

    `out_BGTW` has contiguous rows, and both any other strides: views of a cache's storages.
    """
    if x_BGTW.stride(3) != 1:
        x_BGTW = x_BGTW.contiguous()
    assert out_BGTW.shape == x_BGTW.shape
    assert scales_BGT.shape == x_BGTW.shape[:3]
    native.library().twofold_quantise(
        _QUANTISE.pack(
            _CODES[x_BGTW.dtype],
            *x_BGTW.shape,
            x_BGTW.data_ptr(),
            *x_BGTW.stride()[:3],
            out_BGTW.data_ptr(),
            *out_BGTW.stride()[:3],
            scales_BGT.data_ptr(),
            *scales_BGT.stride(),
        )
    )
