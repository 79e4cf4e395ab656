"""The encoder's Hugging Face configuration, checked when it is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from twofold.attention.position_term import CHANNELS, row_channels
from twofold.models import fitting
from twofold.models.architecture import FIELDS
from twofold.variants.choices import PositionTerm, Recurrence
from twofold.variants.notation import parse
from twofold.variants.tensors import LayerSizes
from twofold.variants.variant import Variant

POSITIONS = {
    "sinusoidal": "fixed sines and cosines are added to the embeddings, as in arXiv 1706.03762",
    "learned": "a table of max_position_embeddings positions is added to the embeddings",
    "rotary": "queries and keys are turned",
    "none": "the input is a set",
}
ACTIVATIONS = {"relu": "the synthetic tasks of arXiv 2606.04032", "gelu": "its image models"}
IMAGE_FIELDS = ("image_height", "image_width", "num_channels", "patch_size")
ORDERS = {"post": "norm(x + f(x)), the source's synthetic tasks", "pre": "x + f(norm(x)), its image models"}


@strict
class TwofoldEncoderConfig(PreTrainedConfig):
    """Configuration of `TwofoldEncoder`: LayerNorm, biases everywhere, every position sees every other.

    `variant` is the notation (`Q=K +`). `intermediate_size`, `head_dim` and `initializer_range` at 0 are 2 × width,
    width / heads and 1 / √width.
    It reads one kind of input, tokens (`vocab_size`), vectors of features (`feature_dims`) or images (`image_height`,
    `image_width` and `patch_size` in pixels, `num_channels`); with all of them 0 it is a model over given embeddings.
    `term_channels` and `term_per_head` are those of the variant's `+`, see `position_term`.

    Raises ValueError for sizes that do not fit together, and for a variant that no encoder can be.
    """

    model_type = "twofold_encoder"

    variant: str = "QKV"
    positions: str = "sinusoidal"
    norm_order: str = "post"
    hidden_act: str = "relu"
    num_hidden_layers: int = 2
    hidden_size: int = 64
    num_attention_heads: int = 2
    head_dim: int = 0
    intermediate_size: int = 0
    vocab_size: int = 0
    feature_dims: int = 0
    image_height: int = 0
    image_width: int = 0
    num_channels: int = 0
    patch_size: int = 0
    max_position_embeddings: int = 512
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    dropout: float = 0.0
    initializer_range: float = 0.0
    term_channels: int = CHANNELS
    term_per_head: bool = False
    tie_word_embeddings: bool = False
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if unread := [name for name in FIELDS if name in kwargs]:
            raise ValueError(
                f"an encoder's configuration has no {', '.join(unread)}, and would never read it: leave it out"
            )
        for reason in _unreadable(self):
            raise ValueError(reason)
        for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "max_position_embeddings"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        self.head_dim = self.head_dim or fitting.head_dim(self.hidden_size, self.num_attention_heads)
        self.intermediate_size = self.intermediate_size or 2 * self.hidden_size
        self.initializer_range = self.initializer_range or self.hidden_size**-0.5
        for reason in _misfits(self):
            raise ValueError(reason)
        self.variant = str(self.parsed_variant)
        super().__post_init__(**kwargs)

    @property
    def described(self) -> str:
        """The variant, as `TwofoldConfig` tells it."""
        return self.variant

    @property
    def parsed_variant(self) -> Variant:
        """The variant that the notation names."""
        return parse(self.variant)

    @property
    def reads(self) -> Literal["tokens", "features", "images", "embeddings"]:
        """The kind of input; "embeddings" are given as the vectors that the others become."""
        if self.vocab_size:
            return "tokens"
        if self.feature_dims:
            return "features"
        return "images" if self.image_height else "embeddings"

    @property
    def patches(self) -> int:
        """Patches of an image, which are its positions; 0 where no images are read."""
        if self.reads != "images":
            return 0
        return (self.image_height // self.patch_size) * (self.image_width // self.patch_size)

    @property
    def rotated_dims(self) -> int:
        """Dims of a head that rotary turns: all, or 0 for none."""
        return self.head_dim if self.positions == "rotary" else 0

    @property
    def layer_sizes(self) -> LayerSizes:
        """What the shapes of a layer's attention depend on."""
        return LayerSizes(
            self.hidden_size, self.num_attention_heads, self.head_dim, rotary_dims=self.rotated_dims, biases=True
        )


