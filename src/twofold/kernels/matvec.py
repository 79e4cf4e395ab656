"""A weight matrix times the vectors of a decode step, at the speed at which memory gives the weights.

A decode step multiplies every weight matrix with as many vectors as it has tokens, one per sequence. Each weight is
then read once and used a few times at most, so that reading is all the time it takes. The native product reads
float32, bfloat16 and int8 weights as they lie and adds up in float32; torch's own linear serves everything else.

Its error is that of float32 sums of any order: within K · 2⁻²³ of Σ |w| |x|, and as measured below 2⁻²⁴ of it (then
rounded to x's dtype, where that is bfloat16).
"""

from __future__ import annotations

import struct
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twofold.kernels import direct, native

MAX_TOKENS = 4
"""Vectors that one call of the native product takes."""

Path = Literal["auto", "native", "plain"]
_PATHS = get_args(Path)

_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 3}  # enum DType in csrc/types.h
_INPUTS = (torch.float32, torch.bfloat16)
_FIELDS = struct.Struct("=13q")  # MatvecArguments in csrc/matvec.h
_PLAIN_TENSORS = (Tensor, nn.Parameter)  # not other subclasses: those have operations of their own
# Without vector instructions of its own the native product has not been seen to win.
_WINS = native.AVAILABLE and native.isa() != "portable"
_FUNCTION = native.library().twofold_matvec if native.AVAILABLE else None


def matvec(
    weight_NK: Tensor,
    x_TK: Tensor,
    bias_N: Tensor | None = None,
    scales_N: Tensor | None = None,
    *,
    path: Path = "auto",
) -> Tensor:
    """W x + b for a few vectors: [T, K] (or [..., K]) to [T, N], in x's dtype.

    `weight_NK` is float32, bfloat16 or int8; int8 rows are multiplied by their `scales_N` (float32). `x_TK` is float32
    or bfloat16; other floats take the plain path. With `path` "auto" the native product serves where it is the
    faster one and no gradient is wanted, see `obstacle`. Raises ValueError for shapes, dtypes and devices that do not
    fit, for an unknown path, and for "native" where it cannot serve.
    """
    if path not in _PATHS:
        raise ValueError(f"unknown path {path!r}: choose one of {', '.join(_PATHS)}")
    _check(weight_NK, x_TK, bias_N, scales_N)
    if path == "plain":
        return _plain(weight_NK, x_TK, bias_N, scales_N)
    reason = obstacle(weight_NK, x_TK, bias_N, scales_N, forced=path == "native")
    if not reason:
        return native_product(weight_NK, x_TK, bias_N, scales_N)
    if path == "native":
        raise ValueError(f"the native product cannot serve: {reason}; use path='auto'")
    return _plain(weight_NK, x_TK, bias_N, scales_N)


def obstacle(
    weight_NK: Tensor,
    x_TK: Tensor,
    bias_N: Tensor | None = None,
    scales_N: Tensor | None = None,
    *,
    forced: bool = False,
) -> str:
    """Why torch's linear has to serve; empty where the native product does. Shapes are taken to fit.

    `forced` leaves out the reasons of taste: speed, and that an exported graph should run elsewhere too.
    """
    if not (native.AVAILABLE if forced else _WINS):
        return native.why_not() or "no vector instructions"
    # All of this before anything that looks at sizes, which would become the graph's.
    if torch.compiler.is_compiling():
        if torch.compiler.is_exporting() and not forced:
            return "an exported graph keeps to torch's own operations"
    elif type(x_TK) not in _PLAIN_TENSORS or type(weight_NK) not in _PLAIN_TENSORS:
        return "a subclass of Tensor"
    reason = direct.obstacle(weight_NK, x_TK, bias_N, scales_N) or _misfit(weight_NK, x_TK, bias_N, scales_N)
    if not reason and not forced and _small(weight_NK, x_TK):
        return "a small matrix, for which a call of torch's linear takes less time"
    return reason


def wins() -> bool:
    """Whether the native product is there, and faster than torch's linear where that has much to read."""
    return native.AVAILABLE and _WINS


def native_product(
    weight_NK: Tensor, x_TK: Tensor, bias_N: Tensor | None = None, scales_N: Tensor | None = None
) -> Tensor:
    """`matvec` by the native library, for a caller who found no `obstacle`. It has no gradient."""
    if torch.compiler.is_compiling():
        return torch.ops.twofold.matvec(weight_NK, x_TK, bias_N, scales_N)
    return _call(weight_NK, x_TK, bias_N, scales_N)  # five microseconds sooner than through torch's dispatcher


def _misfit(weight_NK: Tensor, x_TK: Tensor, bias_N: Tensor | None, scales_N: Tensor | None) -> str:
    """What the native library cannot read."""
    if weight_NK.dim() != 2:
        return f"a weight of shape {list(weight_NK.shape)}"
    if not 0 < x_TK.numel() <= MAX_TOKENS * weight_NK.shape[1]:
        return f"no vectors, or more than {MAX_TOKENS}"
    if not (x_TK.is_cpu and weight_NK.is_cpu):
        return "not on a CPU"
    if x_TK.dtype not in _INPUTS or weight_NK.dtype not in _CODES:
        return f"{weight_NK.dtype} times {x_TK.dtype}"
    if bias_N is not None and (bias_N.dtype not in _INPUTS or not bias_N.is_cpu):
        return f"a bias of {bias_N.dtype} on {bias_N.device}"
    if bias_N is not None and bias_N.shape != weight_NK.shape[:1]:
        return f"a bias of shape {list(bias_N.shape)}"
    if scales_N is not None and not scales_N.is_cpu:
        return f"scales on {scales_N.device}"
    if weight_NK.stride(1) != 1:
        return "weight rows that are not contiguous"
    return ""


