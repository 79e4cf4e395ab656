"""`Variant`: what an attention layer shares, and with whom. A small frozen value object, independent of sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from twofold.variants.choices import PositionTerm, Recurrence, Sharing, Treatment
from twofold.variants.layout import RowLayout
from twofold.variants.meaning import require_meaning
from twofold.variants.words import written


@dataclass(frozen=True)
class Variant:
    """One attention variant of arXiv 2606.04032 (section 3) or of its neighbours, independent of a model's sizes.

    - `sharing` and `kv_heads`: None as many as query heads (MHA), 1 for MQA, g for GQA-g.
    - `treatment` of rotary where key and value are shared, and ON_READ of a latent's keys, which then need no rotary
      key of their own; elsewhere it has no effect.
    - `position_term`: on the scores of non-causal models; the paper's `+` and its controls.
    - `latent`: MLA, keys and values made from one cached latent (arXiv 2405.04434); `kv_heads` are then those made.
    - `recurrence`: linear attention, whose cache is a state.
    - `diagonal`: each role scales the shared vector's dims by factors of its own (arXiv 2412.00359).
    - `unprojected`: roles whose matrix is left out, so that they are the layer's input.
    - `rank`: every projection is a product of two matrices with so many dims between them.
    - `nonlinear_query`: the query's matrix is replaced by a small network (arXiv 2603.13381).
    - `row_layers`: so many neighbouring layers read the rows of their first (cross-layer attention, arXiv 2405.12981).
    - `matrix_layers`: so many neighbouring layers use the projections of their first.

    Raises ValueError for pairs without a meaning.
    """

    sharing: Sharing = Sharing.QKV
    kv_heads: int | None = None
    position_term: PositionTerm = PositionTerm.NONE
    treatment: Treatment = Treatment.DEROTATED
    latent: bool = False
    recurrence: Recurrence = Recurrence.NONE
    diagonal: bool = False
    unprojected: tuple[str, ...] = ()
    rank: int | None = None
    nonlinear_query: bool = False
    row_layers: int = 1
    matrix_layers: int = 1

    def __post_init__(self) -> None:
        require_meaning(self)

    def __str__(self) -> str:
        return written(self)

    @property
    def heads_notation(self) -> str:
        """`MQA`, `GQA-g`, or nothing for MHA."""
        if self.kv_heads is None:
            return ""
        return "MQA" if self.kv_heads == 1 else f"GQA-{self.kv_heads}"

    @property
    def paper_name(self) -> str:
        """The name that the paper uses, empty for what it does not name; a dash in it separates."""
        if self != Variant(self.sharing, self.kv_heads, self.position_term):
            return ""
        shared = {Sharing.QUERY_KEY: "Q=K-V", Sharing.KEY_VALUE: "Q-K=V"}.get(self.sharing, self.sharing.value)
        if self.heads_notation:
            shared = {Sharing.QKV: "", Sharing.KEY_VALUE: "Q-"}[self.sharing] + self.heads_notation
        if self.position_term is PositionTerm.NONE:
            return shared
        return f"({shared})+" if self.position_term is PositionTerm.PUBLISHED else ""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other accepted names: the paper's, where it differs from ours."""
        return () if self.paper_name in ("", str(self)) else (self.paper_name,)

    @property
    def slug(self) -> str:
        """The notation as a folder name: no spaces."""
        return str(self).replace(" ", "_")

    @property
    def needs_rotary_part(self) -> bool:
        """Whether some dims have to be rotated, and others not."""
        if self.latent:
            return self.rotary_apart
        return self.sharing.value_is_key and self.treatment in (Treatment.KEPT, Treatment.DECOUPLED)

    @property
    def rotary_apart(self) -> bool:
        """Whether the rotated dims are no dims of the content: a rotary key stands beside it."""
        return self.decoupled or (self.latent and not self.on_read)

    @property
    def on_read(self) -> bool:
        """Whether keys lie in the rows unturned, or have yet to be made, and are turned when they are read."""
        return self.treatment is Treatment.ON_READ

    @property
    def decoupled(self) -> bool:
        """Whether a shared value stands beside a rotary key."""
        return self.sharing.value_is_key and self.treatment is Treatment.DECOUPLED

    def kv_heads_for(self, heads: int) -> int:
        """Key/value heads G in a model of `heads` query heads: parts of a row, so 1 for a latent.

        Raises ValueError where g does not divide H.
        """
        made = self.score_heads_for(heads)
        return 1 if self.latent else made

    def score_heads_for(self, heads: int) -> int:
        """Heads of the keys and values that scores are taken on: of a latent, those that are made from it.

        Raises ValueError where g does not divide H.
        """
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

    def usual_rotary_dims(self, head_dim: int) -> int:
        """How many dims are rotated unless somebody says otherwise; even, and 0 where it would round to none.

        All of a head, but for `kept` a quarter as in Gemma 4, and for a rotary key of its own half a head's dims as in
        DeepSeek-V2.
        """
        if not self.needs_rotary_part:
            return head_dim
        return head_dim // (4 if self.treatment is Treatment.KEPT else 2) // 2 * 2

    def usual_latent_dims(self, head_dim: int) -> int:
        """Dims of the latent unless somebody says otherwise: four heads' as in DeepSeek-V2; 0 where there is none."""
        return 4 * head_dim if self.latent else 0

    def row_layout(self, head_dim: int, rotary_dims: int | None = None, latent_dims: int | None = None) -> RowLayout:
        """The row of one token, for the usual rotary and latent dims where they are None.

        Q=K saves nothing: its value still has numbers of its own.
        """
        rotary_dims = self.usual_rotary_dims(head_dim) if rotary_dims is None else rotary_dims
        if self.latent:
            latent_dims = latent_dims or self.usual_latent_dims(head_dim)
            return RowLayout.latent(latent_dims, rotary_dims) if self.rotary_apart else RowLayout.shared(latent_dims)
        if not self.sharing.value_is_key:
            return RowLayout.separate(head_dim)
        if self.decoupled:
            return RowLayout.decoupled(head_dim, rotary_dims)
        return RowLayout.partial(head_dim, rotary_dims) if self.needs_rotary_part else RowLayout.shared(head_dim)

    def cache_ratio(self, heads: int, head_dim: int = 64) -> float | None:
        """Cached numbers per token against QKV MHA with `heads` query heads, over a whole number of `row_layers`.

        None for a recurrence, which keeps a state of constant size and no rows.
        """
        if self.recurrence is not Recurrence.NONE:
            return None
        row = self.row_layout(head_dim).numbers(self.kv_heads_for(heads)) / self.row_layers
        return row / RowLayout.separate(head_dim).numbers(heads)
