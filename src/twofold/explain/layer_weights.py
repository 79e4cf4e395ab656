"""`LayerWeights`: the maps of one layer's attention, whatever model they come from."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class InputNorm:
    """What the norm before a projection does after it has divided by its length: · `scale_M` + `bias_M`.

    `centred`: the norm subtracts the mean first, as LayerNorm does.
    """

    scale_M: Tensor  # noqa: N815
    bias_M: Tensor | None  # noqa: N815
    centred: bool


@dataclass(frozen=True)
class LayerWeights:
    """The linear maps of one layer, float32 on the CPU, before rotary: q = q_HDM x + q_bias_HD and so on.

    Query head h reads key/value head h // (H / G), and adds o_HMD[h] v to the stream. Roles that are one matrix are one
    tensor. A key may have more dims than a value (a rotary key beside the content): the first ones are the content.
    Nothing is folded in: `query_norm` and `row_norm` are the norms that queries, and keys and values, are read through,
    None where there is none, or where it comes after (post-norm). They are of different layers where a layer reads
    another's rows. The norms of queries and keys themselves (QK-norm) are no linear maps and are left out.
    """

    layer: int
    q_HDM: Tensor  # noqa: N815
    k_GDM: Tensor  # noqa: N815
    v_GDM: Tensor  # noqa: N815
    o_HMD: Tensor  # noqa: N815
    q_bias_HD: Tensor | None = None  # noqa: N815
    k_bias_GD: Tensor | None = None  # noqa: N815
    v_bias_GD: Tensor | None = None  # noqa: N815
    query_norm: InputNorm | None = None
    row_norm: InputNorm | None = None

    def __post_init__(self) -> None:
        heads, kv_heads, width = len(self.q_HDM), len(self.k_GDM), self.q_HDM.shape[2]
        assert heads % kv_heads == 0
        assert self.q_HDM.shape[1:] == self.k_GDM.shape[1:]
        assert self.v_GDM.shape[0] == kv_heads
        assert self.o_HMD.shape == (heads, width, self.v_GDM.shape[1])

    @property
    def group(self) -> int:
        """Query heads for each key/value head, H / G."""
        return len(self.q_HDM) // len(self.k_GDM)

    def require_finite(self) -> None:
        """ValueError that names what holds NaN or infinity."""
        norms = [norm for norm in (self.query_norm, self.row_norm) if norm is not None]
        named = {
            "query": (self.q_HDM, self.q_bias_HD),
            "key": (self.k_GDM, self.k_bias_GD),
            "value": (self.v_GDM, self.v_bias_GD),
            "output": (self.o_HMD,),
            "norm": [tensor for norm in norms for tensor in (norm.scale_M, norm.bias_M)],
        }
        if broken := [name for name, held in named.items() if any(not _is_finite(one) for one in held)]:
            raise ValueError(
                f"weights of layer {self.layer} hold NaN or infinity: those of {', '.join(broken)}; training may have "
                "diverged, or the file is damaged"
            )


def _is_finite(tensor: Tensor | None) -> bool:
    return tensor is None or bool(tensor.isfinite().all())


def as_float(tensor: Tensor) -> Tensor:
    """The numbers in float32 on the CPU, without a copy where they already are."""
    return tensor.detach().to("cpu", torch.float32)


def bias_as_float(tensor: Tensor | None) -> Tensor | None:
    """The same for what may be left out."""
    return None if tensor is None else as_float(tensor)


def folded(layer: LayerWeights) -> LayerWeights:
    """The same layer, reading what its norm has only divided by its length: no norm's numbers are left over.

    W (s ⊙ x + b) + c = (W diag(s)) x + (W b + c), and for a norm that subtracts the mean, W becomes W (I − 11ᵀ/M) as
    well (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", on layer norm). A factor on all of x
    changes no measure that is a ratio. Layers without a norm come back as they are.
    """
    done: dict[int, tuple[Tensor, Tensor | None]] = {}

    def of(weight: Tensor, bias: Tensor | None, norm: InputNorm | None) -> tuple[Tensor, Tensor | None]:
        if norm is None:
            return weight, bias
        if id(weight) not in done:
            done[id(weight)] = _folded(weight, bias, norm)
        return done[id(weight)]

    q_HDM, q_bias_HD = of(layer.q_HDM, layer.q_bias_HD, layer.query_norm)
    k_GDM, k_bias_GD = of(layer.k_GDM, layer.k_bias_GD, layer.row_norm)
    v_GDM, v_bias_GD = of(layer.v_GDM, layer.v_bias_GD, layer.row_norm)
    return replace(
        layer,
        q_HDM=q_HDM,
        k_GDM=k_GDM,
        v_GDM=v_GDM,
        q_bias_HD=q_bias_HD,
        k_bias_GD=k_bias_GD,
        v_bias_GD=v_bias_GD,
        query_norm=None,
        row_norm=None,
    )


def _folded(weight: Tensor, bias: Tensor | None, norm: InputNorm) -> tuple[Tensor, Tensor | None]:
    scaled = weight * norm.scale_M
    if norm.centred:
        scaled = scaled - scaled.mean(dim=-1, keepdim=True)
    if norm.bias_M is not None:
        moved = torch.einsum("gdm,m->gd", weight, norm.bias_M)
        bias = moved if bias is None else bias + moved
    return scaled, bias
