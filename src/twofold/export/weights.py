"""A decoder's weights by role, whatever its variant keeps them in, and the names that two target families share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from twofold.attention.projections import Projections
from twofold.attention.sources import LowRank
from twofold.models.blocks import DecoderBlock
from twofold.models.decoder import TwofoldForCausalLM
from twofold.variants.tensors import MATRIX_NAMES


def role_matrices(seam: Projections) -> dict[str, Tensor]:
    """Query [H·dims, M], key and value [G·D, M] of one layer, each role with a matrix of its own.

    Fused matrices are split, products of low rank multiplied out, and a role without a matrix has the identity.
    Factors of diagonal variants are not in them.
    """
    sources = seam.variant.sharing.sources
    owned = _split(seam) if seam.fused else {}
    return {role: owned[source] if source in owned else _matrix(seam, source) for role, source in sources.items()}


def seams(model: TwofoldForCausalLM) -> list[Projections]:
    """The projections of each layer, its own or those that it uses of another."""
    return [block.attention.projections for block in _blocks(model)]


def scaled(weight: Tensor, factor: float | Tensor) -> Tensor:
    """`weight` times a number, or times one number for each of its rows; rounded once. As it is for a factor of 1."""
    if isinstance(factor, Tensor):
        return (weight.double() * factor.double().view(-1, *(1,) * (weight.ndim - 1))).to(weight.dtype)
    return weight if factor == 1 else (weight.double() * factor).to(weight.dtype)


def outside_attention(model: TwofoldForCausalLM) -> dict[str, Tensor]:
    """Embeddings, head, norms and SwiGLU of all layers under the names that Llama and DeepSeek-V3 share."""
    core = model.model
    factor = core.sizes.width**0.5 if core.sizes.scaled_embeddings else 1.0
    made = {
        "model.embed_tokens.weight": scaled(core.embed_tokens.weight, factor),
        "lm_head.weight": model.lm_head.weight,
        "model.norm.weight": core.norm.get_parameter("weight"),
    }
    for number, block in enumerate(_blocks(model)):
        layer = f"model.layers.{number}"
        made[f"{layer}.input_layernorm.weight"] = block.attention_norm.get_parameter("weight")
        made[f"{layer}.post_attention_layernorm.weight"] = block.mlp_norm.get_parameter("weight")
        for name in ("gate_proj", "up_proj", "down_proj"):
            made[f"{layer}.mlp.{name}.weight"] = block.mlp.get_parameter(f"{name}.weight")
    return made


def _blocks(model: TwofoldForCausalLM) -> list[DecoderBlock]:
    return [block for block in model.model.layers if isinstance(block, DecoderBlock)]


def _split(seam: Projections) -> dict[str, Tensor]:
    parts = seam.qkv_proj.weight.split(list(seam.outputs.values()))
    return dict(zip(seam.outputs, parts, strict=True))


def _matrix(seam: Projections, role: str) -> Tensor:
    module = seam._modules.get(MATRIX_NAMES[role])
    if module is None:
        like = seam.o_proj.weight
        return torch.eye(seam.sizes.width, dtype=like.dtype, device=like.device)
    if isinstance(module, LowRank):
        up, down = module.up.weight, module.down.weight
        return (up.double() @ down.double()).to(up.dtype)
    assert isinstance(module, nn.Linear), "a nonlinear query is refused"
    return module.weight
