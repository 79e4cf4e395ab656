"""Decoders whose layers differ in their variant or their latent: what one layer is, as if all were like it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twofold.variants.variant import Variant

if TYPE_CHECKING:
    from twofold.models.architecture import Architecture


def each(arch: Architecture) -> tuple[Architecture, ...]:
    """For each layer of a mixed architecture, a model of which all layers are like it; equal layers have one object."""
    pairs = list(zip(arch.variants, latents(arch), strict=True))
    made = {pair: _like(arch, *pair) for pair in dict.fromkeys(pairs)}
    return tuple(made[pair] for pair in pairs)


def latents(arch: Architecture) -> tuple[int, ...]:
    """The dims of each layer's latent, 0 where it has none or the usual one."""
    return arch.layer_latents or tuple(arch.latent_dims if variant.latent else 0 for variant in arch.variants)


def described(variants: Sequence[Variant]) -> str:
    """The variant; of layers that differ, how many have which, the most common first."""
    counted = Counter(map(str, variants)).most_common()
    return counted[0][0] if len(counted) == 1 else ", ".join(f"{count} × {variant}" for variant, count in counted)


def most_common(variants: Sequence[Variant]) -> Variant | None:
    """What most layers have, of several the first; None of none."""
    return Counter(variants).most_common(1)[0][0] if variants else None


def _like(arch: Architecture, variant: Variant, latent: int) -> Architecture:
    turned: dict[str, Any] = {}
    if arch.rotary != "none" and len({one.needs_rotary_part for one in arch.variants}) > 1:
        whole: dict[str, Any] = {"rotary": "full", "rotary_dims": 0, "rotary_pairs": ()}
        turned = {"rotary": "partial"} if variant.needs_rotary_part else whole
    norm = arch.latent_norm or not (variant.latent or variant.rotary_apart)
    others: dict[str, Any] = {"layer_variants": (), "layer_latents": (), "latent_norm": norm}
    return replace(arch, variant=variant, latent_dims=latent, **others, **turned)
