"""A decode step of all blocks in one native call, where a decoder is as it was built and nobody looks into it.

The blocks' own forward passes stay the reference, and take every other step: with gradients, dropout or hooks, with
layers that were replaced (adapters) or compiled, in dtypes and variants that the native call does not know. What a
step relies on is compared before each one, so that a model may be changed between any two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from twofold.attention.decoding import DecodeMask
from twofold.attention.layer import Attention
from twofold.attention.projections import FUSED_NAME, Projections
from twofold.attention.rotary import frequencies
from twofold.attention.stepping import form_of, roles_of
from twofold.cache.layer import RowLayer
from twofold.kernels import direct, matvec
from twofold.kernels.decoder_step import (
    DTYPES,
    MOST_TOKENS,
    Activation,
    Form,
    decoder_step,
    packed_linear,
    packed_norm,
)
from twofold.kernels.linear import DecodeLinear, Int8Linear
from twofold.kernels.norm import DecodeRMSNorm
from twofold.models.architecture import Architecture
from twofold.models.blocks import DecoderBlock, PlainMLP, SwigluMLP
from twofold.models.sights import Sight
from twofold.models.unchanged import Unchanged, is_plain
from twofold.variants.choices import ROLES
from twofold.variants.tensors import MATRIX_NAMES

_KINDS = (
    DecoderBlock,
    Attention,
    Projections,
    PlainMLP,
    SwigluMLP,
    DecodeLinear,
    Int8Linear,
    DecodeRMSNorm,
    nn.LayerNorm,
    nn.Dropout,
    nn.Identity,
    nn.ModuleList,
)
_ACTIVATIONS = {"gelu": Activation.GELU, "gelu_tanh": Activation.GELU_TANH, "relu": Activation.RELU}
_FORWARDS: dict[type[nn.Module], Callable[..., Any]] = {kind: kind.forward for kind in _KINDS}
Kind = TypeVar("Kind", bound=nn.Module)


class _UnfitError(Exception):
    """What was found has no native form."""


class Steps:
    """The blocks and the last norm of a decoder as the native library reads them, and what this rests on.

    Raises `_UnfitError` where they have no such form.
    """

    def __init__(self, model: nn.Module, sizes: Architecture, dtype: torch.dtype) -> None:
        self.sizes, self.width, self.dtype = sizes, sizes.width, dtype
        self.found = Unchanged(_FORWARDS)
        self.cached: list[int] = []  # the layer of the cache that each block reads
        self.borrows: list[bool] = []
        self._forms: set[Form] = set()
        self._activations: set[Activation] = set()
        layers = _known(self.found.child(model, "layers"), nn.ModuleList)
        self.blocks = [self._block(_known(self.found.child(layers, name), DecoderBlock)) for name in layers._modules]
        self.last_norm = self._norm(self.found.child(model, "norm"))
        if len(self._forms) != 1 or len(self._activations) != 1 or len(self.blocks) != sizes.layers:
            raise _UnfitError
        (self.form,), (self.activation,) = self._forms, self._activations
        turns = sizes.rotated_dims
        exponents = sizes.rotary_exponents
        self.frequencies = frequencies(turns, sizes.rotary_base, exponents=exponents) if turns else None

    def _block(self, block: DecoderBlock) -> bytes:
        look = self.found.child
        norms = [self._norm(look(block, name)) for name in ("attention_norm", "mlp_norm")]
        _known(look(block, "dropout"), nn.Dropout, nn.Identity)
        return b"".join([*norms, *self._attention(_known(look(block, "attention"), Attention)), *self._mlp(block)])

    def _attention(self, layer: Attention) -> list[bytes]:
        form = form_of(layer)
        if form is None:
            raise _UnfitError
        seam = _known(self.found.child(layer, "projections"), Projections)
        self.found.values(layer, "place", "scale", "scoring", "layout")
        self.found.values(seam, "variant", "sizes", "maker", "fused")
        self._forms.add(form)
        self.cached.append(layer.place.cached)
        self.borrows.append(layer.place.borrows)
        queries, keys = form.heads * form.head_dim, form.groups * form.head_dim
        rows = {"query": queries, "key": keys, "value": keys}
        own = roles_of(layer)
        made = {} if seam.fused else {role: (MATRIX_NAMES[role], 0) for role in own}
        if seam.fused:
            first = 0
            for role, count in seam.outputs.items():
                made |= {role: (FUSED_NAME, first)} if role in own else {}
                first += count
        parts = [self._linear(seam, *made[role], rows[role]) if role in made else packed_linear(None) for role in ROLES]
        return [*parts, self._linear(seam, "o_proj", 0, self.width, queries)]

    def _mlp(self, block: DecoderBlock) -> list[bytes]:
        mlp = _known(self.found.child(block, "mlp"), PlainMLP, SwigluMLP)
        up = self.sizes.mlp
        if isinstance(mlp, PlainMLP):
            self.found.values(mlp, "activation")
            self._activations.add(_ACTIVATIONS[mlp.activation])
        else:
            self._activations.add(Activation.SILU_GATED)
        gate = self._linear(mlp, "gate_proj", 0, up) if isinstance(mlp, SwigluMLP) else packed_linear(None)
        return [gate, self._linear(mlp, "up_proj", 0, up), self._linear(mlp, "down_proj", 0, self.width, up)]

    def _linear(self, parent: nn.Module, name: str, first: int, rows: int, width: int | None = None) -> bytes:
        """`rows` outputs of a child, from `first` on."""
        layer = _known(self.found.child(parent, name), DecodeLinear, Int8Linear)
        weight_NK = _known_tensor(self.found.tensor(layer, "weight"))
        bias_N = self.found.tensor(layer, "bias")
        is_int8 = isinstance(layer, Int8Linear)
        scales_N = _known_tensor(self.found.tensor(layer, "scales")) if is_int8 else None
        fits = (
            weight_NK.ndim == 2
            and weight_NK.shape[1] == (width or self.width)
            and first + rows <= weight_NK.shape[0]
            and (first > 0 or name == FUSED_NAME or rows == weight_NK.shape[0])
            and weight_NK.stride(1) == 1
            and weight_NK.dtype == (torch.int8 if is_int8 else self.dtype)
        )
        for vector_N, dtype in ((bias_N, None if is_int8 else self.dtype), (scales_N, torch.float32)):
            if vector_N is not None:
                fits &= is_plain(vector_N) and vector_N.shape == weight_NK.shape[:1] and vector_N.is_contiguous()
                fits &= vector_N.dtype in DTYPES if dtype is None else vector_N.dtype == dtype
        if not fits:
            raise _UnfitError
        of = slice(first, first + rows)
        return packed_linear(
            weight_NK[of], None if bias_N is None else bias_N[of], None if scales_N is None else scales_N[of]
        )

    def _norm(self, norm: nn.Module | None) -> bytes:
        if not isinstance(norm, DecodeRMSNorm | nn.LayerNorm):
            raise _UnfitError
        weight_M, bias_M = _known_tensor(self.found.tensor(norm, "weight")), self.found.tensor(norm, "bias")
        self.found.values(norm, "eps")
        if isinstance(norm, nn.LayerNorm) != (bias_M is not None) or norm.eps is None:
            raise _UnfitError
        for vector_M in (weight_M, bias_M):
            if vector_M is not None and not (
                is_plain(vector_M)
                and vector_M.shape == (self.width,)
                and vector_M.dtype == self.dtype
                and vector_M.is_contiguous()
            ):
                raise _UnfitError
        return packed_norm(weight_M, bias_M, norm.eps)


_STEPS: WeakKeyDictionary[nn.Module, Steps] = WeakKeyDictionary()


def step(
    model: nn.Module,
    sizes: Architecture,
    x_BTM: Tensor,
    positions_BT: Tensor,
    seen: Sequence[Sight],
    cache: Cache,
    blocks: int,
) -> Tensor | None:
    """Hidden states [B, T, M] of a decode step after the first `blocks` blocks and the last norm.

    None where the blocks have to make it one by one; then nothing has happened. `seen` holds decode masks only.
    """
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or not matvec.wins():
        return None
    batch, tokens, width = x_BTM.shape
    if (
        not 0 < batch * tokens <= MOST_TOKENS
        or width != sizes.width
        or positions_BT.shape not in ((1, tokens), (batch, tokens))
        or x_BTM.dtype not in DTYPES
        or torch.is_autocast_enabled("cpu")
        or not (is_plain(x_BTM) and is_plain(positions_BT))
        or direct.watched()
    ):
        return None
    steps = _steps_of(model, sizes, x_BTM.dtype)
    if steps is None or steps.found.observed():
        return None
    owned = [cache.layers[n] for n, borrows in zip(steps.cached[:blocks], steps.borrows, strict=False) if not borrows]
    if not all(type(layer) is RowLayer and layer.has_room(batch, tokens, x_BTM.dtype) for layer in owned):
        return None
    mask = seen[0].mask  # which differ in their windows only
    assert isinstance(mask, DecodeMask)
    if mask.starts_B is not None and mask.starts_B.shape != (batch,):
        return None
    rows = {id(layer): layer.claim(tokens) for layer in owned}
    return decoder_step(
        x_BTM,
        positions_BT.long(),
        steps.frequencies,
        steps.form,
        steps.activation,
        b"".join(steps.blocks[:blocks]),
        steps.last_norm,
        [rows[id(cache.layers[n])] for n in steps.cached[:blocks]],
        [reach.window for reach in sizes.reaches[:blocks]],
        total=mask.rows,
        starts_B=mask.starts_B,
        first_position=mask.first_position,
    )


def _steps_of(model: nn.Module, sizes: Architecture, dtype: torch.dtype) -> Steps | None:
    made = _STEPS.get(model)
    if made is not None and made.dtype == dtype and made.sizes is sizes and made.found.holds():
        return made
    try:
        made = _STEPS[model] = Steps(model, sizes, dtype)
    except _UnfitError:
        _STEPS.pop(model, None)
        return None
    return made


def _known(module: nn.Module | None, *kinds: type[Kind]) -> Kind:
    if not isinstance(module, kinds):
        raise _UnfitError
    return module


def _known_tensor(tensor: Tensor | None) -> Tensor:
    if tensor is None or not is_plain(tensor):
        raise _UnfitError
    return tensor
