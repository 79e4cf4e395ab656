"""Decode attention over rows: few query positions against a long cache, by the fastest path that can do it.

Decoding is bound by memory: each step reads the whole cache. Where a row is key and value at once, the native path
reads it once and uses it for both; two separate tensors, or two views of one, are streamed twice by general kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from twofold.kernels import decode_native, decode_triton, direct, native, plain
from twofold.kernels.step import Step

PATHS = ("auto", "native", "triton", "plain")


def decode_attention(
    query_BHTD: Tensor,
    heads_BGSW: Tensor,
    shared_BSW: Tensor | None = None,
    *,
    key: tuple[int, int],
    value: tuple[int, int],
    shared_key: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    starts_B: Tensor | None = None,
    lengths_B: Tensor | None = None,
    window: int | None = None,
    scales_BGS: Tensor | None = None,
    shared_scales_BS: Tensor | None = None,
    frequencies: Tensor | None = None,
    first_position: int = 0,
    path: str = "auto",
) -> Tensor:
    """softmax(scale · Q Kᵀ) V over rows: [B, H, T, value width] in the query's dtype.

    Rows are `heads_BGSW`, a part for each key/value head, and `shared_BSW`, the part that all heads share, with any
    strides; query head h reads key/value head h // (H // G). A key is the span `key` of the head's own part followed
    by `shared_key` of the shared one, a value the span `value` of the own part (`variants.layout.RowLayout`).

    - `scale`: None means D^(−1/2). `softcap` c > 0 makes a score s to c · tanh(s / c).
    - Sequence b sees rows from `starts_B[b]` on (left padding) and has `lengths_B[b]` rows, by default S. The T queries
      belong to its newest positions: query t sees rows below length − (T − 1 − t), and with `window` only the newest
      `window` of these. A query that sees no row reads zeros. Rows that no query sees may hold anything, even NaN.
    - int8 rows count in steps of `scales_BGS` and `shared_scales_BS` (float32).
    - `frequencies` [r/2]: keys are stored unturned, and their first r dims are turned to their position when they are
      read, in pairs (i, i + r/2). Row s stands at position s − start + `first_position`; queries come turned to theirs.

    `path` is "auto" or one of "native", "triton" and "plain"; see `choose`. Only plain has gradients. Raises
    ValueError, with the numbers that disagree, for shapes, spans, dtypes, devices or limits that do not fit, and for a
    path that cannot do it.
    """
    step = Step(
        query_BHTD,
        heads_BGSW,
        shared_BSW,
        key,
        value,
        shared_key,
        query_BHTD.shape[-1] ** -0.5 if scale is None else scale,
        softcap,
        starts_B,
        lengths_B,
        window,
        scales_BGS,
        shared_scales_BS,
        frequencies,
        first_position,
    )
    step.check()
    return _attend(step, choose(step, path)[0])


def decode_checked(step: Step) -> Tensor:
    """`decode_attention` by path "auto" for a caller who made the rows and spans of `step` and knows that they fit.

    Asked in each layer for each token, it leaves out `Step.check`: shapes that disagree would be read past their end.
    Starts and lengths are checked all the same, since they come from a user's mask.
    """
    if step.starts is not None or step.lengths is not None:
        step.check_limits()
    return _attend(step, choose(step)[0])


def _attend(step: Step, chosen: str) -> Tensor:
    if chosen == "native":
        return decode_native.attend(step)
    limited = step.starts is not None or step.lengths is not None
    if limited and step.query.is_cpu and not (torch.compiler.is_compiling() or direct.watched()):
        step.check_contents()
    return decode_triton.attend(step) if chosen == "triton" else plain.attend(step)


def choose(step: Step, path: str = "auto") -> tuple[str, str]:
    """The path that a step takes, "native", "triton" or "plain", and why, in words.

    "auto" is native on a CPU and triton on CUDA, wherever that can do the step. Raises ValueError where `path` names
    one that cannot.
    """
    if path not in PATHS:
        raise ValueError(f"unknown path {path!r}: choose one of {', '.join(PATHS)}")
    if path == "plain":
        return "plain", "it was asked for"
    fast = ("triton" if step.query.is_cuda else "native") if path == "auto" else path
    obstacle = (decode_triton if fast == "triton" else decode_native).obstacle(step)
    if step.query.shape[1] == 0:
        obstacle = "there are no query heads"
    if obstacle is None:
        return fast, "it reads each row once"
    if path == fast:
        raise ValueError(f"the {fast} path cannot do this step: {obstacle}")
    return "plain", obstacle


def describe() -> str:
    """Which path decode steps take on this machine's GPU where it has one that torch can use, else its CPU."""
    if torch.cuda.is_available():
        taken = "the Triton kernels" if decode_triton.AVAILABLE else "plain torch operations: triton is not installed"
        return f"decode attention on CUDA by {taken}"
    if not native.AVAILABLE:
        return f"decode attention by plain torch operations: {native.why_not()}"
    return f"decode attention by the native kernel ({native.isa()}), which reads each row once"
