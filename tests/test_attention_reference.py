"""The fast layer against the slow twin: outputs and every gradient, on awkward sizes in float64."""

import pytest
import torch

from small_models import HEAD_DIM, HEADS, VARIANTS, WIDTH, small_config, small_projections
from twofold.attention.layer import Attention
from twofold.attention.reference import reference
from twofold.attention.reference_roles import Setting
from twofold.attention.rotary import rotation
from twofold.attention.scores import attend
from twofold.variants.notation import parse

BATCH, LENGTH, BASE = 2, 7, 100.0


def layer_of(projections, implementation="sdpa"):
    config = small_config(attn_implementation=implementation)
    return Attention(projections, config)


def inputs():
    return torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)


def turned(positions=None):
    positions = torch.arange(LENGTH)[None] if positions is None else positions
    return rotation(positions, HEAD_DIM, BASE, torch.float64)


def named_matrices(projections):
    """The parameters under the reference's names; stacked matrices are cut, so that gradients reach them."""
    weights = dict(projections.named_parameters())
    if projections.fused:
        for kind in [name.rpartition(".")[2] for name in weights if name.startswith("qkv_proj")]:
            parts = weights.pop(f"qkv_proj.{kind}").split(list(projections.outputs.values()))
            named = zip(projections.outputs, parts, strict=True)
            weights |= {f"{role[0]}_proj.{kind}": part for role, part in named}
    return weights


def gradients(output, projections, x, seed=3):
    """Of a random functional of the output, with respect to the input and every parameter."""
    towards = torch.randn(output.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.autograd.grad((output * towards).sum(), [x, *projections.parameters()])


def assert_twins(projections, *, rotary, implementation, real=None, mask=None):
    x = inputs().requires_grad_()
    base = BASE if rotary else None
    slow = reference(
        x,
        named_matrices(projections),
        projections.variant,
        Setting(HEADS, HEAD_DIM, base),
        real_BT=real,
    )
    fast, _, _ = layer_of(projections, implementation)(x, turned() if rotary else None, mask)
    seen = torch.ones(BATCH, LENGTH, dtype=torch.bool) if real is None else real
    slow, fast = slow[seen], fast[seen]
    assert slow.std() > 1
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10)
    for of_fast, of_slow in zip(gradients(fast, projections, x), gradients(slow, projections, x), strict=True):
        torch.testing.assert_close(of_fast, of_slow, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bias", [False, True], ids=["no-bias", "bias"])
@pytest.mark.parametrize("fused", [False, True], ids=["separate", "fused"])
@pytest.mark.parametrize("rotary", [False, True], ids=["none", "rotary"])
@pytest.mark.parametrize("variant", [*VARIANTS, "GQA-3", "K=V GQA-3"])
def test_layer_equals_reference(variant, rotary, fused, bias):
    assert_twins(small_projections(variant, fused=fused, bias=bias), rotary=rotary, implementation="sdpa")


@pytest.mark.parametrize("rotary", [False, True], ids=["none", "rotary"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_eager_equals_reference(variant, rotary):
    added = torch.full((LENGTH, LENGTH), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    for mask in (None, added):
        assert_twins(small_projections(variant), rotary=rotary, implementation="eager", mask=mask)


@pytest.mark.parametrize("variant", VARIANTS)
def test_padding_is_seen_by_nobody(variant):
    real = torch.tensor([[False] * 3 + [True] * (LENGTH - 3), [True] * LENGTH])
    visible = real[:, None, None, :] & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    mask = visible | torch.eye(LENGTH, dtype=torch.bool)
    assert_twins(small_projections(variant), rotary=True, implementation="sdpa", real=real, mask=mask)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("groups", "shared"), [(6, False), (3, True), (1, True), (2, False)])
def test_a_decode_step_equals_eager(groups, shared, masked):
    rows = torch.randn(BATCH, groups, LENGTH, HEAD_DIM * (1 if shared else 2), dtype=torch.float64)
    key, value = rows[..., :HEAD_DIM], rows[..., -HEAD_DIM:]
    query = torch.randn(BATCH, HEADS, 1, HEAD_DIM, dtype=torch.float64)
    keep = torch.ones(BATCH, 1, 1, LENGTH, dtype=torch.bool)
    keep[0, ..., :2] = not masked
    added = torch.zeros(keep.shape, dtype=torch.float64).masked_fill(~keep, -torch.inf)
    layer = layer_of(small_projections("QKV"))
    fast, _ = attend(layer, query, key, value, keep if masked else None, "sdpa")
    slow, weights = attend(layer, query, key, value, added, "eager")
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-12)
    assert weights.shape == (BATCH, HEADS, 1, LENGTH)
    torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, HEADS, 1, dtype=torch.float64))


def test_the_reference_by_hand():
    # One head, two positions, D = 2, identity matrices, M = 2: all of it on paper.
    weights = {f"{name}.weight": torch.eye(2, dtype=torch.float64) for name in ("k_proj", "o_proj")}
    x = torch.tensor([[[2.0, 0.0], [0.0, 2.0]]], dtype=torch.float64)
    seen = reference(x, weights, parse("Q=K=V"), Setting(1, 2))
    share = torch.softmax(torch.tensor([0.0, 4 / 2**0.5], dtype=torch.float64), 0)
    torch.testing.assert_close(seen, torch.stack([x[0, 0], share @ x[0]])[None])
    # One radian per position: R₁(0, 2)·(2, 0) = −4 sin 1, and position 1 reads R₋₁(2, 0) = 2 (cos 1, −sin 1).
    seen = reference(x, weights, parse("Q=K=V"), Setting(1, 2, 1.0))
    cos, sin = torch.tensor(1.0, dtype=torch.float64).cos(), torch.tensor(1.0, dtype=torch.float64).sin()
    share = torch.softmax(torch.stack([-4 * sin, torch.tensor(4.0, dtype=torch.float64)]) / 2**0.5, 0)
    by_hand = torch.stack([share[0] * 2 * cos, share[1] * 2 - share[0] * 2 * sin])
    torch.testing.assert_close(seen[0, 1], by_hand)
