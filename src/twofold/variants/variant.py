"""`Variant`: which roles share a matrix and which heads share keys and values. A small frozen value object."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from twofold.variants.layout import RowLayout

ROLES = ("query", "key", "value")


class Sharing(Enum):
    """Which of query, key and value are made by one matrix; the value is the notation."""

    QKV = "QKV"
    QUERY_KEY = "Q=K"
    KEY_VALUE = "K=V"
    ALL = "Q=K=V"

    @property
    def query_is_key(self) -> bool:
        """Query and key are one vector: scores before the mask are symmetric."""
        return self in (Sharing.QUERY_KEY, Sharing.ALL)

    @property
    def value_is_key(self) -> bool:
        """Key and value are one vector: the row keeps it once."""
        return self in (Sharing.KEY_VALUE, Sharing.ALL)

    @property
    def sources(self) -> dict[str, str]:
        """Role → the role whose matrix makes it. The shared matrix is always the key's: only a key must exist."""
        return {
            "query": "key" if self.query_is_key else "query",
            "key": "key",
            "value": "key" if self.value_is_key else "value",
        }

    @property
    def matrices(self) -> tuple[str, ...]:
        """The distinct matrices, in the order query, key, value."""
        return tuple(role for role in ROLES if self.sources[role] == role)


@dataclass(frozen=True)
class Variant:
    """One attention variant of arXiv 2606.04032 (section 3), independent of a model's sizes.

    `kv_heads`: None as many as query heads (MHA), 1 for MQA, g for GQA-g. `position_term`: the paper's `+`, a 2-D
    positional term on the scores, for non-causal models. Raises ValueError for pairs without a meaning.
    """

    sharing: Sharing = Sharing.QKV
    kv_heads: int | None = None
    position_term: bool = False

    def __post_init__(self) -> None:
        if self.kv_heads is None:
            return
        if self.kv_heads < 1:
            raise ValueError(f"GQA needs at least 1 key/value head, not {self.kv_heads}")
        if self.sharing.query_is_key:
            raise ValueError(
                f"{self.sharing.value} cannot be combined with {self.heads_notation}: where the query is the key, "
                "every query head needs a key head of its own. Use K=V or QKV with it, or drop it"
            )

    def __str__(self) -> str:
        heads = self.heads_notation
        words = [self.sharing.value] if self.sharing is not Sharing.QKV or not heads else []
        return " ".join([*words, *([heads] if heads else []), *(["+"] if self.position_term else [])])

    @property
    def heads_notation(self) -> str:
        """`MQA`, `GQA-g`, or nothing for MHA."""
        if self.kv_heads is None:
            return ""
        return "MQA" if self.kv_heads == 1 else f"GQA-{self.kv_heads}"

    @property
    def paper_name(self) -> str:
        """The name that the paper uses; a dash in it separates, it does not subtract."""
        shared = {Sharing.QUERY_KEY: "Q=K-V", Sharing.KEY_VALUE: "Q-K=V"}.get(self.sharing, self.sharing.value)
        if self.heads_notation:
            shared = {Sharing.QKV: "", Sharing.KEY_VALUE: "Q-"}[self.sharing] + self.heads_notation
        return f"({shared})+" if self.position_term else shared

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other accepted names: the paper's, where it differs from ours."""
        return () if self.paper_name == str(self) else (self.paper_name,)

    @property
    def slug(self) -> str:
        """The notation as a folder name: no spaces."""
        return str(self).replace(" ", "_")

    def kv_heads_for(self, heads: int) -> int:
        """Key/value heads G in a model of `heads` query heads. Raises ValueError where g does not divide H."""
        if self.kv_heads is None:
            return heads
        if heads % self.kv_heads:
            divisors = ", ".join(str(g) for g in range(1, heads + 1) if heads % g == 0)
            raise ValueError(
                f"{self}: {heads} query heads cannot be shared out evenly among {self.kv_heads} key/value heads; "
                f"possible numbers are {divisors}"
            )
        return self.kv_heads

    def with_kv_heads(self, kv_heads: int, heads: int) -> tuple[Variant, int]:
        """The same sharing with `kv_heads` key/value heads, and the query heads that it takes in a model of `heads`.

        Those are the fewest from `heads` up that can be shared out evenly; where the query is the key, `kv_heads`.
        """
        if kv_heads == self.kv_heads:
            return self, heads
        if self.sharing.query_is_key:
            return self, kv_heads
        heads = -(-heads // kv_heads) * kv_heads
        everyone = self.kv_heads is None and heads == kv_heads
        return replace(self, kv_heads=None if everyone else kv_heads), heads

    def row_layout(self, head_dim: int) -> RowLayout:
        """The row of one token. Q=K saves nothing: its value still has numbers of its own."""
        return RowLayout.shared(head_dim) if self.sharing.value_is_key else RowLayout.separate(head_dim)

    def cache_ratio(self, heads: int) -> float:
        """Cached numbers per token against QKV MHA with `heads` query heads."""
        return self.row_layout(1).numbers(self.kv_heads_for(heads)) / RowLayout.separate(1).numbers(heads)
