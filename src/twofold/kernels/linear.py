"""Linear layers for decoding: `nn.Linear` that takes the native product where it serves, and int8 weights.

Decoding a token multiplies every weight once; training and prefill multiply each many times, which torch does well.
So a `DecodeLinear` is an `nn.Linear` (isinstance, parameters, names, initial values, saved files), and differs in one
thing: few vectors on a CPU, without a gradient, go to `kernels.matvec`. The outputs agree to float32 rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twofold.kernels.matvec import matvec, native_product, obstacle

LARGEST_INT8 = 127


class DecodeLinear(nn.Linear):
    """`nn.Linear` whose decode steps take the native product."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]; what torch would refuse, torch refuses."""
        weight: Tensor | None
        try:  # of a plain layer, past nn.Module's slow look-up
            weight, bias = self._parameters["weight"], self._parameters["bias"]
        except KeyError:  # pruned, parametrised or sharded
            weight, bias = self.weight, self.bias
        assert weight is not None
        if (
            obstacle(weight, input, bias)
            or input.shape[-1] != weight.shape[1]
            or input.dtype != weight.dtype
            or (bias is not None and input.dtype != bias.dtype)
            or torch.is_autocast_enabled("cpu")
        ):
            return F.linear(input, weight, bias)
        return native_product(weight, input, bias)


def use_decode_linear(module: nn.Module, enabled: bool = True) -> int:
    """Switch every `nn.Linear` inside `module` to `DecodeLinear`, or back. Returns how many changed.

    Only the class of the layers changes: parameters, names, hooks and devices stay. Subclasses of `nn.Linear` other
    than `DecodeLinear` are left alone.
    """
    before, after = (nn.Linear, DecodeLinear) if enabled else (DecodeLinear, nn.Linear)
    layers = [layer for layer in module.modules() if type(layer) is before]
    for layer in layers:
        layer.__class__ = after
    return len(layers)


class Int8Linear(nn.Module):
    """A linear layer whose weights are int8 with one float32 scale per output; for inference.

    `weight` int8 [N, K], `scales` float32 [N], `bias` [N] or None. A quarter of float32's bytes are read per token.
    Many vectors at once take torch's linear over weights that are widened for the call.
    """

    scales: Tensor

    def __init__(self, weight_NK: Tensor, scales_N: Tensor, bias_N: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight_NK, requires_grad=False)
        self.register_buffer("scales", scales_N)
        self.bias = None if bias_N is None else nn.Parameter(bias_N, requires_grad=False)
        self.out_features, self.in_features = weight_NK.shape

    def forward(self, input: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        return matvec(self.weight, input, self.bias, self.scales)

    def extra_repr(self) -> str:
        """Sizes, as `nn.Linear` prints them."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Int8Linear:
        """As on any module, but a change of dtype leaves the scales exact."""
        exact = self.scales
        super()._apply(fn, recurse)
        if self.scales.dtype is not exact.dtype:
            self.scales = exact.to(self.scales.device)
        return self


def quantise_linear(layer: nn.Linear) -> Int8Linear:
    """`layer` with int8 weights, symmetric and by the largest of each weight row: w ≈ scale · round(w / scale).

    A weight is off by at most half its row's scale, max|w| / 254. Raises ValueError for weights that are not finite.
    """
    weight_NK = layer.weight.detach().float()
    largest_N = weight_NK.abs().amax(dim=1)
    if not bool(largest_N.isfinite().all()):
        wrong = int((~largest_N.isfinite()).sum())
        raise ValueError(f"{wrong} of {len(largest_N)} weight rows hold NaN or infinity: they have no int8 form")
    scales_N = torch.where(largest_N > 0, largest_N / LARGEST_INT8, 1.0)
    rounded_NK = (weight_NK / scales_N[:, None]).round().clamp(-LARGEST_INT8, LARGEST_INT8).to(torch.int8)
    bias_N = None if layer.bias is None else layer.bias.detach().clone()
    return Int8Linear(rounded_NK, scales_N, bias_N).train(layer.training)


def weight_error(exact: nn.Linear, quantised: Int8Linear) -> float:
    """‖W − Ŵ‖ / ‖W‖ (Frobenius): what int8 weights lose. A few thousandths are usual for normal weights."""
    weight_NK = exact.weight.detach().double()
    lost_NK = weight_NK - quantised.weight.double() * quantised.scales.double()[:, None]
    return float(lost_NK.norm() / weight_NK.norm().clamp(min=torch.finfo(torch.float64).tiny))
