"""CKA and R² against their definitions by loops, on vectors whose likeness is known, and on models that share."""

import math

import pytest
import torch

from every_variant import every_model
from small_models import random_ids, small_model
from twofold.explain.activation_similarity import activation_similarity, cka, r_squared, random_roles
from twofold.explain.activations import run

N = 61


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def hsic_by_loops(x, y):
    """trace(K H L H) of the Gram matrices K = XXᵀ and L = YYᵀ, arXiv 1905.00414 equation 3, entry by entry."""

    def centred_gram(vectors):
        gram = [[float(a @ b) for b in vectors] for a in vectors]
        rows = [sum(row) / len(row) for row in gram]
        mean = sum(rows) / len(rows)
        return [[gram[i][j] - rows[i] - rows[j] + mean for j in range(len(rows))] for i in range(len(rows))]

    one, other = centred_gram(x), centred_gram(y)
    return sum(one[i][j] * other[i][j] for i in range(len(x)) for j in range(len(x)))


def r_squared_by_loops(y, x, seed):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).tolist()
    fitted, scored = order[: len(x) // 2], order[len(x) // 2 :]
    ones = torch.ones(len(x), 1, dtype=torch.float64)
    design = torch.cat([x.double(), ones], dim=1)
    map_PQ = torch.linalg.solve(design[fitted].T @ design[fitted], design[fitted].T @ y[fitted].double())
    missed = varied = 0.0
    for q in range(y.shape[1]):
        mean = sum(float(y[n, q]) for n in scored) / len(scored)
        for n in scored:
            missed += (float(y[n, q]) - float(design[n] @ map_PQ[:, q])) ** 2
            varied += (float(y[n, q]) - mean) ** 2
    return 1 - missed / varied


def test_cka_is_hsic_of_the_gram_matrices():
    x, y = drawn(N, 7) + 3, drawn(N, 5, seed=1) + drawn(N, 7)[:, :5]
    expected = hsic_by_loops(x, y) / math.sqrt(hsic_by_loops(x, x) * hsic_by_loops(y, y))
    assert cka(x, y) == pytest.approx(expected, rel=1e-9)
    assert 0.05 < expected < 0.95


def test_cka_knows_no_rotation_factor_or_shift_but_a_stretch():
    x = drawn(N, 7)
    rotation = torch.linalg.qr(drawn(7, 7, seed=2)).Q
    assert cka(x, -3 * x @ rotation + 5) == pytest.approx(1, abs=1e-12)
    assert cka(x, x * torch.tensor([9.0, 1, 1, 1, 1, 1, 1])) < 0.9


def test_r_squared_is_the_best_map_on_the_other_half():
    x = drawn(N, 5) + 2
    y = x @ drawn(5, 3, seed=1) + drawn(N, 3, seed=2) - 7
    for seed in range(3):
        assert r_squared(y, x, seed) == pytest.approx(r_squared_by_loops(y, x, seed), rel=1e-9)
    assert r_squared(y, x, 0) != r_squared(y, x, 1)
    assert 0.3 < r_squared(y, x, 0) < 0.95
    assert r_squared(x @ drawn(5, 3) - 7, x, 0) == pytest.approx(1, abs=1e-12)
    assert r_squared(drawn(N, 3, seed=5), x, 0) < 0.1


def test_a_direction_that_only_rounding_fills_explains_nothing():
    thin = drawn(201, 2, dtype=torch.float32)
    x = thin @ drawn(2, 31, seed=1, dtype=torch.float32)
    y = drawn(201, 3, seed=2, dtype=torch.float32)
    assert r_squared(y, x, 0) == pytest.approx(r_squared(y, thin, 0), abs=1e-3)


def test_what_has_no_value_is_nan():
    x, still = drawn(N, 7), torch.full((N, 3), 1.7, dtype=torch.float64)
    assert math.isnan(cka(x, still))
    assert math.isnan(cka(still, x))
    assert math.isnan(r_squared(still, x, 0))
    assert math.isnan(r_squared(x, drawn(N, 29), 0))  # 30 positions, 29 dims and the intercept
    assert not math.isnan(r_squared(x, drawn(N, 28), 0))
    assert r_squared(x, still, 0) < 0.1


def test_a_layer_is_measured_role_by_role_and_head_by_head():
    model = small_model("GQA-2")
    for found in run(model, random_ids(17, 11)):
        measured = activation_similarity(found, seed=4)
        q, k, v = (role.flatten(0, 1) for role in (found.q_BTHD, found.k_BTGD, found.v_BTGD))
        q, k, v = q.reshape(187, 2, 30), k.reshape(187, 2, 10), v.reshape(187, 2, 10)
        whole = {"q": q.flatten(1), "k": k.flatten(1), "v": v.flatten(1)}
        for pair in ("qk", "qv", "kv"):
            assert measured[f"cka_{pair}"] == pytest.approx(cka(whole[pair[0]], whole[pair[1]]))
        assert measured["cka_qk_heads"] == pytest.approx([cka(q[:, g], k[:, g]) for g in range(2)])
        assert measured["cka_kv_heads"] == pytest.approx([cka(k[:, g], v[:, g]) for g in range(2)])
        assert measured["r2_v_from_k"] == pytest.approx(r_squared(whole["v"], whole["k"], 4))
        assert measured["r2_k_from_v_heads"] == pytest.approx([r_squared(k[:, g], v[:, g], 4) for g in range(2)])
        assert {name.removesuffix("_random") for name in measured} == {n for n in measured if "random" not in n}
        random = random_roles(found, 4)
        expected = cka(random.k_BTGD.flatten(0, 1).flatten(1), random.v_BTGD.flatten(0, 1).flatten(1))
        assert measured["cka_kv_random"] == pytest.approx(expected)


@pytest.mark.parametrize(("variant", "pairs"), [("K=V GQA-2", ["kv"]), ("Q=K", ["qk"]), ("Q=K=V", ["kv", "qk", "qv"])])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_is_shared_is_the_same_and_random_matrices_are_not(variant, pairs, dtype):
    model = small_model(variant).to(dtype)
    for found in run(model, random_ids(17, 11)):
        measured = activation_similarity(found, seed=0)
        for pair in ("kv", "qk", "qv"):
            assert (abs(measured[f"cka_{pair}"] - 1) < 1e-9) == (pair in pairs)
            assert measured[f"cka_{pair}_random"] < 0.99
        if "kv" in pairs:
            assert measured["cka_kv_heads"] == pytest.approx([1] * found.k_BTGD.shape[2])
            assert measured["r2_v_from_k_heads"] == pytest.approx([1] * found.k_BTGD.shape[2], abs=1e-6)
            # 13 dims of input make up to 60 dims of keys: one role is a linear map of the other, also at random
            assert measured["r2_v_from_k"] == pytest.approx(1, abs=1e-6)


def test_values_from_the_rows_of_another_layer_are_compared_with_maps_of_its_input():
    model = every_model("QKV CLA-2")
    first, second = run(model, torch.randint(29, (17, 11)))
    one, other = random_roles(first, 3), random_roles(second, 3)
    assert torch.equal(one.k_BTGD, other.k_BTGD)
    assert torch.equal(one.v_BTGD, other.v_BTGD)
    assert not torch.equal(one.q_BTHD, other.q_BTHD)
    names = ("cka_kv", "cka_kv_random", "r2_v_from_k")
    ones, others = activation_similarity(first, 3), activation_similarity(second, 3)
    assert [ones[name] for name in names] == pytest.approx([others[name] for name in names])


def test_random_matrices_keep_the_length_of_what_they_map_and_follow_the_seed():
    found = next(run(small_model("GQA-2"), random_ids(17, 11)))
    one, again, other = random_roles(found, 1), random_roles(found, 1), random_roles(found, 2)
    assert torch.equal(one.q_BTHD, again.q_BTHD)
    assert not torch.equal(one.q_BTHD, other.q_BTHD)
    assert [role.shape for role in one] == [found.q_BTHD.shape, found.k_BTGD.shape, found.v_BTGD.shape]
    ratio = one.q_BTHD.square().mean() / found.x_BTM.square().mean()
    assert 0.5 < ratio < 2
