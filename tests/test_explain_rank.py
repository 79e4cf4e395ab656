"""Ranks against brute force and their laws."""

from dataclasses import replace

import pytest
import torch

from explained_layers import EVERY, layers_of, orthogonal, random_layer
from twofold.explain.rank import effective_rank, joint_energy, singular_values, stable_rank, weight_ranks


def brute_effective_rank(matrix):
    share = torch.linalg.svdvals(matrix)
    share = share / share.sum()
    return float(torch.exp(-(share[share > 0] * share[share > 0].log()).sum()))


def best_share(matrix, dims):
    """Squared norm that the truncated SVD keeps, from the matrix that it makes."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    near = left[:, :dims] @ torch.diag(values[:dims]) @ right[:dims]
    return float(1 - (matrix - near).square().sum() / matrix.square().sum())


@pytest.mark.parametrize("name", EVERY)
def test_every_rank_is_what_brute_force_gives(name):
    layer = layers_of(name)[1]
    made = weight_ranks(layer)
    roles = {"q": layer.q_HDM.double(), "k": layer.k_GDM.double(), "v": layer.v_GDM.double()}
    for role, weight in roles.items():
        matrix = weight.flatten(0, 1)
        values = torch.linalg.svdvals(matrix)
        assert made[role] == pytest.approx(brute_effective_rank(matrix), rel=1e-5)
        assert made[f"{role}_heads"] == pytest.approx([brute_effective_rank(head) for head in weight], rel=1e-5)
        assert made[f"{role}_stable"] == pytest.approx(float(matrix.square().sum() / values[0] ** 2))
        assert made[f"{role}_most"] == min(matrix.shape)
    both = torch.cat([roles["k"].flatten(0, 1), roles["v"].flatten(0, 1)])
    for dims, share in zip(made["joint_kv_dims"], made["joint_kv_energy"], strict=True):
        assert share == pytest.approx(best_share(both, int(dims)), abs=1e-9)
    one = roles["v"].shape[0] * roles["v"].shape[1]
    assert made["joint_kv_kept"] == pytest.approx(best_share(both, one), abs=1e-9)


@pytest.mark.parametrize(("rows", "width"), [(5, 31), (23, 31)])
def test_what_a_joint_factor_keeps_of_each(rows, width):
    """By projecting on its right singular vectors, with fewer and with more rows together than inputs."""
    generator = torch.Generator().manual_seed(1)
    key, value = (torch.randn(rows, width, dtype=torch.float64, generator=generator) for _ in range(2))
    value = 0.3 * value
    energy = joint_energy(key, value)
    right = torch.linalg.svd(torch.cat([key, value]), full_matrices=False).Vh
    for dims in range(len(right) + 1):
        for matrix, shares in ((key, energy.key_N), (value, energy.value_N)):
            kept = (matrix @ right[:dims].T).square().sum() / matrix.square().sum()
            assert float(shares[dims]) == pytest.approx(float(kept), abs=1e-9)
    assert energy.value_N[3] < energy.key_N[3]


def test_one_matrix_for_both_keeps_all():
    for variant in ("K=V", "K=V GQA-2", "Q=K=V"):
        assert weight_ranks(layers_of(variant)[0])["joint_kv_kept"] == pytest.approx(1)
    layer = random_layer()
    mixed = torch.randn(2, 5, 5, generator=torch.Generator().manual_seed(5)) @ layer.k_GDM
    assert weight_ranks(replace(layer, v_GDM=mixed))["joint_kv_kept"] == pytest.approx(1)
    made = weight_ranks(layer)
    assert made["joint_kv_kept"] < 0.9
    assert made["joint_kv_kept"] == pytest.approx(made["joint_kv_kept_random"], rel=0.1)


def test_the_curve_rises_from_nothing_to_all_and_bends_down():
    made = weight_ranks(layers_of("llama")[0])
    dims, shares = torch.tensor(made["joint_kv_dims"]), torch.tensor(made["joint_kv_energy"])
    assert (dims[0], shares[0]) == (0, 0)
    assert float(shares[-1]) == pytest.approx(1)
    slopes = shares.diff() / dims.diff()
    assert bool((slopes >= 0).all())
    assert bool((slopes.diff() <= 1e-6).all())


def test_ranks_do_not_depend_on_bases_or_scale():
    matrix = random_layer().q_HDM.flatten(0, 1).double()
    changed = -3 * orthogonal(30, 1) @ matrix @ orthogonal(31, 2)
    for rank in (effective_rank, stable_rank):
        torch.testing.assert_close(rank(singular_values(changed)), rank(singular_values(matrix)))
        torch.testing.assert_close(rank(singular_values(matrix.T)), rank(singular_values(matrix)))


def test_known_ranks():
    assert float(effective_rank(torch.ones(7))) == pytest.approx(7)
    assert float(effective_rank(torch.tensor([2.0, 0, 0]))) == pytest.approx(1)
    assert float(stable_rank(torch.tensor([2.0, 1, 1]))) == pytest.approx(1.5)
    rank_one = torch.arange(1.0, 6)[:, None] * torch.arange(1.0, 14)
    assert float(effective_rank(singular_values(rank_one))) == pytest.approx(1, abs=1e-5)


def test_a_gaussian_matrix_of_smollm2s_size():
    """Marchenko and Pastur's law gives 183 of 192 from singular values; from their squares it would be 162."""
    made = weight_ranks(random_layer(9, 3, 64, 576))
    assert made["k"] == pytest.approx(183, abs=1)
    assert made["k_random"] == pytest.approx(made["k"], rel=0.01)
    assert made["k_random"] == made["v_random"]
