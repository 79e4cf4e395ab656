"""Initial values that follow from a seed and a tensor's name, so that variants start from what they have in common."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from twofold.attention.position_term import ScoreTerm
from twofold.attention.projections import FUSED_NAME, Projections
from twofold.variants.tensors import MATRIX_NAMES

_NOT_FROM_WIDTH = (".up", ".k_up_proj", ".v_up_proj", "embed_features", "embed_patches")


def initialise(model: PreTrainedModel, seed: int) -> None:
    """Draw every matrix from N(0, initializer_range²), set biases and sinks to 0, norm weights and scales to 1.

    What makes vectors from another number of dims than the width (the second matrix of a low-rank pair, those behind a
    latent, an encoder's of features and of patches) is drawn wider by √(width / dims), so that its outputs start as
    large as those of a matrix over the whole width.

    Tensors of equal name and shape get equal values under the same seed in any model, also where their matrices are
    stacked into one (`fused_projections`).
    """
    deviation = model.config.initializer_range
    # The matrix of a tied head is the embedding's, and is drawn there.
    tied = model.get_output_embeddings() if model.config.tie_word_embeddings else None
    with torch.no_grad():
        for name, module in model.named_modules():
            if module is tied:
                continue
            if isinstance(module, Projections) and module.fused:
                _draw_stacked(module, name, seed, deviation)
            elif isinstance(module, nn.Linear | nn.Embedding) and not name.endswith(FUSED_NAME):
                wider = (model.config.hidden_size / module.in_features) ** 0.5 if name.endswith(_NOT_FROM_WIDTH) else 1
                module.weight.copy_(_normal(f"{name}.weight", module.weight, seed, wider * deviation))
            if isinstance(module, Projections):
                _neutral(module)
            if isinstance(module, ScoreTerm):
                module.reset(_generator(name, seed))
            if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
                module.bias.zero_()
            if isinstance(module, nn.LayerNorm | nn.RMSNorm):
                module.weight.fill_(1)


def _neutral(projections: Projections) -> None:
    """Scales that change nothing, sinks as likely as a score of 0."""
    for name, parameter in projections.named_parameters(recurse=False):
        parameter.fill_(0 if name == "sinks" else 1)


def _draw_stacked(projections: Projections, name: str, seed: int, deviation: float) -> None:
    parts = projections.qkv_proj.weight.split(list(projections.outputs.values()))
    for role, part in zip(projections.outputs, parts, strict=True):
        part.copy_(_normal(f"{name}.{MATRIX_NAMES[role]}.weight", part, seed, deviation))


def _normal(name: str, like: Tensor, seed: int, deviation: float) -> Tensor:
    return torch.randn(like.shape, generator=_generator(name, seed)) * deviation


def _generator(name: str, seed: int) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
