"""The second twin: a layer that shares equals one that does not, with copied weights; its gradients are the sums."""

import pytest
import torch

from small_models import HEAD_DIM, HEADS, WIDTH, small_config, small_projections
from twofold.attention.layer import Attention
from twofold.attention.projections import Projections
from twofold.attention.reference import reference
from twofold.attention.reference_roles import Setting
from twofold.attention.rotary import rotation
from twofold.variants.notation import parse

BASE = 100.0
ROLES = {"q_proj": "query", "k_proj": "key", "v_proj": "value"}
SHARED = {"K=V": ("k_proj", "v_proj"), "Q=K": ("q_proj", "k_proj"), "Q=K=V": ("q_proj", "k_proj", "v_proj")}
"""Sharing → the roles of an unshared layer that become its `k_proj`."""


def run(projections, x, rotary):
    layer = Attention(projections, small_config())
    by = rotation(torch.arange(x.shape[1])[None], HEAD_DIM, BASE, torch.float64) if rotary else None
    return layer(x, by)[0]


def backward(output):
    towards = torch.randn(output.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    (output * towards).sum().backward()


def inputs():
    return torch.randn(2, 7, WIDTH, dtype=torch.float64)


def unshared_weights(shared, roles):
    """The weights of an unshared layer, a leaf each, with the shared matrix copied into each of `roles`."""
    weights = {name: p.detach().clone() for name, p in shared.named_parameters()}
    for role in roles:
        for kind in ("weight", "bias"):
            weights[f"{role}.{kind}"] = weights[f"k_proj.{kind}"].clone()
    return {name: weight.requires_grad_() for name, weight in weights.items()}


def assert_gradients_sum(shared, twin_gradients, roles):
    for name, parameter in shared.named_parameters():
        module, kind = name.split(".")
        parts = [f"{role}.{kind}" for role in roles] if module == "k_proj" else [name]
        torch.testing.assert_close(parameter.grad, sum(twin_gradients[part] for part in parts), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("sharing", "heads", "rotary"),
    [
        ("K=V", "", False),
        ("K=V", " GQA-2", False),
        ("K=V", " MQA", False),
        ("Q=K=V", "", False),
        ("Q=K", "", False),
        ("Q=K", "", True),
    ],
)
def test_a_shared_layer_equals_the_unshared_one(sharing, heads, rotary):
    # With rotary an unshared layer does not turn values: there the reference is the twin, below.
    shared, twin = small_projections(sharing + heads), small_projections(f"QKV{heads}")
    weights = unshared_weights(shared, SHARED[sharing])
    twin.load_state_dict(weights)
    x = inputs()
    of_shared, of_twin = run(shared, x, rotary), run(twin, x, rotary)
    torch.testing.assert_close(of_shared, of_twin, rtol=0, atol=1e-11)
    backward(of_shared)
    backward(of_twin)
    gradients = {name: p.grad for name, p in twin.named_parameters()}
    assert_gradients_sum(shared, gradients, SHARED[sharing])


@pytest.mark.parametrize("variant", ["K=V", "K=V GQA-3", "K=V MQA", "Q=K=V"])
def test_with_rotary_the_unshared_twin_turns_its_own_values(variant):
    # Its value has a matrix of its own, is turned to the key's position, and turned back where it is read.
    shared = small_projections(variant)
    roles = SHARED[variant.split()[0]]
    weights = unshared_weights(shared, roles)
    x = inputs()
    of_shared = run(shared, x, rotary=True)
    of_twin = reference(x, weights, parse(variant), Setting(HEADS, HEAD_DIM, BASE))
    torch.testing.assert_close(of_shared, of_twin, rtol=0, atol=1e-11)
    backward(of_shared)
    backward(of_twin)
    assert_gradients_sum(shared, {name: weight.grad for name, weight in weights.items()}, roles)


@pytest.mark.parametrize("rotary", [False, True], ids=["none", "rotary"])
@pytest.mark.parametrize("kv_heads", [3, 2, 1])
@pytest.mark.parametrize("sharing", ["QKV", "K=V"])
def test_grouped_heads_equal_repeated_ones(sharing, kv_heads, rotary):
    grouped = small_projections(f"{sharing} GQA-{kv_heads}")
    twin = small_projections(sharing)
    repeated = set(ROLES) - {"q_proj"}

    def by_head(weight):
        return weight.unflatten(0, (-1, HEAD_DIM))

    state = {
        name: by_head(p.detach()).repeat_interleave(HEADS // kv_heads, 0).flatten(0, 1)
        if name.split(".")[0] in repeated
        else p.detach()
        for name, p in grouped.named_parameters()
    }
    twin.load_state_dict(state)
    x = inputs()
    of_grouped, of_twin = run(grouped, x, rotary), run(twin, x, rotary)
    torch.testing.assert_close(of_grouped, of_twin, rtol=0, atol=1e-11)
    backward(of_grouped)
    backward(of_twin)
    for name, parameter in grouped.named_parameters():
        gradient = twin.get_parameter(name).grad
        if name.split(".")[0] in repeated:
            gradient = by_head(gradient).unflatten(0, (kv_heads, -1)).sum(1).flatten(0, 1)
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("variant", "matrices"),
    [
        ("QKV", {"q_proj": 60, "k_proj": 60, "v_proj": 60}),
        ("Q=K", {"k_proj": 60, "v_proj": 60}),
        ("K=V", {"q_proj": 60, "k_proj": 60}),
        ("Q=K=V", {"k_proj": 60}),
        ("GQA-2", {"q_proj": 60, "k_proj": 20, "v_proj": 20}),
        ("K=V GQA-3", {"q_proj": 60, "k_proj": 30}),
        ("K=V MQA", {"q_proj": 60, "k_proj": 10}),
    ],
)
def test_roles_that_share_have_one_parameter(variant, matrices):
    shapes = {name: tuple(p.shape) for name, p in small_projections(variant).named_parameters(remove_duplicate=False)}
    expected = {"o_proj.weight": (13, 60), "o_proj.bias": (13,)}
    for name, outputs in matrices.items():
        expected |= {f"{name}.weight": (outputs, 13), f"{name}.bias": (outputs,)}
    assert shapes == expected
    fused = small_projections(variant, fused=True, bias=False)
    stacked = {"qkv_proj.weight": (sum(matrices.values()), 13), "o_proj.weight": (13, 60)}
    assert {name: tuple(p.shape) for name, p in fused.named_parameters(remove_duplicate=False)} == stacked


@pytest.mark.parametrize("rotary", [False, True], ids=["none", "rotary"])
@pytest.mark.parametrize(
    ("variant", "symmetric"), [("Q=K", True), ("Q=K=V", True), ("QKV", False), ("K=V", False), ("K=V MQA", False)]
)
def test_scores_are_symmetric_where_the_query_is_the_key(variant, symmetric, rotary):
    projections: Projections = small_projections(variant)
    by = rotation(torch.arange(7)[None], HEAD_DIM, BASE, torch.float64) if rotary else None
    query_BTHD, rows_BTGW, _ = projections(inputs(), by)
    start, stop = projections.variant.row_layout(HEAD_DIM).key
    key_BTHD = rows_BTGW[..., start:stop].expand(-1, -1, HEADS, -1)
    scores_BHTT = torch.einsum("bthd,bshd->bhts", query_BTHD, key_BTHD)
    asymmetry = (scores_BHTT - scores_BHTT.mT).abs().max() / scores_BHTT.abs().max()
    assert (asymmetry < 1e-14) == symmetric
