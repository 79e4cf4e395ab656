"""Circuits against the M×M products that they avoid, and their laws."""

from dataclasses import replace

import pytest
import torch

from explained_layers import EVERY, head_of, layers_of, orthogonal, random_layer
from twofold.explain.circuits import (
    composition,
    composition_measures,
    ov_eigenvalues,
    positive_share,
    qk_eigenvalues,
    random_composition,
    token_product,
    weight_circuits,
)
from twofold.explain.layer_weights import folded


def products(layer):
    """W_Qᵀ W_K and W_O W_V of every query head, [M, M]."""
    heads = [head_of(layer, head) for head in range(len(layer.q_HDM))]
    return [q.T @ k for q, k, _, _ in heads], [o @ v for _, _, v, o in heads]


def brute_share(matrix):
    values = torch.linalg.eigvals(matrix)
    return float(values.sum().real / values.abs().sum())


def nonzero(values):
    """Sorted by size, without what is rounding."""
    kept = values[values.abs() > 1e-7 * values.abs().max()]
    return kept[kept.abs().argsort()]


@pytest.mark.parametrize("name", EVERY)
def test_every_circuit_is_what_the_full_products_give(name):
    for layer in (layers_of(name)[1], folded(layers_of(name)[1])):
        made = weight_circuits(layer)
        qk, ov = products(layer)
        wanted = {
            "qk_norm": [float(torch.linalg.matrix_norm(w)) for w in qk],
            "ov_norm": [float(torch.linalg.matrix_norm(w)) for w in ov],
            "qk_matching": [brute_share(w) for w in qk],
            "ov_copying": [brute_share(w) for w in ov],
            "qk_symmetric": [float(((w + w.T) / 2).square().sum() / w.square().sum()) for w in qk],
        }
        for measure, heads in wanted.items():
            assert made[f"{measure}_heads"] == pytest.approx(heads, rel=1e-5, abs=1e-5)
            assert made[measure] == pytest.approx(sum(heads) / len(heads), rel=1e-5, abs=1e-5)


def test_eigenvalues_are_those_of_the_full_products():
    layer = random_layer()
    qk, ov = products(layer)
    for ours, matrices in ((qk_eigenvalues(layer), qk), (ov_eigenvalues(layer), ov)):
        for values, matrix in zip(ours, matrices, strict=True):
            full = nonzero(torch.linalg.eigvals(matrix))
            assert len(full) == len(values)
            torch.testing.assert_close(values.abs().sort().values, full.abs())
            torch.testing.assert_close(values.real.sort().values, full.real.sort().values)
            torch.testing.assert_close(values.imag.sort().values, full.imag.sort().values, atol=1e-9, rtol=1e-7)


def test_copying_through_embedding_and_logits():
    """Against the eigenvalues of the tokens × tokens matrix."""
    layer = random_layer()
    generator = torch.Generator().manual_seed(8)
    embedding, unembedding, scale = (torch.randn(shape, generator=generator) for shape in ((37, 31), (37, 31), (31,)))
    made = weight_circuits(layer, token_product(embedding, unembedding, scale))
    read = (unembedding * scale).double()
    wanted = [brute_share(read @ ov @ embedding.double().T) for ov in products(layer)[1]]
    assert made["ov_copying_tokens_heads"] == pytest.approx(wanted, abs=1e-6)
    assert "ov_copying_tokens" not in weight_circuits(layer)


def test_the_token_product_is_summed_over_all_tokens():
    embedding, unembedding = torch.randn(8192 + 13, 3), torch.randn(8192 + 13, 3)
    torch.testing.assert_close(token_product(embedding, unembedding), embedding.double().T @ unembedding.double())


@pytest.mark.parametrize("name", ["Q=K", "Q=K=V"])
def test_scores_of_one_matrix_are_symmetric_and_positive(name):
    made = weight_circuits(layers_of(name)[0])
    assert made["qk_symmetric_heads"] == pytest.approx([1] * len(made["qk_symmetric_heads"]))
    assert made["qk_matching_heads"] == pytest.approx([1] * len(made["qk_matching_heads"]))


