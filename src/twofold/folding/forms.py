"""How a layer can be folded, as values: what each family answers, and what cache, fold and report read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers.cache_utils import CacheLayerMixin

from twofold.cache.kept import KeptRows
from twofold.variants.layout import RowLayout

FORMS = {
    "row": "key and value in one row, what they share stored once",
    "value": "the value alone; the key is made from it, and turned to its position, when it is read",
    "latent": "the latent, as stock caches it, read as it is instead of expanded at every step",
    "input": "the layer's normalised input; the key's matrix moves to the query and the value's behind the sum",
    "window": "a sliding window's rows in storage of their own, not as a view of the whole prompt's",
}


@dataclass(frozen=True)
class Fold:
    """One attention layer and what it becomes.

    `name` is its module's in the model, `layer` its place in the cache. A row has `kv_heads` parts of
    `layout.head_width` numbers and `layout.shared_width` that all heads share; None for layers that read another's
    rows. `stock` is the numbers that transformers stores per token, `window` the tokens that are kept of all.
    `folded` is the class that the module takes; `facts` what its forward pass reads, by name. `keeper` makes the cache
    layer out of an empty stock one, for layers that keep more than rows.
    """

    layer: int
    name: str
    form: str
    layout: RowLayout | None
    kv_heads: int
    stock: int
    window: int | None
    folded: type[nn.Module]
    facts: Mapping[str, Any] = field(default_factory=dict)
    keeper: Callable[[CacheLayerMixin, Fold], CacheLayerMixin] | None = None

    @property
    def numbers(self) -> int:
        """Numbers stored per token."""
        return 0 if self.layout is None else self.layout.numbers(self.kv_heads)


@dataclass(frozen=True)
class Unfolded:
    """One attention layer that stays as it is, and why."""

    layer: int
    name: str
    reason: str


class Packing(NamedTuple):
    """How a cache keeps a stock layer's keys and values [B, G, T, D] as rows: there, and back from all rows."""

    pack: Callable[[Tensor, Tensor], Tensor]
    unpack: Callable[[KeptRows], tuple[Tensor, Tensor]]


class Facts:
    """What a folded module remembers: its `Fold`, and index tensors on the device where they were last used.

    It hangs on the module beside its parameters and is no part of its state.
    """

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self._tensors: dict[str, Tensor] = {name: fact for name, fact in fold.facts.items() if isinstance(fact, Tensor)}

    def tensor(self, name: str, like: Tensor) -> Tensor:
        """The fact `name` on the device of `like`."""
        found = self._tensors[name]
        if found.device != like.device:
            found = self._tensors[name] = found.to(like.device)
        return found


FACTS = "_twofold_facts"
"""The attribute of a folded module that holds its `Facts`."""


def facts_of(module: nn.Module) -> Facts:
    """The facts of a folded module."""
    return module.__dict__[FACTS]


@cache
def folded_class(folded: type, of: type[nn.Module]) -> type[nn.Module]:
    """The class of a module of class `of` that computes as `folded` says: what it lacks it has from `of`."""
    return type(f"Folded{of.__name__}", (folded, of), {"__module__": folded.__module__, "__doc__": folded.__doc__})


def stock_class(folded: type[nn.Module]) -> type[nn.Module]:
    """The class that a folded module had before."""
    return folded.__bases__[1]
