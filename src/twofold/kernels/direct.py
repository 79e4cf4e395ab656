"""Whether a kernel may read the memory of tensors itself, past torch's dispatcher and all that happens there.

A tensor's memory is not the whole of it: a tangent may come with it, a transform may stand for many of it, its view may
be negated, and a tracer hears of nothing that does not pass the dispatcher.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad


def watched() -> bool:
    """Whether a tracer, mode or transform is active that knows torch's own operations only.

    torch.compile and torch.export are none: they find operators of their own in the kernels' place.
    """
    return not torch.compiler.is_compiling() and _listened_to()


def obstacle(*tensors: Tensor | None) -> str:
    """Why torch's own operations have to serve `tensors`; empty where a kernel may read them itself."""
    # Asked in each layer for each token: loops over few tensors, without generators.
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return "gradients are wanted"
    if torch.compiler.is_compiling():
        return ""
    if _listened_to():
        return "a mode or transform of torch is active, which knows torch's own operations"
    for tensor in tensors:  # only complex tensors have conjugated views, and no kernel takes those
        if tensor is not None and tensor.is_neg():
            return "a view is negated, and its memory is not"
    return ""


def _listened_to() -> bool:
    return bool(
        torch._C._is_tracing()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.maybe_current_level() is not None
        or forward_ad._current_level >= 0
    )
