"""Which layers are converted, with how large a latent, and which pairs keep their rotary: from what is foretold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from twofold.conversion.budget import allocate, select
from twofold.conversion.rotary_importance import choose_pairs
from twofold.conversion.sharing_forms import Form, Measured
from twofold.conversion.sharing_plan import Sharing
from twofold.models.architecture import Architecture

LEAST = 1e-3
"""Of the mean loss over layers: no layer's loss is taken to be nothing where it sets a scale."""


class Choice(NamedTuple):
    """For each layer the dims of its latent, 0 for a form without one, None for a layer that stays; rotary pairs."""

    latents: tuple[int | None, ...]
    pairs: tuple[int, ...]


def by_hand(asked: Sharing, layers: int) -> tuple[int, ...]:
    """The layers that may share: those that are asked for, else all. ValueError for layers that are not there."""
    picked = tuple(range(layers)) if asked.layers is None else asked.layers
    if not picked or len(set(picked)) < len(picked) or min(picked) < 0 or max(picked) >= layers:
        raise ValueError(f"layers are different numbers from 0 to {layers - 1}, not {list(picked)}")
    return picked


def require_choice(form: Form, asked: Sharing, sizes: Architecture) -> None:
    """Raise ValueError for layers that are not there, and for a share of the cache that the form cannot meet."""
    if asked.cache is None:
        by_hand(asked, sizes.layers)
        return
    if not 0 < asked.cache < 1:
        raise ValueError(f"the share of the cache that is to be left lies between 0 and 1, and is not {asked.cache}")
    if asked.layers is not None:
        raise ValueError("layers and a share of the cache are both given: the share chooses the layers; leave one out")
    whole, least = _whole(sizes), form.numbers(sizes, _smallest(form, asked))
    if sizes.layers * least > _allowed(asked.cache, sizes) or least >= whole:
        raise ValueError(
            f"{form.variant} keeps at least {least:,} of the {whole:,} numbers of a layer, {least / whole:.1%}, and "
            f"{asked.cache:.1%} of the cache is asked for: give a larger share, or a target that keeps less"
        )


def weighed(known: Sequence[Measured], costs: Sequence[float]) -> list[Measured]:
    """The losses in the unit of `costs`, which are those of each layer's `remade` maps: all sizes in proportion.

    A layer that loses next to nothing there counts as if it lost `LEAST` of the mean.
    """
    lost = [one.losses[one.at] for one in known]
    least = LEAST * sum(lost) / len(lost)
    if not least > 0:
        return list(known)
    factors = [cost / max(here, least) for cost, here in zip(costs, lost, strict=True)]
    return [
        one._replace(losses=tuple(loss * factor for loss in one.losses))
        for one, factor in zip(known, factors, strict=True)
    ]


def chosen(
    known: Sequence[Measured], turning: Sequence[Tensor], form: Form, asked: Sharing, sizes: Architecture
) -> Choice:
    """The choice, by what is known of the layers `by_hand`, in their order.

    `known` is asked for a share of the cache, and `turning` [D/2] each (`sharing_forms.turning_of`) for rotary pairs;
    else they may be empty.

    Raises ValueError as `require_choice`.
    """
    require_choice(form, asked, sizes)
    if asked.cache is None:
        picked = by_hand(asked, sizes.layers)
        latents = tuple(form.latent if layer in picked else None for layer in range(sizes.layers))
    else:
        choose = _sized if _sizes_vary(form, asked) else _counted
        latents = choose(known, form, _allowed(asked.cache, sizes), sizes)
    of_layers = zip(turning, by_hand(asked, sizes.layers), strict=bool(turning))
    taken = [one for one, layer in of_layers if latents[layer] is not None]
    return Choice(latents, choose_pairs(taken, form.rotary_dims, spaced=asked.spaced) if taken else ())


def _sizes_vary(form: Form, asked: Sharing) -> bool:
    return form.step > 0 and not asked.latent


def _smallest(form: Form, asked: Sharing) -> int:
    return form.step if _sizes_vary(form, asked) else form.latent


def _whole(sizes: Architecture) -> int:
    """Numbers of a layer that keeps its keys and values."""
    return 2 * sizes.kv_heads * sizes.head_dim


def _allowed(share: float, sizes: Architecture) -> int:
    """Numbers that all layers may keep; a share that was written in decimals is meant as written."""
    return math.floor(share * sizes.layers * _whole(sizes) + 1e-9)


def _sized(known: Sequence[Measured], form: Form, allowed: int, sizes: Architecture) -> tuple[int | None, ...]:
    """Latents of all sizes, of which the largest is the layer as it was."""
    limit = _whole(sizes) - form.rotary_dims
    losses = [one.losses[: -(-limit // form.step)] for one in known]
    dims = allocate(losses, allowed - len(known) * form.rotary_dims, form.step, limit)
    return tuple(None if one >= limit else min(one, form.widest) for one in dims)


def _counted(known: Sequence[Measured], form: Form, allowed: int, sizes: Architecture) -> tuple[int | None, ...]:
    """As few layers as are needed, those that lose least."""
    whole = _whole(sizes)
    count = -(-(len(known) * whole - allowed) // (whole - form.numbers(sizes, form.latent)))
    at = form.latent // form.step if form.step else 0
    picked = select([one.losses[at] for one in known], count)
    return tuple(form.latent if layer in picked else None for layer in range(len(known)))