def _unreadable(config: TwofoldEncoderConfig) -> Iterator[str]:
    for name in ("vocab_size", "feature_dims", *IMAGE_FIELDS):
        if getattr(config, name) < 0:
            yield f"{name} must be at least 1, or 0 where it is not read, not {getattr(config, name)}"
    image = {name: getattr(config, name) for name in IMAGE_FIELDS}
    if any(image.values()) and not all(image.values()):
        zeros = ", ".join(name for name, value in image.items() if not value)
        yield f"an encoder of images needs {', '.join(IMAGE_FIELDS)}, and there is no {zeros}: give all or none"
    kinds = {"vocab_size": config.vocab_size, "feature_dims": config.feature_dims, **image}
    kinds = {name: value for name, value in kinds.items() if value and name not in IMAGE_FIELDS[1:]}
    if len(kinds) > 1:
        given = " and ".join(f"{name} {value}" for name, value in kinds.items())
        yield f"an encoder reads tokens, features or images, and {given} ask for more than one: give one of them"
    for name in IMAGE_FIELDS[:2]:
        if config.patch_size and getattr(config, name) % config.patch_size:
            yield (
                f"{name} {getattr(config, name)} is not a multiple of patch_size {config.patch_size}, and patches "
                "cover an image whole: give another patch_size, or crop or pad the images"
            )


def _misfits(config: TwofoldEncoderConfig) -> Iterator[str]:
    fitting.one_of("positions", config.positions, POSITIONS)
    fitting.one_of("norm_order", config.norm_order, ORDERS)
    fitting.one_of("hidden_act", config.hidden_act, ACTIVATIONS)
    variant, heads = config.parsed_variant, config.num_attention_heads
    variant.kv_heads_for(heads)
    if config.positions == "learned" and config.patches > config.max_position_embeddings:
        yield (
            f"{config.patches} patches of an image need as many learned positions, and max_position_embeddings is "
            f"{config.max_position_embeddings}: give at least {config.patches}, or larger patches"
        )
    if not 0 <= config.dropout < 1:
        yield f"dropout must be at least 0 and below 1, not {config.dropout}"
    if config.positions == "rotary" and config.head_dim % 2:
        yield f"rotary turns dims in pairs: head_dim must be even, not {config.head_dim}"
    if variant.recurrence is not Recurrence.NONE:
        yield f"{variant}: a recurrence reads what came before, and an encoder sees all positions: drop it"
    if variant.latent and variant.on_read:
        yield f"{variant} makes keys and values from what a decoder caches, and an encoder caches nothing: use QKV"
    if variant.needs_rotary_part:
        yield f"{variant} rotates some dims of what a decoder caches, and an encoder caches nothing: use K=V or QKV"
    if variant.row_layers > 1 or variant.matrix_layers > 1:
        yield f"{variant}: every layer of an encoder has rows and projections of its own: drop CLA and tied"
    if (variant.unprojected or variant.nonlinear_query) and heads * config.head_dim != config.hidden_size:
        yield (
            f"{variant} puts the layer's input in the place of a projection, so that {heads} heads × "
            f"{config.head_dim} dims must be the width {config.hidden_size}: leave head_dim out"
        )
    if variant.position_term in (PositionTerm.PUBLISHED, PositionTerm.KEY_BIAS):
        row_channels(config.term_channels)
    if variant.position_term in (PositionTerm.NONE, PositionTerm.RELATIVE) and config.term_per_head:
        yield f"term_per_head says nothing to {variant}, whose scores have no term that heads could share: drop it"
