"""Ranks of activations and of attention maps against their definitions, written out, on every kind of model."""

import math

import pytest
import torch

from explained_layers import EVERY, OWN, family_model, own_model
from small_models import random_ids, small_model
from twofold.explain.activation_rank import activation_ranks
from twofold.explain.activations import run


def layer_of(name):
    model = own_model(name) if name in OWN else family_model(name)
    return list(run(model, random_ids(2, 31)))[1]


def ranks_of(matrix):
    """Effective and stable rank by a whole SVD."""
    values = torch.linalg.svdvals(matrix.double())
    share = values / values.sum()
    entropy = -sum(float(p) * math.log(float(p)) for p in share if p > 0)
    return math.exp(entropy), float(values.square().sum() / values[0] ** 2)


@pytest.mark.parametrize("name", EVERY)
def test_ranks_are_what_brute_force_gives(name):
    found = layer_of(name)
    made = activation_ranks(found, seed=3)
    for letter, role in (("q", found.q_BTHD), ("k", found.k_BTGD), ("v", found.v_BTGD)):
        flat = torch.stack([role[b, t].flatten() for b in range(2) for t in range(31)]).double()
        whole, stable = ranks_of(flat - flat.mean(0))
        assert made[f"{letter}_activations"] == pytest.approx(whole, rel=1e-4)
        assert made[f"{letter}_activations_stable"] == pytest.approx(stable, rel=1e-4)
        assert made[f"{letter}_activations_most"] == min(61, flat.shape[1]) >= whole
        dims = role.shape[3]
        for head, value in enumerate(made[f"{letter}_activations_heads"]):
            of_head = flat[:, head * dims : (head + 1) * dims]
            assert value == pytest.approx(ranks_of(of_head - of_head.mean(0))[0], rel=1e-4)
    maps = found.scored.maps_BHTT
    by_head = [[ranks_of(maps[b, h]) for b in range(2)] for h in range(maps.shape[1])]
    assert made["maps_heads"] == pytest.approx([(one[0] + other[0]) / 2 for one, other in by_head], rel=1e-4)
    assert made["maps"] == pytest.approx(sum(made["maps_heads"]) / maps.shape[1])
    assert made["maps_stable"] == pytest.approx(sum(one[1] + other[1] for one, other in by_head) / 2 / len(by_head))
    assert made["maps_most"] == 31


def test_one_vector_for_two_roles_has_one_rank():
    for name, first, second in (("Q=K", "q", "k"), ("K=V", "k", "v"), ("Q=K=V", "q", "v")):
        made = activation_ranks(layer_of(name), seed=0)
        assert made[f"{first}_activations"] == made[f"{second}_activations"]
        assert made[f"{first}_activations_heads"] == made[f"{second}_activations_heads"]


def test_baselines_are_of_random_matrices_on_the_same_input():
    """Their own layer, whose weights are normal, is near them; one whose keys have few dims is not."""
    model = small_model("QKV", hidden_size=61)
    plain, other = activation_ranks(next(run(model, random_ids(4, 47))), 0), None
    for letter in "qkv":
        assert plain[f"{letter}_activations"] == pytest.approx(plain[f"{letter}_activations_random"], rel=0.1)
    with torch.no_grad():
        weight = model.model.layers[0].attention.projections.k_proj.weight
        weight.copy_(weight[:, :2] @ weight[:2])
    other = activation_ranks(next(run(model, random_ids(4, 47))), 0)
    assert other["k_activations"] < 2.1 < 0.5 * other["k_activations_random"]
    assert other["k_activations_random"] == plain["k_activations_random"]
    assert other["v_activations"] == plain["v_activations"]
    assert 1 < other["maps_random"] < other["maps_most"]
    assert activation_ranks(next(run(model, random_ids(4, 47))), 1)["maps_random"] != other["maps_random"]


def test_known_ranks_of_attention():
    """Without scores a causal head averages what it has seen; keys that do not vary have no rank."""
    model = small_model("MQA")
    with torch.no_grad():
        for parameter in model.model.layers[0].attention.projections.k_proj.parameters():
            parameter.zero_()
    made = activation_ranks(next(run(model, random_ids(2, 13))), 0)
    even = torch.ones(13, 13, dtype=torch.float64).tril() / torch.arange(1, 14)[:, None]
    assert made["maps_heads"] == pytest.approx([ranks_of(even)[0]] * 6)
    assert math.isnan(made["k_activations"])
    assert math.isnan(made["k_activations_stable"])
    assert not math.isnan(made["v_activations"])


def test_a_recurrence_has_no_maps():
    made = activation_ranks(next(run(small_model("QKV linear", rotary="none"), random_ids(2, 13))), 0)
    assert "maps" not in made
    assert made["k_activations"] > 1
