"""What can be asked of a conversion, and which form it then takes: one for each target, with its methods.

| target | what a layer keeps | methods |
|---|---|---|
| `K=V on_read` | its keys, of which values are made | least-squares |
| `MLA on_read` | a latent, of which keys and values are made | latent-all, latent-group, latent-head |
| `MLA` | a latent, and one rotary key for all heads | latent-all |
| `K=V decoupled` | a latent for each head, and one rotary key | latent-head |
| `GQA-g`, `MQA` | fewer keys and values | low-rank, mean |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from twofold.conversion import sharing_forms
from twofold.conversion.sharing_forms import Form, Request
from twofold.models.architecture import Architecture
from twofold.variants.choices import Sharing as Roles
from twofold.variants.choices import Treatment
from twofold.variants.variant import Variant


@dataclass(frozen=True)
class Sharing:
    """What is asked for. `variant` may leave its key/value heads out: they are then the model's.

    - `method`: see the table above; "" for a target's first.
    - `latent`: dims of each layer's latent, 0 for half of what keys and values take, less the rotary key.
    - `groups`: latents of `latent-group`, each for as many neighbouring heads. `rotary_dims`: of the rotary key, 0 for
      half a head's.
    - `spaced`: whether the rotary key's pairs are 0, s, 2s, …, as engines have them, or any.
    - `layers`: which ones, None for all. `cache`: the share of the model's cache that is to be left over all layers, at
      most; it then chooses the sizes of latents or, where they are given or there are none, as few layers as are
      needed, by what they lose.
    - `weighed`: whether errors of a latent count as queries and outputs see them, or all alike.
    - `refit`: whether the output's matrix is fitted again.
    """

    variant: Variant
    method: str = ""
    latent: int = 0
    groups: int = 1
    rotary_dims: int = 0
    spaced: bool = True
    layers: tuple[int, ...] | None = None
    cache: float | None = None
    weighed: bool = True
    refit: bool = True


METHODS: Mapping[str, tuple[str, ...]] = {
    "K=V on_read": ("least-squares",),
    "MLA on_read": ("latent-all", "latent-group", "latent-head"),
    "MLA": ("latent-all",),
    "K=V decoupled": ("latent-head",),
    "GQA-g": ("low-rank", "mean"),
}
"""Target, with GQA-g for MQA too → its methods, the usual one first."""
_FORMS = {
    "K=V on_read": sharing_forms.values_form,
    "MLA on_read": sharing_forms.latents_form,
    "MLA": sharing_forms.latent_apart_form,
    "K=V decoupled": sharing_forms.content_apart_form,
    "GQA-g": sharing_forms.merged_form,
}
_PLAIN = {
    Variant(Roles.KEY_VALUE, treatment=Treatment.ON_READ): "K=V on_read",
    Variant(Roles.KEY_VALUE, treatment=Treatment.DECOUPLED): "K=V decoupled",
    Variant(latent=True, treatment=Treatment.ON_READ): "MLA on_read",
    Variant(latent=True): "MLA",
    Variant(): "GQA-g",
}
_UNDER_NORMS = (*(("MLA on_read", method) for method in METHODS["MLA on_read"]), ("GQA-g", "mean"))
"""Targets and methods with a norm of queries and keys: of all others, some map would stand behind it, or some part of a
key beside it.
"""
_WITHOUT_ROTARY = (("K=V on_read", "least-squares"), ("GQA-g", "mean"))
"""Targets and methods that do not ask how rotary turns. Where it turns nothing, none asks that keeps no rotary key."""


def form_of(asked: Sharing, sizes: Architecture) -> Form:
    """The form for a model of these sizes.

    Raises ValueError for targets, methods and sizes that there are not, and for models that they are not made of.
    """
    target = _target(asked.variant)
    variant = _with_heads(asked.variant, sizes)
    method = asked.method or METHODS[target][0]
    if method not in METHODS[target]:
        raise ValueError(f"{variant} is made by {' or '.join(METHODS[target])}, and not by {method!r}")
    _require_said(asked, variant, method)
    _require_source(sizes, (target, method), variant)
    _require_heads(target, variant, sizes)
    request = Request(
        variant,
        method,
        asked.latent,
        _parts(asked, method, sizes) if variant.latent else 1,
        _rotary_dims(asked, sizes) if variant.rotary_apart else 0,
        asked.weighed,
    )
    return _FORMS[target](request, sizes)


def _with_heads(variant: Variant, sizes: Architecture) -> Variant:
    own = sizes.variant.kv_heads
    return variant if variant.kv_heads is not None or variant == Variant() else replace(variant, kv_heads=own)


def _target(variant: Variant) -> str:
    target = _PLAIN.get(replace(variant, kv_heads=None))
    if target is None:
        near = "K=V on_read" if variant.sharing is Roles.KEY_VALUE and not variant.latent else ""
        raise ValueError(
            f"no method makes {variant} of another model"
            + (f": did you mean {near}?" if near else "")
            + f" There are {', '.join(METHODS)} and MQA"
        )
    return target


def _require_said(asked: Sharing, variant: Variant, method: str) -> None:
    """What is given has a meaning for the form."""
    for name, given, goes in (
        ("latent", asked.latent, variant.latent),
        ("rotary_dims", asked.rotary_dims, variant.rotary_apart),
        ("any-pairs (spaced false)", not asked.spaced, variant.rotary_apart),
        ("plain (weighed false)", not asked.weighed, variant.latent and not variant.rotary_apart),
        ("groups", asked.groups - 1, method == "latent-group"),
    ):
        if given and not goes:
            raise ValueError(f"{name} says nothing to {variant} by {method}: leave it out")


def _require_source(sizes: Architecture, form: tuple[str, str], variant: Variant) -> None:
    """The model makes queries, keys and values by one matrix each, and turns keys as the method takes them to be."""
    own, what = Variant(kv_heads=sizes.variant.kv_heads), ""
    advice = "sharing is for QKV, GQA-g and MQA without such, as Llama, Qwen2 and GPT-2 are"
    if sizes.is_mixed or sizes.variant != own:
        what = f"has layers of {sizes.described}, which do not keep plain keys and values of their own"
    elif sizes.qk_norm and form not in _UNDER_NORMS:
        what = f"normalises queries and keys by head, which {variant} by {form[1]} does not go with"
        advice = "take MLA on_read, or GQA-g or MQA by the method mean"
    elif sizes.sinks:
        what = "has sinks, which the methods do not know"
    elif sizes.learned_positions and variant.rotary_apart:
        what = f"has learned positions, and {variant} keeps a rotary key, which nothing turns there"
        advice = "take MLA on_read, which keeps none"
    elif sizes.rotary == "partial" and form not in _WITHOUT_ROTARY:
        what = f"has rotary {sizes.rotary}, and {variant} by {form[1]} is made of one over all dims of a head"
    elif sizes.scale_exponent != 0.5 and variant.rotary_apart:
        what = f"scales scores by d^−{sizes.scale_exponent:g}, and a rotary key of its own is fitted to d^−0.5"
    if what:
        raise ValueError(f"the model {what}: {advice}")


def _require_heads(target: str, variant: Variant, sizes: Architecture) -> None:
    own, kv_heads = sizes.kv_heads, sizes.heads if variant.kv_heads is None else variant.kv_heads
    if target == "GQA-g":
        if kv_heads >= own or own % kv_heads:
            fewer = ", ".join(str(g) for g in range(1, own) if own % g == 0) or "none, and has fewest already"
            raise ValueError(f"the model's {own} key/value heads merge to {fewer}; they do not to {kv_heads}")
    elif kv_heads != own:
        lead = f"merge them first (--to GQA-{kv_heads}) and convert the result" if not own % kv_heads else ""
        raise ValueError(
            f"{variant} has {kv_heads} key/value heads and the model {own}: leave the heads out"
            + (f", or {lead}" if lead else "")
        )


def _parts(asked: Sharing, method: str, sizes: Architecture) -> int:
    """Latents of a layer."""
    if method == "latent-head":
        return sizes.kv_heads
    if asked.groups < 1 or sizes.kv_heads % asked.groups:
        raise ValueError(
            f"{sizes.kv_heads} key/value heads do not fall into {asked.groups} equal groups: take a divisor of "
            f"{sizes.kv_heads}"
        )
    return asked.groups


def _rotary_dims(asked: Sharing, sizes: Architecture) -> int:
    dims = asked.rotary_dims or max(2, sizes.head_dim // 4 * 2)
    if dims % 2 or not 2 <= dims <= sizes.head_dim:
        raise ValueError(
            f"{dims} rotary_dims do not go: pairs turn, so give an even number from 2 to the {sizes.head_dim} of a head"
        )
    return dims