def test_known_circuits():
    """A head that copies, one that negates, and one whose scores are antisymmetric."""
    layer = random_layer(kv_heads=6)
    copies = weight_circuits(replace(layer, o_HMD=layer.v_GDM.mT))
    negates = weight_circuits(replace(layer, o_HMD=-layer.v_GDM.mT))
    assert (copies["ov_copying"], negates["ov_copying"]) == (pytest.approx(1), pytest.approx(-1))
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    pair = random_layer(3, 3, 2)
    turned = weight_circuits(replace(pair, q_HDM=turn @ pair.k_GDM))
    assert turned["qk_symmetric"] == pytest.approx(0, abs=1e-9)
    assert turned["qk_matching"] == pytest.approx(0, abs=1e-6)
    assert float(positive_share(torch.zeros(4, dtype=torch.complex128))) == 0


def test_random_scores_are_half_symmetric():
    made = weight_circuits(random_layer(16, 16, 16, 97))
    assert made["qk_symmetric"] == pytest.approx(0.5, abs=0.02)
    assert made["ov_copying"] == pytest.approx(0, abs=0.15)


def test_a_change_of_basis_inside_a_head_changes_no_circuit():
    """Q → R⁻ᵀ Q with K → R K, V → S V with O → O S⁻¹, for any R and S."""
    layer = random_layer(kv_heads=6)
    basis = (torch.randn(6, 5, 5, generator=torch.Generator().manual_seed(n)) + 3 * torch.eye(5) for n in (1, 2))
    r, s = basis
    inverse = torch.linalg.inv(r).mT, torch.linalg.inv(s)
    changed = replace(
        layer,
        q_HDM=inverse[0] @ layer.q_HDM,
        k_GDM=r @ layer.k_GDM,
        v_GDM=s @ layer.v_GDM,
        o_HMD=layer.o_HMD @ inverse[1],
    )
    assert not torch.allclose(changed.k_GDM, layer.k_GDM)
    before, after = weight_circuits(layer), weight_circuits(changed)
    for measure, value in before.items():
        assert after[measure] == pytest.approx(value, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", EVERY)
def test_composition_is_what_the_full_products_give(name):
    earlier, later = layers_of(name)
    made = composition(earlier, later)
    _, first_ov = products(earlier)
    second_qk, second_ov = products(later)
    norm = torch.linalg.matrix_norm
    for h, (qk, ov) in enumerate(zip(second_qk, second_ov, strict=True)):
        for j, first in enumerate(first_ov):
            reads = {"query": qk.T, "key": qk, "value": ov}
            for kind, read in reads.items():
                wanted = norm(read @ first) / (norm(read) * norm(first))
                assert float(made[kind][h, j]) == pytest.approx(float(wanted), rel=1e-6)


def test_composition_sees_who_reads_whom():
    """A later head whose keys read where one earlier head writes, and the others' outputs are orthogonal to it."""
    earlier, later = random_layer(2, 2, 3, 31, seed=1), random_layer(2, 2, 3, 31, seed=2)
    basis = orthogonal(31, 3).float()
    earlier = replace(earlier, o_HMD=torch.stack([basis[:, :3], basis[:, 3:6]]))
    later = replace(later, k_GDM=torch.stack([basis[:, :3].T, basis[:, 6:9].T]))
    made = composition(earlier, later)["key"]
    assert float(made[0, 0]) > 0.3
    torch.testing.assert_close(made[[0, 1, 1], [1, 0, 1]], torch.zeros(3, dtype=torch.float64), atol=1e-5, rtol=0)
    assert bool((composition(earlier, later)["query"] > 0.01).all())


def test_random_layers_compose_as_the_baseline():
    earlier, later = random_layer(6, 6, 5, 61, seed=1), random_layer(6, 6, 5, 61, seed=2)
    baseline = random_composition(5, 5, 61, 0)
    for scores_HH in composition(earlier, later).values():
        assert float(scores_HH.mean()) == pytest.approx(baseline, rel=0.1)


def test_layers_of_different_models_do_not_compose():
    with pytest.raises(ValueError, match="width 31 and 29"):
        composition(random_layer(), random_layer(width=29))


def test_composition_is_told_as_a_mean_and_by_head_beside_random_matrices():
    earlier, later = random_layer(), random_layer()
    made, scores = composition_measures(earlier, later, seed=3), composition(earlier, later)
    for name, scores_HH in scores.items():
        assert made[f"composition_{name}"] == pytest.approx(float(scores_HH.mean()))
        assert made[f"composition_{name}_heads"] == pytest.approx([max(row) for row in scores_HH.tolist()])
        assert made[f"composition_{name}_random"] == pytest.approx(made[f"composition_{name}"], rel=0.25)
