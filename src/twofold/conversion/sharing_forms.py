"""The forms that a layer can be given: how each is made of the layer's matrices, and what is foretold of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

from torch import Tensor

from twofold.conversion import rotary_importance
from twofold.conversion.importance import importance
from twofold.conversion.latents import Scope, latents, spectrum
from twofold.conversion.layer_maps import LayerMaps, Shared
from twofold.conversion.merged_heads import Method, merged_heads
from twofold.conversion.rotary_apart import content_apart, latent_apart
from twofold.conversion.rotary_importance import Text
from twofold.conversion.values_from_keys import values_from_keys
from twofold.explain.sharing import Inputs, Rows
from twofold.models.architecture import Architecture
from twofold.variants.variant import Variant

STEPS = 24
"""Sizes of a latent that a budget chooses from."""
SEEN = 0.02
"""A share of keys and values whose loss is seen in what the model predicts."""


class Measured(NamedTuple):
    """What is foretold of a layer.

    `losses` with 0, s, 2s … dims of a latent, or its one loss. `remade`: maps of keys and values that lose what
    `losses[at]` says.
    """

    losses: tuple[float, ...]
    remade: Rows
    at: int = 0


class Request(NamedTuple):
    """What a form is for: a variant by a method, with so many `latent` dims, 0 for the usual, in `parts` latents.

    `rotary_dims` of a rotary key of its own, 0 for none; `weighed`: errors of a latent count by what they change.
    """

    variant: Variant
    method: str
    latent: int
    parts: int
    rotary_dims: int
    weighed: bool


class Form(NamedTuple):
    """One target for one model.

    `latent` is the size of a layer's latent where none is chosen, 0 for a form without; `widest` the most that it can
    have, at which nothing is lost of the keys and values; `step` that of `Measured.losses`, 0 where a layer has but one
    size. `make` gives a layer's tensors for a size of its latent and rotary pairs, `measured` what is foretold of it.
    """

    variant: Variant
    method: str
    rotary_dims: int
    latent: int
    widest: int
    step: int
    make: Callable[[LayerMaps, Inputs, Text, int, tuple[int, ...]], Shared]
    measured: Callable[[LayerMaps, Inputs, Text], Measured]

    @property
    def leaves_norm_out(self) -> bool:
        """Whether what it caches would be normalised by a model that was trained in this form."""
        return self.variant.latent or self.variant.rotary_apart

    def numbers(self, sizes: Architecture, latent: int) -> int:
        """Numbers that a layer of this form keeps per token, with so many dims in its latent."""
        layout = self.variant.row_layout(sizes.head_dim, self.rotary_dims or None, latent or None)
        return layout.numbers(self.variant.kv_heads_for(sizes.heads))


def values_form(asked: Request, sizes: Architecture) -> Form:
    """`K=V on_read`."""
    return _form(
        asked,
        sizes,
        lambda maps, inputs, text, latent, pairs: values_from_keys(maps, inputs),
        lambda maps, inputs, text: _as_made(values_from_keys(maps, inputs)),
    )


def latents_form(asked: Request, sizes: Architecture) -> Form:
    """`MLA on_read`."""

    def make(maps: LayerMaps, inputs: Inputs, text: Text, latent: int, pairs: tuple[int, ...]) -> Shared:
        counted = importance(maps, inputs, text) if asked.weighed else None
        return latents(maps, inputs, latent, _scope(asked), asked.parts, counted)

    return _form(asked, sizes, make, lambda maps, inputs, text: _spectrum(asked, sizes, maps, inputs, text))


def latent_apart_form(asked: Request, sizes: Architecture) -> Form:
    """`MLA`."""
    return _form(
        asked,
        sizes,
        lambda maps, inputs, text, latent, pairs: latent_apart(maps, inputs, text, pairs, latent),
        lambda maps, inputs, text: _spectrum(asked, sizes, maps, inputs, text),
    )


def content_apart_form(asked: Request, sizes: Architecture) -> Form:
    """`K=V decoupled`."""
    return _form(
        asked,
        sizes,
        lambda maps, inputs, text, latent, pairs: content_apart(maps, inputs, text, pairs),
        lambda maps, inputs, text: _as_made(latents(maps, inputs, len(maps.key_RM), "head")),
    )


def merged_form(asked: Request, sizes: Architecture) -> Form:
    """`GQA-g` and `MQA`."""
    kv_heads, method = asked.variant.kv_heads_for(sizes.heads), cast("Method", asked.method)

    def make(maps: LayerMaps, inputs: Inputs, text: Text) -> Shared:
        return merged_heads(maps, inputs, kv_heads, method, turned=text.base is not None)

    return _form(
        asked,
        sizes,
        lambda maps, inputs, text, latent, pairs: make(maps, inputs, text),
        lambda maps, inputs, text: _as_made(make(maps, inputs, text)),
    )


def _form(
    asked: Request,
    sizes: Architecture,
    make: Callable[[LayerMaps, Inputs, Text, int, tuple[int, ...]], Shared],
    measured: Callable[[LayerMaps, Inputs, Text], Measured],
) -> Form:
    if not asked.variant.latent:
        return Form(asked.variant, asked.method, asked.rotary_dims, 0, 0, 0, make, measured)
    widest, latent = _widest(asked, sizes), asked.latent or _half(asked, sizes)
    if not 1 <= latent <= widest or latent % asked.parts:
        raise ValueError(
            f"a latent of {latent} dims in {asked.parts} parts does not go: give a multiple of {asked.parts} from "
            f"{asked.parts} to {widest}, where nothing is lost of the keys and values"
        )
    return Form(asked.variant, asked.method, asked.rotary_dims, latent, widest, _step(asked, sizes), make, measured)


def _widest(asked: Request, sizes: Architecture) -> int:
    """Keys and values of a part are maps of so many numbers: of the inputs, and of 1 where they have biases."""
    given = sizes.width + sizes.layer_sizes().input_biases
    return asked.parts * min(2 * sizes.kv_heads * sizes.head_dim // asked.parts, given)


def _half(asked: Request, sizes: Architecture) -> int:
    """Dims with which a layer keeps half of what it kept, the rotary key included; at least one for each latent."""
    return max(asked.parts, min(sizes.kv_heads * sizes.head_dim - asked.rotary_dims, _widest(asked, sizes)))


def _step(asked: Request, sizes: Architecture) -> int:
    """Dims from one size of a latent to the next: as few as go where its size is given, else of about `STEPS` sizes."""
    several = 1 if asked.latent else round(2 * sizes.kv_heads * sizes.head_dim / STEPS / asked.parts)
    return max(1, several) * asked.parts


def _scope(asked: Request) -> Scope:
    return cast("Scope", asked.method.removeprefix("latent-"))


def _as_made(made: Shared) -> Measured:
    return Measured((made.lost,), made.rows)


def _spectrum(asked: Request, sizes: Architecture, maps: LayerMaps, inputs: Inputs, text: Text) -> Measured:
    """Losses of latents of all sizes, and the maps that one near the usual size makes, if that is not next to lossless:
    what such a one costs would say nothing of others.
    """
    counted = importance(maps, inputs, text) if asked.weighed else None
    step, how = _step(asked, sizes), (_scope(asked), asked.parts, counted)
    losses = spectrum(maps, inputs, step, *how)
    at = asked.latent // step or max(1, min(_half(asked, sizes) // step, sum(loss >= SEEN for loss in losses) - 1))
    remade = latents(maps, inputs, min(at * step, _widest(asked, sizes)), *how).rows
    return Measured(losses, remade, at)


def turning_of(maps: LayerMaps, inputs: Inputs, text: Text) -> Tensor:
    """[D/2]: how much each rotary pair of a layer needs its turning, by which pairs are chosen."""
    return rotary_importance.importance(maps, inputs, rotary_importance.mean_turns(maps, text))
