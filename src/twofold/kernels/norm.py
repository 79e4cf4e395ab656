"""RMSNorm for decoding: an `nn.RMSNorm` that takes the native one where it serves."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from twofold.kernels import per_token


class DecodeRMSNorm(nn.RMSNorm):
    """`nn.RMSNorm` (isinstance, parameters, names, saved files) whose decode steps take the native norm.

    Few vectors on a CPU, without a gradient, go to `per_token.rms_norm`; the outputs agree to rounding.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[..., M] to [..., M]; what torch would refuse, torch refuses."""
        weight = self._parameters.get("weight")  # absent where it is parametrised, pruned or sharded
        if (
            weight is None
            or self.eps is None
            or not per_token.serves(x, weight)
            or not weight.shape == x.shape[-1:] == self.normalized_shape
            or torch.is_autocast_enabled("cpu")
        ):
            return super().forward(x)
        return per_token.rms_norm(x, weight, self.eps)


def use_decode_norm(module: nn.Module, enabled: bool = True) -> int:
    """Switch every `nn.RMSNorm` inside `module` to `DecodeRMSNorm`, or back. Returns how many changed.

    As with `linear.use_decode_linear`, only the class of the layers changes, and other subclasses are left alone.
    """
    before, after = (nn.RMSNorm, DecodeRMSNorm) if enabled else (DecodeRMSNorm, nn.RMSNorm)
    layers = [layer for layer in module.modules() if type(layer) is before]
    for layer in layers:
        layer.__class__ = after
    return len(layers)
