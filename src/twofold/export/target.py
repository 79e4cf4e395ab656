"""What a format makes of a model: a configuration of transformers, and tensors under the target's names."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor
from transformers import PreTrainedConfig

from twofold.models.decoder import TwofoldForCausalLM


class Target(NamedTuple):
    """A model of transformers that computes the same function. `cache_numbers`: what it keeps per token and layer."""

    config: PreTrainedConfig
    tensors: dict[str, Tensor]
    cache_numbers: int
    changes: tuple[str, ...]
    """What was done to the weights, beside taking other names; each exact but for rounding."""
    notes: tuple[str, ...]
    tiny_latent: bool = False
    """Whether the latent's weights are too small for half precision; a GGUF file keeps them in float32."""


class Padding(NamedTuple):
    """Dims that the latent and the rotary key are filled up to with zeros."""

    latent: int
    rotary: int

    def __str__(self) -> str:
        return f"{self.latent}+{self.rotary}"


VLLM_PADDINGS = (Padding(256, 64), Padding(512, 64))
"""The row sizes that vLLM's kernels for latent attention take."""


def padding(text: str) -> Padding:
    """`256+64` or `512+64`. Raises ValueError for anything else."""
    for known in VLLM_PADDINGS:
        if text.replace(" ", "") == str(known):
            return known
    raise ValueError(f"unknown padding {text!r}: choose {' or '.join(map(str, VLLM_PADDINGS))} (latent + rotary key)")


def is_tied(model: TwofoldForCausalLM, untied: bool) -> bool:
    """Whether the target's head can be its embeddings: ours is, nobody asks for two, and neither is scaled alone."""
    sizes = model.config.architecture
    return sizes.tied and not untied and not sizes.scaled_embeddings


def common_fields(model: TwofoldForCausalLM, untied: bool) -> dict[str, Any]:
    """Fields that the configurations of both targets have."""
    sizes, config = model.config.architecture, model.config
    return {
        "vocab_size": sizes.vocab,
        "hidden_size": sizes.width,
        "intermediate_size": sizes.mlp,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "hidden_act": "silu",
        "max_position_embeddings": sizes.positions,
        "initializer_range": sizes.initial_deviation,
        "rms_norm_eps": sizes.norm_epsilon,
        "tie_word_embeddings": is_tied(model, untied),
        "attention_bias": False,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
    }


def common_changes(model: TwofoldForCausalLM, untied: bool) -> list[str]:
    """What both targets do to the weights outside the attention's roles."""
    sizes, made = model.config.architecture, []
    if sizes.scaled_embeddings:
        made.append("embeddings times √width, and a head of their own")
    elif sizes.tied and untied:
        made.append("the head is a copy of the embeddings")
    if sizes.variant.matrix_layers > 1:
        made.append(f"each of {sizes.variant.matrix_layers} neighbouring layers has a copy of their projections")
    if sizes.variant.rank is not None:
        made.append(f"products of rank {sizes.variant.rank} multiplied out")
    if sizes.scale_exponent != 0.5:
        made.append(f"the scale d^−{sizes.scale_exponent:g} of scores moved to the query")
    if sizes.variant.diagonal:
        made.append("diagonal factors multiplied into the matrices")
    return made
