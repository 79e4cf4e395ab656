"""Which variants have a meaning: every refused pair, with its reason and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from twofold.variants.choices import Recurrence, Sharing, Treatment

if TYPE_CHECKING:
    from twofold.variants.variant import Variant


def require_meaning(variant: Variant) -> None:
    """Raises ValueError with the first reason why `variant` has no meaning."""
    for reason in _reasons(variant):
        raise ValueError(reason)


def _reasons(variant: Variant) -> Iterator[str]:
    yield from _counts(variant)
    yield from _heads(variant)
    yield from _rotary(variant)
    yield from _projections(variant)
    if variant.latent:
        yield from _latent(variant)
    if variant.recurrence is not Recurrence.NONE:
        yield from _recurrence(variant)
    if variant.row_layers > 1:
        yield from _borrowed_rows(variant)


def _counts(variant: Variant) -> Iterator[str]:
    if variant.kv_heads is not None and variant.kv_heads < 1:
        yield f"GQA needs at least 1 key/value head, not {variant.kv_heads}"
    if variant.rank is not None and variant.rank < 1:
        yield f"low-rank projections need a rank of at least 1, not {variant.rank}"
    for name, number in (("rows", variant.row_layers), ("projections", variant.matrix_layers)):
        if number < 1:
            yield f"at least 1 layer has its own {name}, not {number}"


def _heads(variant: Variant) -> Iterator[str]:
    if variant.kv_heads is None:
        return
    if variant.sharing.query_is_key:
        yield (
            f"{variant.sharing.value} cannot be combined with {variant.heads_notation}: where the query is the key, "
            "every query head needs a key head of its own. Use K=V or QKV with it, or drop it"
        )
    for role in ("key", "value"):
        if role in variant.unprojected:
            yield (
                f"no-W{role[0].upper()} cannot be combined with {variant.heads_notation}: the input is as wide as all "
                "query heads together. Drop one of the two"
            )


def _rotary(variant: Variant) -> Iterator[str]:
    treatment, shared = variant.treatment, variant.sharing.value_is_key
    if variant.latent and treatment not in (Treatment.DEROTATED, Treatment.ON_READ):
        yield (
            f"{treatment.value} is a treatment of shared values, and MLA has a rotary key beside its latent. Leave the "
            "word out, or use MLA on_read, whose keys are made from the latent and turned when they are read"
        )
    elif treatment is not Treatment.DEROTATED and not (shared or variant.latent):
        yield (
            f"{treatment.value} is a treatment of shared values, and {variant.sharing.value} gives the value a "
            "projection of its own, which rotary does not touch. Leave the word out, or use K=V"
        )
    if variant.decoupled and variant.sharing.query_is_key:
        yield (
            "Q=K=V cannot be decoupled: the query has rotary dims that no key of its head has, so it is not the key. "
            "Use K=V decoupled"
        )


def _projections(variant: Variant) -> Iterator[str]:
    sources = variant.sharing.sources
    for role in variant.unprojected:
        if role not in sources or sources[role] != role:
            yield f"no-W{role[:1].upper()}: in {variant.sharing.value} the {role} has no matrix of its own to leave out"
    if variant.diagonal and variant.sharing is Sharing.QKV:
        yield "diagonal scales tell roles apart that share a matrix, and QKV shares none: use Q=K=V diagonal"
    if variant.diagonal and variant.decoupled:
        yield "diagonal cannot be combined with decoupled, whose content is normalised for all roles: drop one"
    projected = [role for role in variant.sharing.matrices if role not in variant.unprojected]
    if variant.rank is not None and not projected:
        yield f"rank-{variant.rank}: there is no projection left to factor. Drop it"
    if variant.nonlinear_query and "query" not in projected:
        yield "nonlinear-WQ replaces the query's own matrix, and there is none: use it with QKV or K=V"
    if variant.nonlinear_query and variant.decoupled:
        yield "nonlinear-WQ makes a query as wide as the input, and a decoupled query has rotary dims besides: drop one"


def _latent(variant: Variant) -> Iterator[str]:
    if others := _others(variant):
        yield (
            f"MLA cannot be combined with {others[0]}: all of its keys and values are made from one latent, by "
            "projections of its own. For key = value inside a latent without up-projections use K=V decoupled"
        )


def _others(variant: Variant) -> list[str]:
    """What an MLA variant is given besides, in words."""
    given = {
        variant.sharing.value: variant.sharing is not Sharing.QKV,
        "diagonal": variant.diagonal,
        "no-W…": bool(variant.unprojected),
        f"rank-{variant.rank}": variant.rank is not None,
        "nonlinear-WQ": variant.nonlinear_query,
        "a recurrence": variant.recurrence is not Recurrence.NONE,
        f"CLA-{variant.row_layers}": variant.row_layers > 1,
    }
    return [name for name, there in given.items() if there]


def _recurrence(variant: Variant) -> Iterator[str]:
    if variant.treatment is not Treatment.DEROTATED:
        yield f"a linear recurrence has no rotary, so there is nothing to be {variant.treatment.value}: drop the word"
    if variant.position_term.value:
        yield f"{variant.position_term.value} is for the scores before a softmax, which linear attention does not have"
    if variant.row_layers > 1:
        yield "a linear recurrence keeps a state and no rows, so no layer can read another's: drop the CLA"
    if variant.diagonal:
        yield (
            f"diagonal cannot be combined with {variant.recurrence.value}: a key's scale acts within the feature map, "
            "so it cannot be moved to the query. Drop one of the two"
        )


def _borrowed_rows(variant: Variant) -> Iterator[str]:
    if variant.sharing.query_is_key:
        yield (
            f"{variant.sharing.value} cannot be combined with CLA-{variant.row_layers}: a layer that reads another's "
            "rows makes no key that its query could be. Use QKV or K=V"
        )
    if variant.diagonal:
        yield f"diagonal cannot be combined with CLA-{variant.row_layers}: the scales belong to a layer's own rows"
