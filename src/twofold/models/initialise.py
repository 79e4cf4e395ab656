"""Initial values that follow from a seed and a tensor's name, so that variants start from what they have in common."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from twofold.attention.projections import FUSED_NAME, MATRIX_NAMES, Projections
from twofold.models.decoder import TwofoldForCausalLM


def initialise(model: TwofoldForCausalLM, seed: int) -> None:
    """Draw every matrix from N(0, initializer_range²), set biases to 0 and norm weights to 1.

    Tensors of equal name and shape get equal values under the same seed in any model, also where their matrices are
    stacked into one (`fused_projections`).
    """
    deviation = model.config.initializer_range
    tied = model.lm_head if model.config.tie_word_embeddings else None  # its matrix is the embedding's, drawn there
    with torch.no_grad():
        for name, module in model.named_modules():
            if module is tied:
                continue
            if isinstance(module, Projections) and module.fused:
                _draw_stacked(module, name, seed, deviation)
            elif isinstance(module, nn.Linear | nn.Embedding) and not name.endswith(FUSED_NAME):
                module.weight.copy_(_normal(f"{name}.weight", module.weight, seed, deviation))
            if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
                module.bias.zero_()
            if isinstance(module, nn.LayerNorm | nn.RMSNorm):
                module.weight.fill_(1)


def _draw_stacked(projections: Projections, name: str, seed: int, deviation: float) -> None:
    parts = projections.qkv_proj.weight.split(list(projections.sizes.values()))
    for role, part in zip(projections.sizes, parts, strict=True):
        part.copy_(_normal(f"{name}.{MATRIX_NAMES[role]}.weight", part, seed, deviation))


def _normal(name: str, like: Tensor, seed: int, deviation: float) -> Tensor:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
    return torch.randn(like.shape, generator=generator) * deviation
