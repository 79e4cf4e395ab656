"""`Architecture`: the sizes and choices that define a decoder, checked once. No torch.

The cost functions, the study files, the command line and the Hugging Face configuration all speak of this object.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import NamedTuple

from twofold.models import fitting, mixture
from twofold.models.activations import require_activation, usual_activation
from twofold.variants.choices import Recurrence
from twofold.variants.layout import RowLayout, cache_bytes, item_bytes, scale_bytes, state_bytes
from twofold.variants.notation import parse
from twofold.variants.tensors import LayerSizes
from twofold.variants.variant import Variant

BLOCKS = {
    "paper": "LayerNorm, GELU, biases (arXiv 2606.04032, appendix)",
    "modern": "RMSNorm, SwiGLU, no biases",
}
ROTARY = {
    "none": "learned absolute positions",
    "full": "rotary over all dims of a head",
    "partial": "rotary over rotary_dims of them",
}


class Reach(NamedTuple):
    """What a layer sees of the tokens up to its own: all; the newest `window` of them; or of blocks of `block` tokens
    its own, the one before and the first.
    """

    window: int | None = None
    block: int | None = None


@dataclass(frozen=True)
class Architecture:
    """A causal decoder. Sizes are counts; `positions` is the longest context that learned positions cover.

    `head_dim` defaults to width / heads, `rotary` to the block's usual choice (`paper`: none, `modern`: full) or what
    the variant needs (partial; none for a linear recurrence), and `initial_deviation`, of the initial weights, to the
    paper's 0.02 or, for `modern`, to 1 / √width: a narrow model that starts at 0.02 spends much of a short training on
    growing its weights. `rotary_dims` and `latent_dims` at 0 are the usual ones: `rotated_dims`, `latent_width`.

    - `window` and `layer_pattern`: a layer S sees the newest `window` tokens, its own included, a layer L all. A layer
      B sees, of blocks of `window` tokens, its own up to itself, the one before, and the first, which stands for the
      global tokens of BigBird (arXiv 2007.14062) and the sinks of StreamingLLM (arXiv 2309.17453); its cache keeps
      all rows. The pattern repeats over the layers (`SSSL`); with a window alone every layer is S.
    - Scores are q·k · d^−`scale_exponent`, d the dims of a key; `softcap` c > 0 makes them c·tanh(s / c) (Gemma 2,
      arXiv 2408.00118); `qk_norm` normalises queries and keys over each head (arXiv 2302.05442); `sinks` adds a
      learned score per head that takes weight and gives nothing (arXiv 2309.17453).
    - `scaled_embeddings` multiplies token embeddings by √width (arXiv 1706.03762, section 3.4).
    - `latent_norm` False leaves out the norm of a latent (MLA) or of the content beside a rotary key (decoupled), as
      models have it whose projections were factored after training. `rotary_pairs` are, of the D/2 pairs of a head
      that rotary turns all over, those that such a rotary key has: pair p turns by base^(−2p/D) a position; where it is
      empty they are r/2 evenly spaced ones.
    - `layer_variants` gives each layer a variant of its own, and `layer_latents` the dims of each layer's latent, 0
      where it has none; `at` is then what one layer is. Layers without a rotary part are turned all over. `variant` is
      the one that most layers have.
    - `qkv_bias` gives the maps to queries, keys and values biases where a block has none otherwise (Qwen2,
      arXiv 2407.10671).
    - `activation` is what the MLP has between its matrices, the block's usual one at "" (`models.activations`).
    - `position_offset`: rows of the table of learned positions before that of the first position. No token reads them;
      OPT's table has two (arXiv 2205.01068, released code).

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
    rotary_dims: int = 0
    latent_dims: int = 0
    window: int = 0
    layer_pattern: str = ""
    scale_exponent: float = 0.5
    softcap: float = 0.0
    qk_norm: bool = False
    sinks: bool = False
    scaled_embeddings: bool = False
    qkv_bias: bool = False
    activation: str = ""
    position_offset: int = 0
    latent_norm: bool = True
    rotary_pairs: tuple[int, ...] = ()
    layer_variants: tuple[Variant, ...] = ()
    layer_latents: tuple[int, ...] = ()
    variant: Variant = field(default_factory=Variant)

    def __post_init__(self) -> None:
        fitting.one_of("block", self.block, BLOCKS)
        fitting.counts(self, ("layers", "width", "heads", "mlp", "vocab", "positions"))
        self._fill_in()
        fitting.one_of("rotary", self.rotary, ROTARY)
        require_activation(self.block, self.activation)
        fitting.numbers(self)
        if self.is_mixed:
            fitting.mixture(self)
        else:
            fitting.rotary(self)
            fitting.variant(self)
        fitting.layers(self)

    def _fill_in(self) -> None:
        """Put the usual choice where a field was left at its empty default."""
        paper = self.block == "paper"
        for name in ("rotary_pairs", "layer_latents"):
            object.__setattr__(self, name, tuple(getattr(self, name) or ()))
        object.__setattr__(self, "layer_variants", tuple(map(as_variant, self.layer_variants or ())))
        object.__setattr__(self, "variant", mixture.most_common(self.layer_variants) or as_variant(self.variant))
        if not self.head_dim:
            object.__setattr__(self, "head_dim", fitting.head_dim(self.width, self.heads))
        if not self.rotary or (self.rotary == "full" and self._needs_rotary_part):
            object.__setattr__(self, "rotary", self._usual_rotary())
        if not self.activation:
            object.__setattr__(self, "activation", usual_activation(self.block))
        if not self.initial_deviation:
            object.__setattr__(self, "initial_deviation", 0.02 if paper else self.width**-0.5)
        if self.window and not self.layer_pattern:
            object.__setattr__(self, "layer_pattern", "S")

    def _usual_rotary(self) -> str:
        if self.variant.recurrence is not Recurrence.NONE:
            return "none"
        if self._needs_rotary_part or self.rotary_dims not in (0, self.head_dim):
            return "partial"
        return "none" if self.block == "paper" else "full"

    @property
    def _needs_rotary_part(self) -> bool:
        """Whether some layer does."""
        return any(one.needs_rotary_part for one in (self.variant, *self.layer_variants))

    @property
    def rotated_dims(self) -> int:
        """Dims that rotary turns, of a head or of a rotary key beside it; 0 for none.

        Where `rotary_dims` says nothing they are the variant's usual ones, and half a head's for others.
        """
        if self.rotary == "none":
            return 0
        if self.rotary_pairs:
            return 2 * len(self.rotary_pairs)
        usual = self.rotary == "full" or self.variant.needs_rotary_part
        return self.rotary_dims or (self.variant.usual_rotary_dims(self.head_dim) if usual else self.head_dim // 4 * 2)

    @property
    def rotary_exponents(self) -> tuple[float, ...]:
        """For each chosen pair p the exponent 2p/D of its frequency; empty where they are evenly spaced."""
        return tuple(2 * pair / self.head_dim for pair in self.rotary_pairs)

    @property
    def latent_width(self) -> int:
        """Dims of the latent that MLA caches, `latent_dims` or the usual ones; 0 for other variants."""
        return self.latent_dims or self.variant.usual_latent_dims(self.head_dim)

    @property
    def kv_heads(self) -> int:
        """Key/value heads G."""
        return self.variant.kv_heads_for(self.heads)

    @property
    def biases(self) -> bool:
        """Whether all linear maps have biases."""
        return self.block == "paper"

    @property
    def learned_positions(self) -> bool:
        """Whether a table of absolute positions is added to the embeddings; it bounds the context."""
        return self.rotary == "none"

    @property
    def position_rows(self) -> int:
        """Rows of that table, those before the first position included; 0 where there is none."""
        return self.positions + self.position_offset if self.learned_positions else 0

    @cached_property  # asked for each token
    def each(self) -> tuple[Architecture, ...]:
        """For each layer, a model of which all layers are like it: this one, unless `is_mixed`."""
        return mixture.each(self) if self.is_mixed else (self,) * self.layers

    @cached_property  # asked for each token
    def kinds(self) -> tuple[tuple[Architecture, Reach], ...]:
        """What layers are like and what they see, of all layers; each pair once."""
        return tuple(dict.fromkeys(zip(self.each, self.reaches, strict=True)))

    @cached_property  # asked for each token
    def kind_of(self) -> tuple[int, ...]:
        """For each layer the number of its kind."""
        return tuple(map(self.kinds.index, zip(self.each, self.reaches, strict=True)))

    def at(self, layer: int) -> Architecture:
        """A model of which all layers are like this one."""
        return self.each[layer]

    @property
    def is_mixed(self) -> bool:
        """Whether layers may differ in their variant or their latent."""
        return bool(self.layer_variants or self.layer_latents)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The variant of each layer."""
        return self.layer_variants or (self.variant,) * self.layers

    @property
    def described(self) -> str:
        """The variant; of layers that differ, how many have which."""
        return mixture.described(self.variants)

    @cached_property  # asked for each token
    def row_layout(self) -> RowLayout:
        """The row that a layer caches per token."""
        return self.variant.row_layout(self.head_dim, self.rotated_dims, self.latent_width)

    @property
    def is_recurrent(self) -> bool:
        """Whether layers keep a state of constant size, and no rows."""
        return self.variant.recurrence is not Recurrence.NONE

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """What a recurrent layer keeps of one sequence: G states of D × (D + 1) numbers."""
        return self.kv_heads, self.head_dim, self.head_dim + 1

    @property
    def row_owners(self) -> tuple[int, ...]:
        """For each layer the layer whose rows it reads, mostly itself."""
        return tuple(layer - layer % self.variant.row_layers for layer in range(self.layers))

    @property
    def matrix_owners(self) -> tuple[int, ...]:
        """For each layer the layer whose projections it uses, mostly itself."""
        return tuple(layer - layer % self.variant.matrix_layers for layer in range(self.layers))

    @cached_property  # asked for each token
    def reaches(self) -> tuple[Reach, ...]:
        """For each layer what it sees."""
        letters = {"S": Reach(window=self.window), "B": Reach(block=self.window), "L": Reach()}
        pattern = self.layer_pattern or "L"
        return tuple(letters[pattern[n % len(pattern)]] for n in range(self.layers))

    @cached_property  # asked for each token
    def windows(self) -> tuple[int | None, ...]:
        """For each layer the newest tokens that its rows are kept of, its own included; None for all."""
        return tuple(reach.window for reach in self.reaches)

    @property
    def cached_layers(self) -> tuple[int, ...]:
        """The layers that keep rows of their own: what a cache is made for."""
        return tuple(n for n, owner in enumerate(self.row_owners) if owner == n)

    @cached_property  # asked for each token
    def cached_rows(self) -> tuple[tuple[RowLayout, ...], tuple[int, ...], tuple[int | None, ...]]:
        """The layouts, the key/value heads and the windows of those layers."""
        owners = self.cached_layers
        each = [self.at(n) for n in owners]
        windows = tuple(self.windows[n] for n in owners)
        return tuple(one.row_layout for one in each), tuple(one.kv_heads for one in each), windows

    def cache_bytes(self, tokens: int, dtype: str, batch: int = 1) -> int:
        """Bytes of the cache of `batch` sequences of `tokens` each, over all layers; `dtype` by name, of the rows."""
        itemsize, scales = item_bytes(dtype), scale_bytes(dtype)
        if self.is_recurrent:
            return state_bytes(self.kv_heads, self.head_dim, layers=self.layers, batch=batch, itemsize=itemsize)
        return sum(
            cache_bytes(
                layout,
                kv_heads,
                tokens=tokens,
                itemsize=itemsize,
                layers=layers,
                batch=batch,
                scale_bytes=scales,
                window=window,
            )
            for (layout, kv_heads, window), layers in Counter(zip(*self.cached_rows, strict=True)).items()
        )

    def layer_sizes(self, layer: int = 0) -> LayerSizes:
        """What the shapes of one layer's tensors depend on."""
        one = self.at(layer)
        return LayerSizes(
            width=self.width,
            heads=self.heads,
            head_dim=self.head_dim,
            rotary_dims=one.rotated_dims,
            latent_dims=one.latent_width,
            biases=self.biases,
            qk_norm=self.qk_norm,
            sinks=self.sinks,
            borrows=self.row_owners[layer] != layer,
            qkv_bias=self.qkv_bias,
            latent_norm=self.latent_norm,
        )


def as_variant(given: Variant | str) -> Variant:
    """A variant that may be given as notation."""
    return parse(given) if isinstance(given, str) else given


FIELDS = tuple(f.name for f in fields(Architecture))
