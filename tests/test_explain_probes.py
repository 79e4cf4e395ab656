"""Linear probes against ridge regression written out, on vectors that hold the answer, and on models that share."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from explained_layers import own_model
from small_models import random_ids, small_model
from twofold.explain.activations import LayerActivations, run
from twofold.explain.probes import FEWEST, MOST_CLASSES, RIDGES, Question, probe_measures, question, read_out

BATCH, T, CLASSES = 3, 41, 7


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def few_ids(batch=BATCH, length=T, classes=CLASSES, seed=0):
    return torch.randint(classes, (batch, length), generator=torch.Generator().manual_seed(seed))


def activations_of(query, key, value):
    x = drawn(*key.shape[:2], 13, seed=9)
    return LayerActivations(0, x, x, query, key, value, None)


def ridge_map(x, y, strength):
    """The map with an intercept that is not shrunk, from its normal equations."""
    design = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)
    shrink = strength * torch.eye(design.shape[1], dtype=x.dtype)
    shrink[-1, -1] = 0
    return torch.linalg.solve(design.T @ design + shrink, design.T @ y)


def by_loops(x, asked):
    """The answer of every tested position, with the strength that leaving out each fitted one in turn chooses."""
    fitted = asked.fitted_N.nonzero()[:, 0].tolist()
    one_hot = torch.eye(asked.classes, dtype=torch.float64)[asked.classes_N]
    ones = torch.ones(len(x), 1, dtype=torch.float64)
    centred = x[fitted] - x[fitted].mean(0)
    mean_square = centred.square().sum() / min(centred.shape)
    errors = {}
    for ridge in RIDGES:
        errors[ridge] = 0.0
        for place in fitted:
            others = [other for other in fitted if other != place]
            made = torch.cat([x, ones], dim=1)[place] @ ridge_map(x[others], one_hot[others], ridge * mean_square)
            errors[ridge] += float((made - one_hot[place]).square().sum())
    chosen = min(RIDGES, key=errors.__getitem__)
    made = torch.cat([x, ones], dim=1) @ ridge_map(x[fitted], one_hot[fitted], chosen * mean_square)
    right = total = 0
    for place in range(len(x)):
        if place not in fitted:
            outputs = made[place].tolist()
            right += outputs.index(max(outputs)) == int(asked.classes_N[place])
            total += 1
    return right / total


@pytest.mark.parametrize(("dims", "noise"), [(5, 0.7), (23, 1.5), (67, 2.0)])
def test_the_probe_is_ridge_regression_whose_strength_leaving_out_chooses(dims, noise):
    asked = question(few_ids(2, 31), seed=1)
    embedding = drawn(CLASSES, dims, seed=2)
    x = embedding[asked.classes_N] + noise * drawn(len(asked.classes_N), dims, seed=3) + 5
    assert read_out(x, asked) == pytest.approx(by_loops(x, asked), abs=1e-12)


@given(st.integers(2, 5), st.integers(9, 33), st.integers(2, 11), st.integers(0, 99))
def test_who_is_asked(batch, length, classes, seed):
    ids = few_ids(batch, length, classes, seed)
    asked = question(ids, seed)
    counted = ids[:, 1:].flatten().bincount(minlength=classes)
    common = (counted >= FEWEST).sum()
    assert (asked is None) == (common < 2)
    if asked is None:
        return
    assert asked.classes == common
    assert len(asked.places_N) == counted[counted >= FEWEST].sum()
    assert bool((asked.places_N % length > 0).all())
    named = ids.flatten()[asked.places_N]
    for one in range(asked.classes):
        assert len(named[asked.classes_N == one].unique()) == 1
        fitted = int(asked.fitted_N[asked.classes_N == one].sum())
        assert fitted == int((asked.classes_N == one).sum()) // 2
    commonest = named[asked.fitted_N].mode().values
    if (named[asked.fitted_N].bincount() == (named[asked.fitted_N] == commonest).sum()).sum() == 1:
        assert asked.chance == pytest.approx(float((named[~asked.fitted_N] == commonest).double().mean()))


def test_only_the_commonest_can_be_named():
    ids = torch.arange(50).repeat_interleave(FEWEST + 1)[None].repeat(2, 1)
    ids = torch.cat([ids, torch.full((2, 9), 49)], dim=1)
    asked = question(ids, 0)
    assert asked.classes == MOST_CLASSES
    named = set(ids.flatten()[asked.places_N].tolist())
    assert named == {49, *range(1, MOST_CLASSES)}  # of 0 one is the first of each text


def test_keys_that_embed_the_token_before_tell_it_and_nothing_else():
    """As in the first layer of an induction circuit."""
    ids = few_ids(5, 61)
    embedding = drawn(CLASSES, 2 * 11, seed=4)
    before, own = embedding[ids.roll(1, dims=1)].unflatten(-1, (2, 11)), embedding[ids].unflatten(-1, (2, 11))
    noise = drawn(5, 61, 4, 11, seed=5)
    found = probe_measures(activations_of(noise, before, own), ids, seed=0)
    assert found["probe_previous_k"] == found["probe_token_v"] == 1
    assert found["probe_previous_k_heads"] == found["probe_token_v_heads"] == [1, 1]
    assert len(found["probe_token_q_heads"]) == 4
    for name in ("token_q", "token_k", "previous_q", "previous_v"):
        assert found[f"probe_{name}"] == pytest.approx(found[f"probe_{name.split('_')[0]}_chance"], abs=0.15)
    assert found["probe_classes"] == CLASSES
    assert found["probe_token_q_random"] < 0.4  # of an input that holds no token


def test_vectors_that_do_not_vary_name_the_commonest():
    asked = question(few_ids(), seed=0)
    assert read_out(torch.ones(len(asked.places_N), 5), asked) == asked.chance


@pytest.mark.parametrize("variant", ["QKV", "GQA-2", "MQA", "Q=K", "K=V", "Q=K=V", "MLA"])
def test_of_every_variant_its_roles_are_probed(variant):
    ids = few_ids(3, 43)
    model = own_model(variant)
    for found in run(model, ids):
        measured = probe_measures(found, ids, seed=2)
        asked = question(ids, seed=2)
        for letter, role in zip("qkv", (found.q_BTHD, found.k_BTGD, found.v_BTGD), strict=True):
            vectors = role.reshape(3 * 43, role.shape[2], -1)[asked.places_N]
            assert measured[f"probe_token_{letter}"] == read_out(vectors.flatten(1), asked)
            heads = [read_out(vectors[:, head], asked) for head in range(role.shape[2])]
            assert measured[f"probe_token_{letter}_heads"] == heads
            assert len(measured[f"probe_token_{letter}_heads_random"]) == role.shape[2]
        if "K=V" in variant:
            assert measured["probe_token_k"] == measured["probe_token_v"]
        if "Q=K" in variant:
            assert measured["probe_previous_q"] == measured["probe_previous_k"]
        if found.layer == 0:  # the input is the token's own embedding
            assert min(measured["probe_token_k"], measured["probe_token_k_random"]) > 0.9
            assert measured["probe_previous_v"] < 0.5


def test_too_few_tokens_have_no_number():
    ids = torch.arange(11)[None]
    (found, *_) = run(small_model(), ids)
    measured = probe_measures(found, ids, seed=0)
    assert math.isnan(measured["probe_token_k"])
    assert math.isnan(measured["probe_previous_v_random"])
    assert math.isnan(measured["probe_token_chance"])
    assert len(measured["probe_token_q_heads"]) == 6
    assert measured["probe_classes"] == measured["probe_positions"] == 0


def test_tokens_of_another_text_are_refused():
    (found, *_) = run(small_model(), random_ids(2, 11))
    with pytest.raises(ValueError, match=r"\[2, 11\], and the tokens \[2, 12\]"):
        probe_measures(found, random_ids(2, 12), seed=0)


def test_a_question_counts_its_own_chance():
    classes = torch.tensor([0, 0, 0, 1, 1, 2])
    fitted = torch.tensor([True, True, False, True, False, False])
    assert Question(torch.arange(6), classes, fitted, 3).chance == pytest.approx(1 / 3)
