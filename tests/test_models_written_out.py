"""The whole decoder against its equations written out, in both block styles."""

import math

import pytest
import torch

from every_variant import EVERY, every_model
from small_models import STYLES, VARIANTS, random_ids, small_model
from twofold.attention.reference import reference
from twofold.attention.reference_roles import Setting

EPSILON, BASE = 1e-2, 50.0


def normalised(x, weights, name, block):
    """LayerNorm: (x − mean)/√(variance + ε) ⊙ w + b. RMSNorm: x/√(mean of squares + ε) ⊙ w."""
    if block == "modern":
        return x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt() * weights[f"{name}.weight"]
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + EPSILON).sqrt()
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def activated(y, name):
    """GELU(y) = y·Φ(y), the same with a tanh for Φ (arXiv 1606.08415, section 2), or max(y, 0)."""
    if name == "relu":
        return torch.where(y > 0, y, torch.zeros_like(y))
    if name == "gelu_tanh":
        return y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))) / 2
    assert name == "gelu"
    return y * (1 + torch.erf(y / math.sqrt(2))) / 2


def mlp(x, weights, name, block, activation):
    """W₂ f(W₁ x + b₁) + b₂, or W₃ (SiLU(W₁ x) ⊙ W₂ x) with SiLU(y) = y/(1 + e⁻ʸ)."""
    up = x @ weights[f"{name}.up_proj.weight"].T
    if block == "modern":
        gate = x @ weights[f"{name}.gate_proj.weight"].T
        return (gate / (1 + (-gate).exp()) * up) @ weights[f"{name}.down_proj.weight"].T
    up = up + weights[f"{name}.up_proj.bias"]
    return activated(up, activation) @ weights[f"{name}.down_proj.weight"].T + weights[f"{name}.down_proj.bias"]


def attention(x, weights, layer, sizes, rows_of):
    """The attention of one layer of normalised x, and what it read keys and values of: an input, and its weights."""
    start = f"layers.{sizes.matrix_owners[layer]}.attention.projections."
    own = {name.removeprefix(start): p for name, p in weights.items() if name.startswith(start)}
    rows_of = (x, own) if sizes.row_owners[layer] == layer else rows_of
    one = sizes.at(layer)
    setting = Setting(
        sizes.heads,
        sizes.head_dim,
        rotary_base=None if sizes.learned_positions else BASE,
        rotary_dims=one.rotated_dims,
        rotary_pairs=one.rotary_pairs,
        exponent=sizes.scale_exponent,
        softcap=sizes.softcap,
        window=sizes.windows[layer],
    )
    return reference(x, own, one.variant, setting, rows_of=rows_of), rows_of


def written_out(model, ids):
    """Logits: embeddings (and positions), pre-norm blocks, last norm, head."""
    weights = {name.removeprefix("model."): p for name, p in model.named_parameters(remove_duplicate=False)}
    sizes = model.config.architecture
    x = weights["embed_tokens.weight"][ids] * (sizes.width**0.5 if sizes.scaled_embeddings else 1)
    if sizes.learned_positions:
        x = x + weights["embed_positions.weight"][torch.arange(ids.shape[1]) + sizes.position_offset]
    rows_of = None
    for layer in range(sizes.layers):
        read, rows_of = attention(
            normalised(x, weights, f"layers.{layer}.attention_norm", sizes.block), weights, layer, sizes, rows_of
        )
        x = x + read
        normed = normalised(x, weights, f"layers.{layer}.mlp_norm", sizes.block)
        x = x + mlp(normed, weights, f"layers.{layer}.mlp", sizes.block, sizes.activation)
    return normalised(x, weights, "norm", sizes.block) @ weights["lm_head.weight"].T


def assert_written_out(model, length=7):
    ids = random_ids(2, length)
    with torch.no_grad():
        expected = written_out(model, ids)
        assert expected.std() > 1
        torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("style", STYLES, ids="/".join)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_decoder_is_what_its_equations_say(variant, style, tied):
    assert_written_out(small_model(variant, *style, norm_eps=EPSILON, rope_theta=BASE, tie_word_embeddings=tied))


@pytest.mark.parametrize("name", EVERY)
def test_every_variant_is_what_its_equations_say(name):
    assert_written_out(every_model(name, norm_eps=EPSILON, rope_theta=BASE))
