"""Stacked and separate matrices: exact both ways; initial values that follow from names."""

import pytest
import torch

from small_models import PAIRED, VARIANTS, random_ids, small_config, small_model
from twofold.models.decoder import TwofoldForCausalLM
from twofold.models.fusing import fuse, separate
from twofold.models.initialise import initialise

pairs = pytest.mark.parametrize(("variant", "style"), PAIRED)


def assert_bit_equal(model, other):
    ours, theirs = model.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pairs
def test_there_and_back_is_bit_equal(variant, style):
    model = small_model(variant, *style)
    fused = fuse(model)
    assert_bit_equal(separate(fused), model)
    assert_bit_equal(fuse(separate(fused)), fused)
    assert_bit_equal(fuse(fused), fused)
    assert_bit_equal(separate(model), model)
    assert (fused.config.fused_projections, model.config.fused_projections) == (True, False)
    assert (fused.dtype, fused.training) == (torch.float64, False)
    names = [name for name, _ in fused.named_parameters() if "qkv_proj" in name]
    assert len(names) == 2 * (2 if style[0] == "paper" else 1)
    assert not any(f".{name}_proj." in key for key in fused.state_dict() for name in "qkv")


@pairs
def test_outputs_and_caches_are_equal(variant, style):
    model, ids = small_model(variant, *style), random_ids(2, 11)
    fused = fuse(model)
    with torch.no_grad():
        one, other = model(ids), fused(ids)
    torch.testing.assert_close(one.logits, other.logits, rtol=0, atol=1e-11)
    assert one.cache.bytes_used == other.cache.bytes_used


def test_a_copy_is_a_copy():
    model = small_model("K=V", tie_word_embeddings=True)
    fused = fuse(model)
    with torch.no_grad():
        fused.model.embed_tokens.weight.zero_()
    assert fused.lm_head.weight is fused.model.embed_tokens.weight
    assert model.model.embed_tokens.weight.abs().min() > 0


def initialised(seed=0, dtype=torch.float32, **config):
    model = TwofoldForCausalLM(small_config(**config)).to(dtype)
    initialise(model, seed)
    return model


def assert_shared_names_agree(model, other):
    """Tensors of equal name and shape have equal values, and there are some."""
    ours, theirs = dict(model.named_parameters()), dict(other.named_parameters())
    both = [name for name in ours.keys() & theirs.keys() if ours[name].shape == theirs[name].shape]
    assert any("mlp" in name for name in both)
    for name in both:
        assert torch.equal(ours[name], theirs[name]), name
    return both


@pytest.mark.parametrize("block", ["paper", "modern"])
def test_variants_start_from_what_they_have_in_common(block):
    base = initialised(variant="QKV", block=block)
    for variant in VARIANTS:
        both = assert_shared_names_agree(base, initialised(variant=variant, block=block))
        assert "model.embed_tokens.weight" in both
        assert "model.layers.1.attention.projections.o_proj.weight" in both
    assert_shared_names_agree(base, initialised(variant="QKV", block=block, num_hidden_layers=3))
    assert_shared_names_agree(base, initialised(variant="QKV", block=block, tie_word_embeddings=False))


@pairs
def test_stacked_matrices_start_from_the_same_values(variant, style):
    block, rotary = style
    separate_model = initialised(variant=variant, block=block, rotary=rotary)
    fused_model = initialised(variant=variant, block=block, rotary=rotary, fused_projections=True)
    assert_bit_equal(fuse(separate_model), fused_model)


def test_another_seed_gives_other_values():
    one, other, again = initialised(seed=1), initialised(seed=2), initialised(seed=1)
    assert_bit_equal(one, again)
    for (name, parameter), twin in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(parameter, twin) == ("norm" in name), name


def test_no_two_matrices_start_equal():
    first_values = [p.flatten()[0].item() for p in initialised(tie_word_embeddings=False).parameters() if p.ndim > 1]
    assert len(set(first_values)) == len(first_values)


def test_values_have_the_configured_deviation_whatever_torch_drew_before():
    one = initialised(hidden_size=67, vocab_size=1_009, initializer_range=0.3)
    torch.rand(5)
    assert_bit_equal(one, initialised(hidden_size=67, vocab_size=1_009, initializer_range=0.3))
    weight = one.model.embed_tokens.weight
    assert weight.std().item() == pytest.approx(0.3, rel=0.02)
    assert abs(weight.mean().item()) < 0.01
    paper = initialised(block="paper")
    assert all(bool((p == 0).all()) for name, p in paper.named_parameters() if name.endswith("bias"))
    assert all(bool((m.weight == 1).all()) for m in paper.modules() if isinstance(m, torch.nn.LayerNorm))