def _small(weight_NK: Tensor, x_TK: Tensor) -> bool:
    """Whether torch's shorter call outweighs its slower reading. Measured on two Zen 3 cores (AVX2).

    torch multiplies with a single float32 vector well, but on one thread however many there are.
    """
    if weight_NK.dtype is torch.int8:
        return False
    if weight_NK.dtype is torch.float32 and x_TK.numel() == weight_NK.shape[1]:
        several = not torch.compiler.is_compiling() and torch.get_num_threads() > 1  # a compiler cannot trace the count
        return weight_NK.numel() < (2**17 if several else 2**19)
    return weight_NK.numel() < 2**16


def _check(weight_NK: Tensor, x_TK: Tensor, bias_N: Tensor | None, scales_N: Tensor | None) -> None:
    """Raises ValueError unless shapes, dtypes and devices make sense together."""
    if weight_NK.dim() != 2 or x_TK.dim() == 0 or x_TK.shape[-1] != weight_NK.shape[1]:
        raise ValueError(
            f"a weight matrix of shape {list(weight_NK.shape)} takes vectors of its last size, and x has shape "
            f"{list(x_TK.shape)}"
        )
    rows = weight_NK.shape[0]
    if bias_N is not None and bias_N.shape != (rows,):
        raise ValueError(f"the bias has shape {list(bias_N.shape)} for {rows} weight rows: it must be [{rows}]")
    if (scales_N is not None) != (weight_NK.dtype is torch.int8):
        raise ValueError(
            f"the weights are {weight_NK.dtype}, and there are {'no' if scales_N is None else ''} scales: int8 weights "
            "take scales, others none"
        )
    if scales_N is not None and (scales_N.shape != (rows,) or scales_N.dtype is not torch.float32):
        raise ValueError(
            f"the scales are {scales_N.dtype} {list(scales_N.shape)} for {rows} weight rows: they must be "
            f"torch.float32 [{rows}]"
        )
    for name, tensor in (("x", x_TK), ("weights", weight_NK), ("bias", bias_N), ("scales", scales_N)):
        if tensor is None:
            continue
        if not (tensor.is_floating_point() or (tensor.dtype is torch.int8 and tensor is weight_NK)):
            kinds = "of a float dtype, or int8 with scales" if tensor is weight_NK else "of a float dtype"
            raise ValueError(f"{name}: {tensor.dtype} does not fit, it must be {kinds}")
        if tensor.device != x_TK.device:
            raise ValueError(f"{name} on {tensor.device} and x on {x_TK.device}: they must be on one device")


def _plain(weight_NK: Tensor, x_TK: Tensor, bias_N: Tensor | None, scales_N: Tensor | None) -> Tensor:
    """The same by torch's linear; in float32 at least where dtypes differ."""
    if scales_N is None and weight_NK.dtype == x_TK.dtype and (bias_N is None or bias_N.dtype == x_TK.dtype):
        return F.linear(x_TK, weight_NK, bias_N)
    dtype = torch.promote_types(x_TK.dtype, torch.float32)
    y_TN = F.linear(x_TK.to(dtype), weight_NK.to(dtype))
    if scales_N is not None:
        y_TN = y_TN * scales_N
    if bias_N is not None:
        y_TN = y_TN + bias_N
    return y_TN.to(x_TK.dtype)


def _call(weight_NK: Tensor, x_TK: Tensor, bias_N: Tensor | None, scales_N: Tensor | None) -> Tensor:
    """The native function; everything was checked."""
    assert _FUNCTION is not None
    rows, width = weight_NK.shape
    y_TN = x_TK.new_empty((*x_TK.shape[:-1], rows))
    x_TK = x_TK.contiguous()
    if bias_N is not None:
        bias_N = bias_N.contiguous()
    if scales_N is not None:
        scales_N = scales_N.contiguous()
    failed = _FUNCTION(
        _FIELDS.pack(
            weight_NK.data_ptr(),
            _CODES[weight_NK.dtype],
            weight_NK.stride()[0],
            rows,
            width,
            x_TK.data_ptr(),
            _CODES[x_TK.dtype],
            x_TK.numel() // width,
            *((0, 0) if bias_N is None else (bias_N.data_ptr(), _CODES[bias_N.dtype])),
            0 if scales_N is None else scales_N.data_ptr(),
            y_TN.data_ptr(),
            torch.get_num_threads(),
        )
    )
    if failed:
        raise MemoryError(f"no memory for vectors of {width} numbers")
    return y_TN


def _operation(weight_NK: Tensor, x_TK: Tensor, bias_N: Tensor | None = None, scales_N: Tensor | None = None) -> Tensor:
    _check(weight_NK, x_TK, bias_N, scales_N)
    if native.AVAILABLE and not _misfit(weight_NK, x_TK, bias_N, scales_N):
        return _call(weight_NK, x_TK, bias_N, scales_N)
    return _plain(weight_NK, x_TK, bias_N, scales_N)


def _shapes_only(
    weight_NK: Tensor, x_TK: Tensor, bias_N: Tensor | None = None, scales_N: Tensor | None = None
) -> Tensor:
    _check(weight_NK, x_TK, bias_N, scales_N)
    return x_TK.new_empty((*x_TK.shape[:-1], weight_NK.shape[0]))


# By Library: its calls cost a few microseconds less than those of custom_op.
_OPERATIONS = torch.library.Library("twofold", "FRAGMENT")
_OPERATIONS.define("matvec(Tensor weight, Tensor x, Tensor? bias=None, Tensor? scales=None) -> Tensor")
_OPERATIONS.impl("matvec", _operation, "CPU")
torch.library.register_fake("twofold::matvec", _shapes_only, lib=_OPERATIONS)
