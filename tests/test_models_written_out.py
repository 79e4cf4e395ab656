"""The whole decoder against its equations written out, in both block styles."""

import math

import pytest
import torch

from small_models import HEAD_DIM, HEADS, STYLES, VARIANTS, random_ids, small_model
from twofold.attention.reference import reference

EPSILON, BASE = 1e-2, 50.0


def normalised(x, weights, name, block):
    """LayerNorm: (x − mean)/√(variance + ε) ⊙ w + b. RMSNorm: x/√(mean of squares + ε) ⊙ w."""
    if block == "modern":
        return x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt() * weights[f"{name}.weight"]
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + EPSILON).sqrt()
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def mlp(x, weights, name, block):
    """W₂ GELU(W₁ x + b₁) + b₂ with GELU(y) = y·Φ(y), or W₃ (SiLU(W₁ x) ⊙ W₂ x) with SiLU(y) = y/(1 + e⁻ʸ)."""
    up = x @ weights[f"{name}.up_proj.weight"].T
    if block == "modern":
        gate = x @ weights[f"{name}.gate_proj.weight"].T
        return (gate / (1 + (-gate).exp()) * up) @ weights[f"{name}.down_proj.weight"].T
    up = up + weights[f"{name}.up_proj.bias"]
    hidden = up * (1 + torch.erf(up / math.sqrt(2))) / 2
    return hidden @ weights[f"{name}.down_proj.weight"].T + weights[f"{name}.down_proj.bias"]


def written_out(model, ids):
    """Logits: embeddings (and positions), pre-norm blocks, last norm, head."""
    weights = {name.removeprefix("model."): p for name, p in model.named_parameters(remove_duplicate=False)}
    sizes = model.config.architecture
    x = weights["embed_tokens.weight"][ids]
    if sizes.learned_positions:
        x = x + weights["embed_positions.weight"][torch.arange(ids.shape[1])]
    for layer in range(sizes.layers):
        start = f"layers.{layer}.attention.projections."
        x = x + reference(
            normalised(x, weights, f"layers.{layer}.attention_norm", sizes.block),
            {name.removeprefix(start): p for name, p in weights.items() if name.startswith(start)},
            sizes.variant,
            heads=HEADS,
            head_dim=HEAD_DIM,
            rotary_base=None if sizes.learned_positions else BASE,
        )
        x = x + mlp(
            normalised(x, weights, f"layers.{layer}.mlp_norm", sizes.block), weights, f"layers.{layer}.mlp", sizes.block
        )
    return normalised(x, weights, "norm", sizes.block) @ weights["lm_head.weight"].T


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("style", STYLES, ids="/".join)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_decoder_is_what_its_equations_say(variant, style, tied):
    model = small_model(variant, *style, norm_eps=EPSILON, rope_theta=BASE, tie_word_embeddings=tied)
    ids = random_ids(2, 7)
    with torch.no_grad():
        expected = written_out(model, ids)
        assert expected.std() > 1
        torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=1e-10)
