"""DeepSeek-V3 computes latents without a norm, made for groups of heads, and with chosen rotary pairs, exactly."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from small_exports import exportable, in_float64, loaded
from small_models import random_ids, small_model
from twofold.export.deepseek import deepseek
from twofold.export.identity_norm import identity_scale
from twofold.export.rotary_places import least_width, places
from twofold.export.target import Padding

EXACT = 1e-10


def difference(model, target, length=19):
    ids = random_ids(2, length)
    with in_float64(), torch.no_grad():
        return (model(ids).logits - loaded(target)(ids).logits).abs().max().item()


def made(variant, **others):
    return small_model(variant, rotary="partial", **others)


@pytest.mark.parametrize("variant", ["GQA-3 MLA", "MQA MLA", "GQA-2 MLA tied-2"])
@pytest.mark.parametrize("pad", [None, Padding(61, 14)])
def test_groups_of_heads_get_a_copy_each(variant, pad):
    model = made(variant, rotary_dims=4, latent_dims=31)
    assert difference(model, deepseek(model, pad)) < EXACT


@pytest.mark.parametrize("variant", ["K=V GQA-2 decoupled", "K=V decoupled rank-7", "MLA", "GQA-2 MLA"])
@pytest.mark.parametrize("pad", [None, Padding(128, 8)])
def test_a_latent_without_a_norm_stays_as_it_is(variant, pad):
    model = made(variant, rotary_dims=4, latent_norm=False)
    target = deepseek(model, pad)
    assert target.tiny_latent
    assert difference(model, target) < EXACT


@settings(max_examples=25)
@given(size=st.integers(-30, 20), epsilon=st.sampled_from([1e-6, 1e-3]), more=st.integers(0, 9), single=st.booleans())
def test_a_scaled_norm_changes_nothing(size, epsilon, more, single):
    """Whatever the latent's size: RMSNorm of s·c with the weight √ε/s is c, to the last digits of its arithmetic."""
    dtype = torch.float32 if single else torch.float64
    latent_CM = torch.randn(5, 7, dtype=dtype) * 2.0**size
    gain_M, x_TM = torch.randn(7, dtype=dtype), torch.randn(11, 7, dtype=dtype)
    normed_TM = torch.nn.functional.rms_norm(x_TM, (7,)) * gain_M
    scale = identity_scale(latent_CM, gain_M, 5 + more, epsilon)
    scaled_TC = torch.nn.functional.pad(normed_TM @ (latent_CM * scale.matrix).mT, (0, more))
    weight_C = torch.full((5 + more,), scale.norm, dtype=dtype)
    theirs = torch.nn.functional.rms_norm(scaled_TC, (5 + more,), weight_C, epsilon)
    few = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(theirs[:, :5], normed_TM @ latent_CM.mT, rtol=few, atol=few * 2.0**size * 1e-3)


def test_a_larger_scale_would_be_seen():
    """The bound is no idle one: with a thousand times as large weights the norm shows."""
    latent_CM, x_TM = torch.randn(5, 7).double(), torch.nn.functional.rms_norm(torch.randn(11, 7), (7,)).double()
    scale = identity_scale(latent_CM.float(), torch.ones(7), 5, 1e-6)
    assert scale.matrix < 1e-5
    worst = []
    for more in (1, 1e3):
        weight_C = torch.full((5,), scale.norm / more, dtype=torch.float64)
        theirs = torch.nn.functional.rms_norm(x_TM @ latent_CM.mT * scale.matrix * more, (5,), weight_C, 1e-6)
        worst.append((theirs / (x_TM @ latent_CM.mT) - 1).abs().max().item())
    assert worst[0] < 6e-8
    assert worst[1] > 1e-4


def test_a_latent_of_zeros_stays_zero():
    assert identity_scale(torch.zeros(3, 4), torch.ones(4), 3, 1e-6).matrix == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_a_norm_in_the_dtype_that_is_kept(dtype, tmp_path):
    from twofold.export.export import export_model

    model = exportable("K=V GQA-2 decoupled", latent_norm=False).to(dtype)
    record = export_model(model, "deepseek", tmp_path / "out")
    assert record.check.max_logit_difference < (1e-4 if dtype == torch.float32 else record.check.tolerance)
    assert record.check.greedy_equal
    assert any("loses them" in note for note in record.notes)


def test_float16_cannot_hold_such_small_weights():
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        deepseek(exportable("MLA", latent_norm=False).half())


@settings(max_examples=20)
@given(
    pairs=st.lists(st.integers(0, 6), min_size=1, max_size=7, unique=True),
    more=st.integers(0, 9),
    variant=st.sampled_from(["K=V GQA-2 decoupled", "MLA"]),
)
def test_chosen_pairs_turn_as_they_did(pairs, more, variant):
    """In the smallest rotary key that holds them, and in larger ones; in smaller ones they are refused."""
    model = made(variant, rotary_pairs=pairs, head_dim=14, num_hidden_layers=1, hidden_size=17)
    sizes = model.config.architecture
    least, own = least_width(sizes), 2 * len(pairs)
    latent = sizes.row_layout.head_width * sizes.kv_heads
    target = deepseek(model, Padding(latent, least + 2 * more))
    assert difference(model, target, length=9) < EXACT
    if own < least:
        with pytest.raises(ValueError, match=f"a rotary key of {least} dims holds"):
            deepseek(model)
        assert places(sizes, least - 2) is None
    else:
        assert difference(model, deepseek(model), length=9) < EXACT


@pytest.mark.parametrize("pairs", [[6, 0, 3], [0], [2, 0, 1], [4, 0]])
def test_an_even_progression_needs_no_padding(pairs):
    model = made("K=V GQA-2 decoupled", rotary_pairs=pairs, head_dim=14, rope_theta=700.0)
    assert difference(model, deepseek(model)) < EXACT


def test_a_base_that_divides_stays():
    sizes = made("MLA", rotary_dims=8, rope_theta=500.0).config.architecture
    assert places(sizes, 64) == (tuple(range(0, 32, 8)), 500.0)
