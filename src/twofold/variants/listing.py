"""The variants that `twofold variants` lists beside the published ones, in groups, and what each shares in words."""

from __future__ import annotations

from twofold.variants.choices import ROLES, PositionTerm, Recurrence, Sharing, Treatment
from twofold.variants.notation import parse
from twofold.variants.variant import Variant

FURTHER: dict[str, tuple[Variant, ...]] = {
    "rotary, K=V": tuple(
        parse(text)
        for text in (
            "K=V on_read",
            "Q=K=V on_read",
            "K=V kept",
            "K=V GQA-4 kept",
            "K=V decoupled",
            "K=V GQA-4 decoupled",
        )
    ),
    "latent": (parse("MLA"), parse("MLA on_read")),
    "projections": tuple(
        parse(text)
        for text in (
            "Q=K diagonal",
            "K=V diagonal",
            "Q=K=V diagonal",
            "no-WQ",
            "K=V no-WQ",
            "no-WK",
            "no-WV",
            "simplified",
            "QKV rank-16",
            "K=V rank-16",
            "QKV nonlinear-WQ",
            "K=V nonlinear-WQ",
        )
    ),
    "across layers": tuple(parse(text) for text in ("QKV CLA-2", "K=V CLA-2", "K=V GQA-4 CLA-2", "QKV tied-2")),
    "recurrence": tuple(parse(text) for text in ("QKV linear", "K=V linear", "Q=K=V linear", "QKV linear-relu")),
    "instead of +": tuple(parse(text) for text in ("Q=K +temperature", "Q=K +key-bias", "Q=K +relative")),
}
"""Neighbours of the published variants by kind: one of each sort, with the head sharings that are usual there."""

_SHARED = {
    Sharing.QKV: "",
    Sharing.QUERY_KEY: "query = key",
    Sharing.KEY_VALUE: "key = value",
    Sharing.ALL: "query = key = value",
}
_TREATED = {
    Treatment.DEROTATED: "",
    Treatment.ON_READ: "key rotated when read",
    Treatment.KEPT: "rotated dims kept beside",
    Treatment.DECOUPLED: "one rotary key beside",
}
_TERMS = {
    PositionTerm.NONE: "",
    PositionTerm.PUBLISHED: "+",
    PositionTerm.TEMPERATURE: "of + the factor alone",
    PositionTerm.KEY_BIAS: "of + the key bias alone",
    PositionTerm.RELATIVE: "bias by distance",
}


def in_words(variant: Variant) -> str:
    """What shares what, and how: `key = value; 4 KV heads`."""
    heads = variant.kv_heads
    parts = [
        _SHARED[variant.sharing] if not _is_input(variant) else "",
        f"{heads} KV head{'s' if heads > 1 else ''}" if heads else "",
        *_beyond(variant),
    ]
    return "; ".join(filter(None, parts)) or "nothing"


def beyond_sharing(variant: Variant) -> str:
    """What makes a variant more than a sharing of projections and heads; empty for the plain ones."""
    return "; ".join(filter(None, _beyond(variant)))


def _beyond(variant: Variant) -> list[str]:
    return [
        _unprojected(variant),
        _latent(variant) if variant.latent else _TREATED[variant.treatment],
        "scales for each role" if variant.diagonal else "",
        f"factors of rank {variant.rank}" if variant.rank else "",
        "query by a small network" if variant.nonlinear_query else "",
        {Recurrence.ELU: "φ = elu + 1", Recurrence.RELU: "φ of relu"}.get(variant.recurrence, ""),
        f"{variant.row_layers} layers read one row" if variant.row_layers > 1 else "",
        f"{variant.matrix_layers} layers use one matrix" if variant.matrix_layers > 1 else "",
        _TERMS[variant.position_term],
    ]


def _latent(variant: Variant) -> str:
    return "latent, rotary key beside" if variant.rotary_apart else "latent, rotated when read"


def _unprojected(variant: Variant) -> str:
    """Which roles are the layer's input: `query = input`."""
    taken = [role for role, owner in variant.sharing.sources.items() if owner in variant.unprojected]
    if len(taken) == len(ROLES):
        return "all roles = input"
    return " = ".join([*taken, "input"]) if taken else ""


def _is_input(variant: Variant) -> bool:
    """Whether what is shared is the input itself, so that `_unprojected` says it all."""
    return "key" in variant.unprojected
