"""The Hugging Face configuration: `Architecture` under transformers' names, as `config.json` stores it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from twofold.models.architecture import FIELDS, Architecture

CONFIG_NAMES = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "mlp": "intermediate_size",
    "vocab": "vocab_size",
    "positions": "max_position_embeddings",
    "tied": "tie_word_embeddings",
    "rotary_base": "rope_theta",
    "norm_epsilon": "norm_eps",
    "initial_deviation": "initializer_range",
    "window": "sliding_window",
}
"""Fields of `Architecture` that transformers calls otherwise."""


def require_own_names(given: Mapping[str, Any]) -> None:
    """Raise ValueError for a field of `Architecture` under a name that a configuration would keep and never read."""
    for name in CONFIG_NAMES:
        if name in given:
            raise ValueError(f"{name} is called {CONFIG_NAMES[name]} in a configuration: give {CONFIG_NAMES[name]}")


@strict
class TwofoldConfig(PreTrainedConfig):
    """Configuration of `TwofoldForCausalLM`; fields as in `Architecture`, checked by it.

    `variant` is the notation (`K=V GQA-4`); `fused_projections` stacks the projection matrices into one, with equal
    outputs. `head_dim`, `rotary`, `activation` and `initializer_range` may be left at 0, "", ""
    and 0.0 for the usual choice.
    """

    model_type = "twofold"
    keys_to_ignore_at_inference = ("cache",)

    variant: str = "QKV"
    block: str = "modern"
    rotary: str = ""
    num_hidden_layers: int = 4
    hidden_size: int = 128
    num_attention_heads: int = 4
    head_dim: int = 0
    intermediate_size: int = 344
    vocab_size: int = 257
    max_position_embeddings: int = 2_048
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    dropout: float = 0.0
    initializer_range: float = 0.0
    tie_word_embeddings: bool = True
    rotary_dims: int = 0
    latent_dims: int = 0
    sliding_window: int | None = None
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
    rotary_pairs: list[int] | None = None
    layer_variants: list[str] | None = None
    layer_latents: list[int] | None = None
    fused_projections: bool = False
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        require_own_names(kwargs)
        architecture = self.architecture
        self.variant = str(architecture.variant)
        self.head_dim = architecture.head_dim
        self.rotary = architecture.rotary
        self.activation = architecture.activation
        self.initializer_range = architecture.initial_deviation
        self.latent_dims = architecture.latent_width
        self.layer_pattern = architecture.layer_pattern
        for name, value in _lists(architecture).items():
            setattr(self, name, value)
        if self.rotary == "partial":
            self.rotary_dims = architecture.rotated_dims
        super().__post_init__(**kwargs)

    @property
    def architecture(self) -> Architecture:
        """The sizes and choices, checked."""
        given = {name: getattr(self, CONFIG_NAMES.get(name, name)) for name in FIELDS}
        return Architecture(**{**given, "window": self.sliding_window or 0})

    @property
    def described(self) -> str:
        """The variant; of layers that differ, how many have which."""
        return self.architecture.described

    @property
    def num_key_value_heads(self) -> int:
        """Key/value heads G, which follow from the variant."""
        return self.architecture.kv_heads

    @classmethod
    def from_architecture(cls, architecture: Architecture, **others: Any) -> TwofoldConfig:
        """The configuration of a decoder with these sizes; `others` are fields of the configuration alone."""
        values = {CONFIG_NAMES.get(name, name): getattr(architecture, name) for name in FIELDS}
        named = {"variant": str(architecture.variant), "sliding_window": architecture.window or None}
        return cls(**{**values, **named, **_lists(architecture), **others})


def _lists(architecture: Architecture) -> dict[str, list[Any] | None]:
    """The fields with an entry for each layer or pair, None where they are empty."""
    return {
        "rotary_pairs": list(architecture.rotary_pairs) or None,
        "layer_variants": [str(one) for one in architecture.layer_variants] or None,
        "layer_latents": list(architecture.layer_latents) or None,
    }
