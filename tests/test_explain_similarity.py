"""Similarity of matrices against brute force, its laws, and its random baselines."""

from dataclasses import replace

import pytest
import torch

from explained_layers import EVERY, head_of, layers_of, orthogonal, random_layer
from twofold.explain.similarity import (
    cosine,
    procrustes_residual,
    random_cosine,
    random_similarity,
    row_space_overlap,
    weight_similarity,
)

EXACT = {"rtol": 1e-9, "atol": 1e-9}


def overlap_by_angles(a, b):
    """From orthonormal bases of the row spaces and the cosines between them."""
    bases = []
    for matrix in (a, b):
        _, values, right = torch.linalg.svd(matrix, full_matrices=False)
        bases.append(right[values > 1e-5 * values[0]])
    cosines = torch.linalg.svdvals(bases[0] @ bases[1].T)
    return float(cosines.square().mean())


def residual_by_rotation(a, b):
    """With the best rotation and scale written out."""
    left, _, right = torch.linalg.svd(a @ b.T)
    turned = left @ right @ b
    scale = (a * turned).sum() / turned.square().sum()
    return float((a - scale * turned).square().sum() / a.square().sum())


def pairs_of(layer, name):
    for head in range(len(layer.q_HDM)):
        roles = dict(zip("qkv", head_of(layer, head)[:3], strict=True))
        first, second = roles[name[0]], roles[name[1]]
        dims = min(len(first), len(second))
        yield first[:dims], second[:dims]


@pytest.mark.parametrize("name", EVERY)
def test_every_measure_is_what_brute_force_gives(name):
    layer = layers_of(name)[1]
    made = weight_similarity(layer, seed=3)
    for pair in ("kv", "qk", "qv"):
        matrices = list(pairs_of(layer, pair))
        if pair == "kv":  # of each group's first query head
            matrices = matrices[:: layer.group]
        wanted = {
            "cosine": [float(torch.cosine_similarity(a.flatten(), b.flatten(), dim=0)) for a, b in matrices],
            "overlap": [overlap_by_angles(a, b) for a, b in matrices],
            "procrustes": [residual_by_rotation(a, b) for a, b in matrices],
        }
        for measure, heads in wanted.items():
            assert made[f"{measure}_{pair}_heads"] == pytest.approx(heads, abs=1e-8)
        firsts, seconds = (torch.cat(side).flatten() for side in zip(*matrices, strict=True))
        assert made[f"cosine_{pair}"] == pytest.approx(float(torch.cosine_similarity(firsts, seconds, dim=0)))
        assert made[f"overlap_{pair}"] == pytest.approx(sum(wanted["overlap"]) / len(matrices))
        assert made[f"procrustes_{pair}"] == pytest.approx(sum(wanted["procrustes"]) / len(matrices), abs=1e-8)


@pytest.mark.parametrize(("variant", "same"), [("K=V", "kv"), ("K=V GQA-2", "kv"), ("Q=K", "qk"), ("Q=K=V", "qv")])
def test_shared_matrices_are_as_alike_as_can_be(variant, same):
    made = weight_similarity(layers_of(variant)[0])
    assert made[f"cosine_{same}"] == pytest.approx(1)
    assert made[f"overlap_{same}"] == pytest.approx(1)
    assert made[f"procrustes_{same}"] == pytest.approx(0, abs=1e-9)


def test_a_value_that_is_set_to_the_key():
    layer = layers_of("llama")[0]
    assert weight_similarity(layer)["cosine_kv"] < 0.9
    same = weight_similarity(replace(layer, v_GDM=layer.k_GDM.clone()))
    assert (same["cosine_kv"], same["overlap_kv"]) == (pytest.approx(1), pytest.approx(1))
    assert same["procrustes_kv"] == pytest.approx(0, abs=1e-9)


def test_only_the_cosine_depends_on_the_basis_of_a_head():
    """A rotation changes the cosine alone, any other change of basis the rotation's residual as well."""
    a, b = (torch.randn(5, 31, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in (1, 2))
    b = b + a
    turned = orthogonal(5, 3) @ b
    sheared = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(4)) @ b
    torch.testing.assert_close(row_space_overlap(a, turned), row_space_overlap(a, b), **EXACT)
    torch.testing.assert_close(row_space_overlap(a, sheared), row_space_overlap(a, b), **EXACT)
    torch.testing.assert_close(procrustes_residual(a, turned), procrustes_residual(a, b), **EXACT)
    assert abs(cosine(a, turned) - cosine(a, b)) > 0.1
    assert abs(procrustes_residual(a, sheared) - procrustes_residual(a, b)) > 0.01


