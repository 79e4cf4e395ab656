"""What a model computes on given tokens, layer by layer: its projections' input, q, k, v and the attention weights.

One pass keeps what each attention layer was given: L · B · T · M numbers, 35 MB for 30 layers of 576 dims at 512
tokens. Then each layer is run once more by itself, when it is asked for, and what it makes is dropped before the next:
maps of B · H · T² numbers are only ever held for one layer. Reading them in hooks of the one pass would save the second
attention, and would take the loop over layers away from the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from twofold.attention.layer import Attention
from twofold.attention.recurrent import RecurrentAttention
from twofold.attention.scores import eager
from twofold.evaluation.attention_entropy import eager_attention
from twofold.evaluation.heldout import evaluation_mode
from twofold.explain.roles import Roles, own_roles, published_roles
from twofold.explain.weights import FAMILIES, OWN


@dataclass(frozen=True)
class Scored:
    """What a layer's softmax is taken of, and the weights that it gives.

    Scores are `scale` · q·k of `q_BHTD` and `k_BGTD`, turned to their positions, as the layer compares them; then come
    soft caps, terms and the mask. `seen_BTT` [B or 1, T, T] says which positions a query may weigh. `dims` are the d of
    1/√d: those of q and k, unless both were multiplied into a latent. `maps_BHTT` sum to 1 over the last dim, or with
    sinks to less.
    """

    q_BHTD: Tensor  # noqa: N815
    k_BGTD: Tensor  # noqa: N815
    maps_BHTT: Tensor  # noqa: N815
    seen_BTT: Tensor  # noqa: N815
    scale: float
    dims: int
    has_sinks: bool


@dataclass(frozen=True)
class LayerActivations:
    """One layer on the given tokens, float32 (or float64 of a float64 model) on the CPU, without gradients.

    `x_BTM` is what the query's projection is given, after the norm, and `row_x_BTM` the same of key and value: one
    tensor, but for layers that read the rows of another. `q_BTHD`, `k_BTGD` and `v_BTGD` are before rotary and after
    the norms of queries and keys; one tensor where roles are one vector. `scored` is None for a linear recurrence,
    which has no softmax.
    """

    layer: int
    x_BTM: Tensor  # noqa: N815
    row_x_BTM: Tensor  # noqa: N815
    q_BTHD: Tensor  # noqa: N815
    k_BTGD: Tensor  # noqa: N815
    v_BTGD: Tensor  # noqa: N815
    scored: Scored | None


class _Call(NamedTuple):
    """What an attention layer was called with."""

    arguments: tuple[Any, ...]
    named: dict[str, Any]

    @property
    def given(self) -> Tensor:
        """The layer's input [B, T, M]."""
        return self.arguments[0] if self.arguments else self.named["hidden_states"]


def run(
    model: PreTrainedModel,
    ids_BT: Tensor,
    progress: Callable[[int, int], None] | None = None,
    layers: Sequence[int] | None = None,
) -> Iterator[LayerActivations]:
    """The activations of `layers` (all by default, in this order) on the tokens `ids_BT`, one layer at a time.

    For Twofold decoders and encoders that read tokens, and Llama, Qwen 2 and 3, Mistral, Gemma 1 to 3, GPT-2 and OPT of
    transformers. The model runs in evaluation mode with eager attention, and has its own modes back whenever a layer is
    handed out. `progress` is called with (layers done, layers in all). Raises ValueError for another model type, for
    layers and tokens that it does not have, for texts of one token or past its positions, and for NaN or infinity.
    """
    modules = attention_layers(model)
    chosen = range(len(modules)) if layers is None else layers
    absent = [layer for layer in chosen if not 0 <= layer < len(modules)]
    if absent:
        raise ValueError(f"the model has layers 0 to {len(modules) - 1}, and {absent[0]} was asked for")
    _require_tokens(model, ids_BT)
    owners = row_owners(model, len(modules))
    return _layers(model, modules, owners, ids_BT, list(chosen), progress)


def _layers(
    model: PreTrainedModel,
    modules: list[nn.Module],
    owners: Sequence[int],
    ids_BT: Tensor,
    chosen: list[int],
    progress: Callable[[int, int], None] | None,
) -> Iterator[LayerActivations]:
    calls = _calls(model, modules, ids_BT, {*chosen, *(owners[layer] for layer in chosen)})
    for done, layer in enumerate(chosen, 1):
        owner = owners[layer]
        found = _activations(layer, modules[layer], calls[layer], modules[owner], calls[owner].given)
        _require_finite(found)
        if progress is not None:
            progress(done, len(chosen))
        yield found
        del found


