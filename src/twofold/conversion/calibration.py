"""What a text gives the attention layers of a decoder, one layer after another, so that memory holds one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from twofold.conversion.affine import inputs_with_one, map_of, with_one
from twofold.conversion.layer_maps import LayerMaps, Norms, layer_maps
from twofold.conversion.rotary_importance import Text
from twofold.evaluation.heldout import evaluation_mode
from twofold.explain.sharing import Inputs, inputs_of
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.sights import sights

BATCH = 2
"""Windows that go through a block at once."""
READ_WINDOWS = 4
"""Windows of a text that attention maps are taken on."""


class Given(NamedTuple):
    """One layer on N windows: what its attention is given, `x_BTM` [N, T, M], and its output there."""

    layer: int
    x_BTM: Tensor  # noqa: N815
    output_BTM: Tensor  # noqa: N815


@torch.no_grad()
def layer_by_layer(model: TwofoldForCausalLM, ids_BT: Tensor) -> Iterator[Given]:
    """What each layer's attention is given and makes of token ids [N, T], from position 0 of every window."""
    inner: Any = model.model
    sizes = model.config.architecture
    at_1T = torch.arange(ids_BT.shape[1])[None]
    with evaluation_mode(model):
        x_BTM = inner.placed(inner.embed_tokens(ids_BT), at_1T)
        by = inner.rotations(at_1T, x_BTM.dtype)
        for number, block in enumerate(inner.layers):
            given, made, after = [], [], []
            for part_BTM in x_BTM.split(BATCH):
                mask, row_rotation = sights(model.config, sizes, part_BTM, None, None, at_1T, by)[number]
                with watched(block.attention) as seen:
                    after.append(block(part_BTM, by[number], mask, cache=None, row_rotation=row_rotation)[0])
                given.append(seen.x_BTM)
                made.append(seen.output_BTM)
            x_BTM = torch.cat(after)
            yield Given(number, torch.cat(given), torch.cat(made))


@torch.no_grad()
def reads_of(model: TwofoldForCausalLM, layer: int, x_BTM: Tensor) -> Tensor:
    """[N, T, H·D]: what the heads of layer `layer` read, for inputs [N, T, M] of its attention."""
    inner: Any = model.model
    sizes, attention = model.config.architecture, attention_of(model, layer)
    at_1T = torch.arange(x_BTM.shape[1])[None]
    by = inner.rotations(at_1T, x_BTM.dtype)
    found = []
    for part_BTM in x_BTM.split(BATCH):
        mask, row_rotation = sights(model.config, sizes, part_BTM, None, None, at_1T, by)[layer]
        with watched(attention.projections.o_proj) as seen:
            attention(part_BTM, by[layer], mask, None, row_rotation)
        found.append(seen.x_BTM)
    return torch.cat(found)


def attention_of(model: TwofoldForCausalLM, layer: int) -> Any:
    """The attention of one layer, with its seam as `projections`."""
    block: Any = model.model.layers[layer]
    return block.attention


def maps_of(model: TwofoldForCausalLM, layer: int) -> LayerMaps:
    """The matrices of a layer that has one for each role, with their biases if it has such but for the output's, and
    its norms of queries and keys.
    """
    seam = attention_of(model, layer).projections
    query, key, value = (map_of(getattr(seam, name)) for name in ("q_proj", "k_proj", "v_proj"))
    output = seam.o_proj.weight.detach()
    maps = layer_maps(query, key, value, output, heads=seam.sizes.heads, kv_heads=seam.kv_heads)
    if not seam.sizes.qk_norm:
        return maps
    return maps._replace(norms=Norms(*(norm.weight.detach().double() for norm in (seam.q_norm, seam.k_norm))))


def layer_of(model: TwofoldForCausalLM, given: Given) -> tuple[LayerMaps, Inputs, Text]:
    """A layer's matrices and what they are given, in all and in its order: of [x; 1] where maps have biases.

    Raises ValueError where the layer's numbers are not finite.
    """
    if not bool(given.output_BTM.isfinite().all()):
        raise ValueError(f"layer {given.layer} of the model gives numbers that are not finite: its weights are damaged")
    sizes = model.config.architecture
    inputs, x_BTM = inputs_of(given.x_BTM.flatten(0, 1)), given.x_BTM[:READ_WINDOWS]
    if sizes.layer_sizes(given.layer).input_biases:
        inputs, x_BTM = inputs_with_one(inputs), with_one(x_BTM)
    return maps_of(model, given.layer), inputs, Text(x_BTM, None if sizes.learned_positions else sizes.rotary_base)


class Seen:
    """What a module was last given, `x_BTM`, and what it made of it, `output_BTM`."""

    x_BTM: Tensor  # noqa: N815
    output_BTM: Tensor  # noqa: N815


@contextmanager
def watched(module: nn.Module) -> Iterator[Seen]:
    """While the block lasts, what `module` is called with is seen."""
    seen = Seen()

    def keep(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        seen.x_BTM, seen.output_BTM = arguments[0], output[0] if isinstance(output, tuple) else output

    hook = module.register_forward_hook(keep)
    try:
        yield seen
    finally:
        hook.remove()
