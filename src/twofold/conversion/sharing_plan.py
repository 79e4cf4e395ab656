"""What can be asked of a conversion, and the forms that it can take: one for each target, with its methods.

| target | what a layer keeps | methods |
|---|---|---|
| `K=V on_read` | its keys, of which values are made | least-squares |
| `MLA on_read` | a latent, of which keys and values are made | latent-all, latent-group, latent-head |
| `MLA` | a latent, and one rotary key for all heads | latent-all |
| `K=V decoupled` | a latent for each head, and one rotary key | latent-head |
| `GQA-g`, `MQA` | fewer keys and values | low-rank, mean |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from twofold.conversion import rotary_importance
from twofold.conversion.importance import importance
from twofold.conversion.latents import latents, spectrum
from twofold.conversion.layer_maps import LayerMaps, Shared
from twofold.conversion.merged_heads import merged_heads
from twofold.conversion.rotary_apart import content_apart, latent_apart
from twofold.conversion.rotary_importance import Text
from twofold.conversion.values_from_keys import values_from_keys
from twofold.explain.sharing import Inputs
from twofold.models.architecture import Architecture
from twofold.variants.choices import Sharing as Roles
from twofold.variants.choices import Treatment
from twofold.variants.variant import Variant

READ_WINDOWS = 4
"""Windows of a text that attention maps are taken on."""
STEPS = 24
"""Sizes of a latent that a budget chooses from."""


@dataclass(frozen=True)
class Sharing:
    """What is asked for. `variant` may leave its key/value heads out: they are then the model's.

    - `method`: see the table above; "" for a target's first.
    - `latent`: dims of each layer's latent, 0 for half of what keys and values take, less the rotary key.
    - `groups`: latents of `latent-group`, each for as many neighbouring heads. `rotary_dims`: of the rotary key, 0 for
      half a head's.
    - `layers`: which ones, None for all. `cache`: the share of the model's cache that is to be left over all layers;
      it then chooses the sizes of latents, or as few layers as are needed, by what they lose.
    - `weighed`: whether errors of a latent count as queries and outputs see them, or all alike.
    - `refit`: whether the output's matrix is fitted again.
    """

    variant: Variant
    method: str = ""
    latent: int = 0
    groups: int = 1
    rotary_dims: int = 0
    layers: tuple[int, ...] | None = None
    cache: float | None = None
    weighed: bool = True
    refit: bool = True


class Measured(NamedTuple):
    """What is foretold of a layer: `losses` with 0, s, 2s … dims of a latent, or its one loss; rotary pairs' weights."""

    losses: tuple[float, ...]
    turning_P: Tensor | None = None  # noqa: N815


class Form(NamedTuple):
    """One target for one model. `step` is that of `Measured.losses`, 0 where a layer has but one size.

    `make` gives a layer's tensors for a size of its latent and rotary pairs, `measured` what is foretold of it.
    """

    variant: Variant
    method: str
    step: int
    rotary_dims: int
    make: Callable[[LayerMaps, Inputs, Text, int, tuple[int, ...]], Shared]
    measured: Callable[[LayerMaps, Inputs, Text, Sharing], Measured]

    @property
    def leaves_norm_out(self) -> bool:
        """Whether what it caches would be normalised by a model that was trained in this form."""
        return self.variant.latent or self.variant.rotary_apart


METHODS: Mapping[str, tuple[str, ...]] = {
    "K=V on_read": ("least-squares",),
    "MLA on_read": ("latent-all", "latent-group", "latent-head"),
    "MLA": ("latent-all",),
    "K=V decoupled": ("latent-head",),
    "GQA-g": ("low-rank", "mean"),
}
"""Target, with GQA-g for MQA too → its methods, the usual one first."""


