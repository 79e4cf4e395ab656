"""`Architecture`: the sizes and choices that define a decoder, checked once. No torch.

The cost functions, the study files, the command line and the Hugging Face configuration all speak of this object.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from twofold.variants.layout import RowLayout
from twofold.variants.notation import parse
from twofold.variants.variant import Variant

BLOCKS = {
    "paper": "LayerNorm, GELU, biases (arXiv 2606.04032, appendix)",
    "modern": "RMSNorm, SwiGLU, no biases",
}
ROTARY = {
    "none": "learned absolute positions",
    "full": "rotary over all dims of a head",
}


@dataclass(frozen=True)
class Architecture:
    """A causal decoder. Sizes are counts; `positions` is the longest context that learned positions cover.

    `head_dim` defaults to width / heads, `rotary` to the block's usual choice (`paper`: none, `modern`: full), and
    `initial_deviation`, of the initial weights, to the paper's 0.02 or, for `modern`, to 1 / √width: a narrow model
    that starts at 0.02 spends much of a short training on growing its weights.
    `variant` may be given as notation. Raises ValueError for sizes that do not fit together.
    """

    layers: int
    width: int
    heads: int
    mlp: int
    vocab: int
    positions: int
    block: str = "modern"
    rotary: str = ""
    head_dim: int = 0
    tied: bool = True
    dropout: float = 0.0
    rotary_base: float = 10_000.0
    norm_epsilon: float = 1e-5
    initial_deviation: float = 0.0
    variant: Variant = field(default_factory=Variant)

    def __post_init__(self) -> None:
        _one_of("block", self.block, BLOCKS)
        for name in ("layers", "width", "heads", "mlp", "vocab", "positions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        self._fill_in()
        _one_of("rotary", self.rotary, ROTARY)
        if self.rotary == "full" and self.head_dim % 2:
            raise ValueError(f"rotary turns dims in pairs: head_dim must be even, not {self.head_dim}")
        for name in ("head_dim", "rotary_base", "norm_epsilon", "initial_deviation"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be greater than 0, not {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, not {self.dropout}")
        if self.variant.position_term:
            raise ValueError(
                f"{self.variant}: the + term is for non-causal models, and this is a causal decoder. Drop the +"
            )
        self.variant.kv_heads_for(self.heads)

    def _fill_in(self) -> None:
        """Put the usual choice where a field was left at its empty default."""
        paper = self.block == "paper"
        if isinstance(self.variant, str):
            object.__setattr__(self, "variant", parse(self.variant))
        if not self.rotary:
            object.__setattr__(self, "rotary", "none" if paper else "full")
        if not self.initial_deviation:
            object.__setattr__(self, "initial_deviation", 0.02 if paper else self.width**-0.5)
        if not self.head_dim:
            if self.width % self.heads:
                raise ValueError(
                    f"width {self.width} is not a multiple of {self.heads} heads: give head_dim, or another width"
                )
            object.__setattr__(self, "head_dim", self.width // self.heads)

    @property
    def kv_heads(self) -> int:
        """Key/value heads G."""
        return self.variant.kv_heads_for(self.heads)

    @property
    def biases(self) -> bool:
        """Whether linear maps have biases."""
        return self.block == "paper"

    @property
    def learned_positions(self) -> bool:
        """Whether a table of absolute positions is added to the embeddings; it bounds the context."""
        return self.rotary == "none"

    @property
    def row_layout(self) -> RowLayout:
        """The row that each layer caches per token."""
        return self.variant.row_layout(self.head_dim)

    def matrix_outputs(self, role: str) -> int:
        """Output width of the matrix that makes `role`: H·D for the query, G·D for key and value."""
        return (self.heads if role == "query" else self.kv_heads) * self.head_dim


FIELDS = tuple(f.name for f in fields(Architecture))


def _one_of(name: str, value: str, choices: dict[str, str]) -> None:
    if value not in choices:
        listed = "; ".join(f"{key} ({meaning})" for key, meaning in choices.items())
        raise ValueError(f"{name} {value!r} is unknown: choose {listed}")
