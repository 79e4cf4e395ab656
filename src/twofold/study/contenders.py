"""What a study compares: a variant with its sizes, under a label that is true, unique and safe as a folder's name."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from twofold.models.architecture import FIELDS, Architecture
from twofold.variants.variant import Variant

Changes = Mapping[str, tuple[Any, Any]]

_UNSAFE = re.compile(r"[^A-Za-z0-9=+.-]+")
_FIRST = ("heads", "kv_heads", "head_dim", "mlp")
_FOLLOW = ("variant", "head_dim", "rotary", "initial_deviation", "activation")
"""Fields that others may decide; of these only the head dim is always told when it differs."""


@dataclass(frozen=True)
class Contender:
    """One entry of a study's variants with its final sizes.

    `changed` holds what differs from the study's own model, as (there, here); `kv_heads` is against the notation that
    the entry was given. `matched` holds the costs that were matched, as (wanted, reached).
    """

    label: str
    architecture: Architecture
    changed: Changes
    matched: Mapping[str, tuple[int, int]]

    @property
    def variant(self) -> str:
        """The notation."""
        return str(self.architecture.variant)

    @property
    def slug(self) -> str:
        """The label as part of a folder's name: as the notation's own where that is all there is."""
        return slug(self.label)

    @property
    def sizes(self) -> dict[str, Any]:
        """Every field of the architecture, as JSON takes it."""
        return sizes(self.architecture)


def slug(label: str) -> str:
    """A label as part of a folder's name."""
    return _UNSAFE.sub("_", label).strip("_")


def sizes(arch: Architecture) -> dict[str, Any]:
    """Every field of an architecture, as JSON takes it."""
    found = {name: getattr(arch, name) for name in FIELDS}
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    """A variant as its notation, and what has an entry for each layer as a list."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Variant) else value


def changes(base: Architecture, kv_heads: int | None, arch: Architecture, given: Collection[str]) -> Changes:
    """What differs between the study's model and this one; `kv_heads` are those that the notation had there."""
    told = [name for name in FIELDS if name in given or name == "head_dim" or name not in _FOLLOW]
    pairs = {name: (getattr(base, name), getattr(arch, name)) for name in told}
    if kv_heads is not None:
        pairs["kv_heads"] = (kv_heads, arch.kv_heads)
    if "partial" in (base.rotary, arch.rotary):  # where 0 stands for a number that the variant decides
        pairs["rotary_dims"] = (base.rotated_dims, arch.rotated_dims)
    order = dict.fromkeys((*_FIRST, *pairs))
    return {name: pairs[name] for name in order if name in pairs and pairs[name][0] != pairs[name][1]}


def label(arch: Architecture, changed: Changes, given: Collection[str]) -> str:
    """The notation, with what else differs from the study's model; an MLP's width only where the entry gave it.

    Key/value heads stand in the notation, or follow from the heads; rotated dims follow from the variant.
    """
    quiet = {"kv_heads"} | ({"mlp", "rotary_dims"} - set(given))
    told = [f"{name} {_text(value)}" for name, (_, value) in changed.items() if name not in quiet]
    return f"{arch.variant} ({', '.join(told)})" if told else str(arch.variant)


def changes_text(changed: Mapping[str, Any]) -> str:
    """`kv_heads 2 → 4, mlp 344 → 259`; a dash where nothing differs."""
    return ", ".join(f"{name} {_text(there)} → {_text(here)}" for name, (there, here) in changed.items()) or "–"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == "":
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