def form_of(asked: Sharing, sizes: Architecture) -> Form:
    """The form for a model of these sizes. ValueError for targets, methods and sizes that there are not."""
    variant = _with_heads(asked.variant, sizes)
    target = _target(variant, sizes)
    method = asked.method or METHODS[target][0]
    if method not in METHODS[target]:
        raise ValueError(f"{variant} is made by {' or '.join(METHODS[target])}, and not by {method!r}")
    rotary_dims = (asked.rotary_dims or sizes.head_dim // 4 * 2) if variant.rotary_apart else 0
    for name, given, goes in (
        ("latent", asked.latent, variant.latent),
        ("rotary_dims", asked.rotary_dims, variant.rotary_apart),
        ("groups", asked.groups - 1, method == "latent-group"),
    ):
        if given and not goes:
            raise ValueError(f"{name} says nothing to {variant} by {method}: leave it out")
    return {
        "K=V on_read": _values,
        "MLA on_read": _latents,
        "MLA": _latent_apart,
        "K=V decoupled": _content_apart,
        "GQA-g": _merged,
    }[target](variant, method, rotary_dims, asked, sizes)


def require_source(sizes: Architecture, form: Form) -> None:
    """Raise ValueError for a model whose layers have no keys and values of their own by one matrix each."""
    own = Variant(kv_heads=sizes.variant.kv_heads)
    what = ""
    if sizes.is_mixed or sizes.variant != own:
        what = f"keeps {sizes.described}, and shares already"
    elif sizes.biases or sizes.qkv_bias:
        what = "has biases on its queries, keys and values, which have no place in what they become"
    elif sizes.qk_norm:
        what = "normalises queries and keys by head, which no other map of them commutes with"
    elif form.variant.rotary_apart and sizes.rotary != "full":
        what = f"has rotary {sizes.rotary}, and a rotary key of its own is made of one over all dims"
    if what:
        raise ValueError(f"the model {what}: sharing is for QKV and GQA without such")


def text_of(x_BTM: Tensor, base: float) -> Text:
    """A few windows of a layer's inputs, for what needs attention maps."""
    return Text(x_BTM[:READ_WINDOWS], base)


def half(variant: Variant, sizes: Architecture, rotary_dims: int) -> int:
    """Dims of a latent with which a layer keeps half of what it kept, the rotary key included."""
    return sizes.kv_heads * sizes.head_dim - (rotary_dims if variant.rotary_apart else 0)


def _with_heads(variant: Variant, sizes: Architecture) -> Variant:
    own = sizes.variant.kv_heads
    return variant if variant.kv_heads is not None or variant == Variant() else replace(variant, kv_heads=own)


def _target(variant: Variant, sizes: Architecture) -> str:
    plain = replace(variant, kv_heads=None)
    shared = Variant(Roles.KEY_VALUE)
    known = {
        replace(shared, treatment=Treatment.ON_READ): "K=V on_read",
        replace(shared, treatment=Treatment.DECOUPLED): "K=V decoupled",
        Variant(latent=True, treatment=Treatment.ON_READ): "MLA on_read",
        Variant(latent=True): "MLA",
        Variant(): "GQA-g",
    }
    kv_heads = variant.kv_heads if variant.kv_heads is not None else sizes.heads
    if plain not in known:
        raise ValueError(f"no method makes {variant} of another model; there are {', '.join(METHODS)}")
    target = known[plain]
    if target != "GQA-g" and kv_heads != sizes.kv_heads:
        raise ValueError(
            f"{variant} has {kv_heads} key/value heads and the model {sizes.kv_heads}: leave the heads out, or merge "
            f"them first (--to GQA-{kv_heads}) and convert the result"
        )
    if target == "GQA-g" and (sizes.kv_heads % kv_heads or kv_heads == sizes.kv_heads):
        raise ValueError(f"{sizes.kv_heads} key/value heads merge to fewer that divide them, and not to {kv_heads}")
    return target


def _values(variant: Variant, method: str, rotary_dims: int, asked: Sharing, sizes: Architecture) -> Form:
    return Form(
        variant,
        method,
        0,
        rotary_dims,
        lambda maps, inputs, text, latent, pairs: values_from_keys(maps, inputs),
        lambda maps, inputs, text, asked: Measured((values_from_keys(maps, inputs).lost,)),
    )


def _latents(variant: Variant, method: str, rotary_dims: int, asked: Sharing, sizes: Architecture) -> Form:
    scope = method.removeprefix("latent-")
    parts = {"all": 1, "group": asked.groups, "head": sizes.kv_heads}[scope]

    def make(maps: LayerMaps, inputs: Inputs, text: Text, latent: int, pairs: tuple[int, ...]) -> Shared:
        counted = importance(maps, inputs, text.base) if asked.weighed else None
        return latents(maps, inputs, latent, scope, asked.groups, counted)  # type: ignore[arg-type]

    return Form(variant, method, _step(sizes, parts), rotary_dims, make, _spectrum(scope, _step(sizes, parts)))


def _latent_apart(variant: Variant, method: str, rotary_dims: int, asked: Sharing, sizes: Architecture) -> Form:
    def measured(maps: LayerMaps, inputs: Inputs, text: Text, asked: Sharing) -> Measured:
        losses = _spectrum("all", _step(sizes, 1))(maps, inputs, text, asked).losses
        return Measured(losses, _turning(maps, inputs, text))

    return Form(
        variant,
        method,
        _step(sizes, 1),
        rotary_dims,
        lambda maps, inputs, text, latent, pairs: latent_apart(maps, inputs, text, pairs, latent),
        measured,
    )


def _content_apart(variant: Variant, method: str, rotary_dims: int, asked: Sharing, sizes: Architecture) -> Form:
    def measured(maps: LayerMaps, inputs: Inputs, text: Text, asked: Sharing) -> Measured:
        lost = latents(maps, inputs, len(maps.key_RM), "head").lost
        return Measured((lost,), _turning(maps, inputs, text))

    return Form(
        variant,
        method,
        0,
        rotary_dims,
        lambda maps, inputs, text, latent, pairs: content_apart(maps, inputs, text, pairs),
        measured,
    )


def _merged(variant: Variant, method: str, rotary_dims: int, asked: Sharing, sizes: Architecture) -> Form:
    kv_heads = variant.kv_heads_for(sizes.heads)

    def make(maps: LayerMaps, inputs: Inputs, text: Text, latent: int, pairs: tuple[int, ...]) -> Shared:
        return merged_heads(maps, inputs, kv_heads, method)  # type: ignore[arg-type]

    def measured(maps: LayerMaps, inputs: Inputs, text: Text, asked: Sharing) -> Measured:
        return Measured((make(maps, inputs, text, 0, ()).lost,))

    return Form(variant, method, 0, rotary_dims, make, measured)


def _step(sizes: Architecture, parts: int) -> int:
    """Dims from one size of a latent to the next: a multiple of the latents, in about `STEPS` sizes."""
    return max(1, round(2 * sizes.kv_heads * sizes.head_dim / STEPS / parts)) * parts


def _spectrum(scope: str, step: int) -> Callable[[LayerMaps, Inputs, Text, Sharing], Measured]:
    def measured(maps: LayerMaps, inputs: Inputs, text: Text, asked: Sharing) -> Measured:
        counted = importance(maps, inputs, text.base) if asked.weighed else None
        return Measured(spectrum(maps, inputs, step, scope, asked.groups, counted))  # type: ignore[arg-type]

    return measured


def _turning(maps: LayerMaps, inputs: Inputs, text: Text) -> Tensor:
    means_HP = rotary_importance.mean_turns(maps, text)
    return rotary_importance.importance(maps, inputs, means_HP)