def test_a_common_rotation_of_the_stream_changes_nothing():
    a, b = (torch.randn(5, 31, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in (1, 2))
    turn = orthogonal(31, 5)
    for measure in (cosine, row_space_overlap, procrustes_residual):
        torch.testing.assert_close(measure(a @ turn, b @ turn), measure(a, b), **EXACT)
        torch.testing.assert_close(measure(3 * a, 0.2 * b), measure(a, b), **EXACT)
        torch.testing.assert_close(measure(b, a), measure(a, b), **EXACT)


def test_known_values():
    eye = torch.eye(6)
    assert float(row_space_overlap(eye[:2], eye[2:4])) == 0
    assert float(row_space_overlap(eye[:2], eye[1:3])) == pytest.approx(0.5)
    assert float(row_space_overlap(eye[:2], eye[:5])) == pytest.approx(1)
    assert float(procrustes_residual(eye[:2], eye[2:4])) == pytest.approx(1)
    assert float(procrustes_residual(eye[:2], -2 * eye[[1, 0]])) == pytest.approx(0, abs=1e-12)
    assert float(cosine(eye[:2], -eye[:2])) == pytest.approx(-1)


def test_rows_that_repeat_one_another_count_once():
    """A matrix of rank 1 has one angle; one of zeros has none, and is like nothing."""
    a = torch.randn(1, 31, generator=torch.Generator().manual_seed(1)).repeat(4, 1) * torch.tensor([[1], [2], [0], [5]])
    b = torch.cat([a[:1], torch.randn(3, 31, generator=torch.Generator().manual_seed(2))])
    assert float(row_space_overlap(a, b)) == pytest.approx(1, abs=1e-6)
    zeros = torch.zeros(4, 31)
    assert [float(m(zeros, b)) for m in (cosine, row_space_overlap, procrustes_residual)] == [0, 0, 1]


@pytest.mark.parametrize("entries", [2, 3, 35, 1001])
def test_the_random_cosine_is_the_mean_of_draws(entries):
    """Against one fixed matrix, which may be anything; and in closed form where the integral is known: 2/π and 1/2."""
    generator = torch.Generator().manual_seed(entries)
    drawn = torch.randn(20_000, 1, entries, generator=generator, dtype=torch.float64)
    fixed = torch.zeros(1, entries, dtype=torch.float64)
    fixed[0, 0] = 3
    for other in (fixed, torch.ones_like(fixed)):
        assert random_cosine(entries) == pytest.approx(float(cosine(drawn, other).abs().mean()), rel=0.02)
    assert random_cosine(2) == pytest.approx(2 / torch.pi)
    assert random_cosine(3) == pytest.approx(1 / 2)
    assert random_cosine(10**9) == pytest.approx((2 / torch.pi / 10**9) ** 0.5, rel=1e-6)


def test_random_cosines_of_layers_with_repeated_heads_are_the_same():
    """A query layer [6, 5, 31] against keys of 2 heads, each for three query heads, in 2,000 drawn layers."""
    generator = torch.Generator().manual_seed(1)
    sizes = []
    for _ in range(2000):
        queries = torch.randn(6, 5, 31, generator=generator, dtype=torch.float64)
        keys = torch.randn(2, 5, 31, generator=generator, dtype=torch.float64).repeat_interleave(3, dim=0)
        sizes.append(float(cosine(queries.flatten(0, 1), keys.flatten(0, 1)).abs()))
    assert random_similarity((6, 5, 31), (2, 5, 31), 0)["cosine"] == pytest.approx(sum(sizes) / len(sizes), rel=0.06)
    assert random_similarity((6, 5, 31), (2, 5, 31), 0)["cosine"] == random_cosine(6 * 5 * 31)


def test_random_baselines_have_the_expectations_that_mathematics_gives():
    """Overlap D / M, cosine √(2 / πn) for n entries; they come from the seed, and the layer's random one agrees."""
    drawn = random_similarity((3, 64, 576), (3, 64, 576), 0)
    assert drawn["overlap"] == pytest.approx(64 / 576, rel=0.02)
    one_draw = (2 / (torch.pi * 3 * 64 * 576)) ** 0.5
    assert 0.3 * one_draw < drawn["cosine"] < 2 * one_draw
    assert random_similarity((3, 64, 576), (3, 64, 576), 1) != drawn
    layer = random_layer(6, 6, 16, 97)
    made = weight_similarity(layer)
    for pair in ("kv", "qk", "qv"):
        assert made[f"overlap_{pair}"] == pytest.approx(made[f"overlap_{pair}_random"], rel=0.1)
        assert made[f"procrustes_{pair}"] == pytest.approx(made[f"procrustes_{pair}_random"], rel=0.1)
    assert made == weight_similarity(layer)