def _calls(model: PreTrainedModel, modules: list[nn.Module], ids_BT: Tensor, wanted: set[int]) -> dict[int, _Call]:
    """One pass without the head, and what the `wanted` layers were called with in it."""
    calls: dict[int, _Call] = {}

    def keep(layer: int, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        calls[layer] = _Call(arguments, named)

    uncached = {} if model.config.model_type == "twofold_encoder" else {"use_cache": False}
    handles = [modules[layer].register_forward_pre_hook(partial(keep, layer), with_kwargs=True) for layer in wanted]
    try:
        with evaluation_mode(model), eager_attention(model), torch.no_grad():
            model.base_model(input_ids=ids_BT.to(model.device), **uncached)
    finally:
        for handle in handles:
            handle.remove()
    return calls


@torch.no_grad()
def _activations(layer: int, module: Any, call: _Call, owner: nn.Module, row_x_BTM: Tensor) -> LayerActivations:
    usual = module.config._attn_implementation
    module.config._attn_implementation = "eager"
    try:
        with evaluation_mode(module), evaluation_mode(owner), _recorded() as scored:
            roles = _roles(module, call.given, owner, row_x_BTM)
            module(*call.arguments, **call.named)
    finally:
        module.config._attn_implementation = usual
    if not scored and not isinstance(module, RecurrentAttention):
        raise ValueError(
            f"layer {layer} ({type(module).__name__}) computes attention weights past transformers' attention "
            "interface: set reorder_and_upcast_attn to false"
        )
    kept: dict[int, Tensor] = {}
    x, row_x, query, key, value = (_exact(tensor, kept) for tensor in (call.given, row_x_BTM, *roles))
    return LayerActivations(layer, x, row_x, query, key, value, scored[0] if scored else None)


def _require_finite(found: LayerActivations) -> None:
    if not all(tensor.isfinite().all() for tensor in (found.x_BTM, found.row_x_BTM)):
        raise ValueError(f"layer {found.layer} is given NaN or infinity on these tokens: look at the weights before it")
    made = [found.q_BTHD, found.k_BTGD, found.v_BTGD, *([found.scored.maps_BHTT] if found.scored else [])]
    if not all(tensor.isfinite().all() for tensor in made):
        raise ValueError(f"layer {found.layer} makes NaN or infinity on these tokens: its weights are too large")


def _roles(module: nn.Module, x_BTM: Tensor, owner: nn.Module, row_x_BTM: Tensor) -> Roles:
    if isinstance(module, Attention):
        assert isinstance(owner, Attention)
        return own_roles(module.projections, x_BTM, owner.projections, row_x_BTM)
    return published_roles(module, x_BTM)


def _exact(tensor: Tensor, kept: dict[int, Tensor]) -> Tensor:
    """On the CPU, in float32 or better; one tensor stays one tensor."""
    if id(tensor) not in kept:
        kept[id(tensor)] = tensor.to("cpu", torch.promote_types(tensor.dtype, torch.float32))
    return kept[id(tensor)]


@contextmanager
def _recorded() -> Iterator[list[Scored]]:
    """While the block lasts, eager attention tells what it is taken of; the softmax is in float32 or better."""
    found: list[Scored] = []

    def record(
        module: Any,
        query_BHTD: Tensor,
        key_BGTD: Tensor,
        value_BGTD: Tensor,
        mask: Tensor | None,
        scaling: float,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        query, key, value = (_exact(tensor, {}) for tensor in (query_BHTD, key_BGTD, value_BGTD))
        seen_BTT = _seen(module, mask, query.shape[2])
        mask = None if mask is None else mask.cpu() if mask.dtype == torch.bool else _exact(mask, {})
        sinks_H = None if s_aux is None else _exact(s_aux, {})
        read, maps_BHTT = eager(module, query, key, value, mask, scaling, softcap or 0.0, sinks_H)
        # OPT multiplies its queries by the scale before it asks for scores.
        scale = module.scaling if scaling == 1.0 and hasattr(module, "scaling") else scaling
        query = query * (scaling / scale)
        dims = module.projections.key_dim if isinstance(module, Attention) else query.shape[-1]
        found.append(Scored(query, key, maps_BHTT, seen_BTT, scale, dims, sinks_H is not None))
        return read.to(query_BHTD), None

    ALL_ATTENTION_FUNCTIONS["eager"] = record
    try:
        yield found
    finally:
        del ALL_ATTENTION_FUNCTIONS["eager"]


def _seen(module: nn.Module, mask: Tensor | None, length: int) -> Tensor:
    """[B or 1, T, T]: which positions (columns) the mask leaves to each query position."""
    if mask is None:
        every = torch.ones(1, length, length, dtype=torch.bool)
        return every.tril() if module.is_causal else every
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    return seen.any(1).expand(-1, length, -1).cpu()


def attention_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The attention module of each layer. ValueError for a model type that `explain` does not know."""
    kind = model.config.model_type
    if kind in OWN:
        return [block.attention for block in model.base_model.layers]
    if kind not in FAMILIES:
        raise ValueError(f"activations are read of {', '.join((*OWN, *FAMILIES))}, and this is a {kind!r} model")
    names = FAMILIES[kind]
    return [block.get_submodule(names.attention) for block in model.base_model.get_submodule(names.blocks)]


def row_owners(model: PreTrainedModel, layers: int) -> Sequence[int]:
    """For each layer the one whose rows it reads."""
    return model.config.architecture.row_owners if model.config.model_type == "twofold" else range(layers)


def _require_tokens(model: PreTrainedModel, ids_BT: Tensor) -> None:
    config = model.config.get_text_config(decoder=True)
    if ids_BT.ndim != 2 or ids_BT.shape[1] < 2 or not len(ids_BT):
        raise ValueError(f"attention needs at least two tokens of at least one text, got ids {list(ids_BT.shape)}")
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and ids_BT.shape[1] > positions:
        raise ValueError(f"the model has {positions} positions, and the text {ids_BT.shape[1]} tokens: shorten it")
    known = config.vocab_size
    strange = ids_BT[(ids_BT < 0) | (ids_BT >= known)]
    if len(strange):
        raise ValueError(f"the model has tokens 0 to {known - 1}, and the text has {int(strange[0])}")
