"""Which layers are converted, with how large a latent, and which pairs keep their rotary: from what is foretold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from twofold.conversion.budget import allocate, select
from twofold.conversion.rotary_importance import choose_pairs
from twofold.conversion.sharing_plan import Form, Measured, Sharing, half
from twofold.models.architecture import Architecture


class Choice(NamedTuple):
    """For each layer the dims of its latent, 0 for a form without one, None for a layer that stays; rotary pairs."""

    latents: tuple[int | None, ...]
    pairs: tuple[int, ...]


def needs_measures(form: Form, asked: Sharing) -> bool:
    """Whether something is to be chosen by what it loses."""
    return asked.cache is not None or form.rotary_dims > 0


def chosen(known: Sequence[Measured], form: Form, asked: Sharing, sizes: Architecture) -> Choice:
    """The choice, by what is known of every layer; nothing need be where `needs_measures` says so.

    Raises ValueError for layers that are not there, and a budget that the form cannot meet.
    """
    latents = _latents(known, form, asked, sizes)
    turning = [
        one.turning_P
        for one, latent in zip(known, latents, strict=bool(known))
        if latent is not None and one.turning_P is not None
    ]
    return Choice(latents, choose_pairs(turning, form.rotary_dims) if turning else ())


def _latents(known: Sequence[Measured], form: Form, asked: Sharing, sizes: Architecture) -> tuple[int | None, ...]:
    if asked.cache is None:
        picked = _by_hand(asked, sizes.layers)
        usual = (asked.latent or half(form.variant, sizes, form.rotary_dims)) if form.variant.latent else 0
        return tuple(usual if layer in picked else None for layer in range(sizes.layers))
    if not 0 < asked.cache < 1:
        raise ValueError(f"the share of the cache that is to be left lies between 0 and 1, and is not {asked.cache}")
    if asked.layers is not None:
        raise ValueError("layers and a share of the cache are both given: the share chooses the layers; leave one out")
    if form.step and not asked.latent:
        return _sized(known, form, asked.cache, sizes)
    return _counted(known, form, asked, sizes)


def _by_hand(asked: Sharing, layers: int) -> tuple[int, ...]:
    picked = tuple(range(layers)) if asked.layers is None else asked.layers
    if not picked or len(set(picked)) < len(picked) or min(picked) < 0 or max(picked) >= layers:
        raise ValueError(f"layers are different numbers from 0 to {layers - 1}, not {list(picked)}")
    return picked


def _sized(known: Sequence[Measured], form: Form, share: float, sizes: Architecture) -> tuple[int | None, ...]:
    """Latents of all sizes, of which the largest is the layer as it was."""
    whole = 2 * sizes.kv_heads * sizes.head_dim
    limit, total = whole - form.rotary_dims, math.floor(share * len(known) * whole)
    losses = [_up_to(one.losses, form.step, limit) for one in known]
    dims = allocate(losses, total - len(known) * form.rotary_dims, form.step, limit)
    return tuple(None if one >= limit else one for one in dims)


def _up_to(losses: tuple[float, ...], step: int, limit: int) -> tuple[float, ...]:
    return losses[: -(-limit // step)]


def _counted(known: Sequence[Measured], form: Form, asked: Sharing, sizes: Architecture) -> tuple[int | None, ...]:
    """As few layers as are needed, those that lose least."""
    whole = 2 * sizes.kv_heads * sizes.head_dim
    dims = (asked.latent or half(form.variant, sizes, form.rotary_dims)) if form.variant.latent else 0
    left = form.variant.row_layout(sizes.head_dim, form.rotary_dims or None, dims or None).numbers(
        form.variant.kv_heads_for(sizes.heads)
    )
    count = math.ceil((1 - (asked.cache or 1)) * len(known) * whole / (whole - left)) if left < whole else len(known) + 1
    if count > len(known):
        least = left / whole
        raise ValueError(
            f"{form.variant} in all layers leaves {least:.1%} of the cache, and {asked.cache:.1%} is asked for: "
            "give a larger share, or a target that keeps less"
        )
    at = dims // form.step if form.step else 0
    picked = select([one.losses[min(at, len(one.losses) - 1)] for one in known], count)
    return tuple(dims if layer in picked else None for layer in range(len(known)))
