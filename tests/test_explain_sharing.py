"""Sharing the keys and values of a layer: by brute force, where it costs nothing, and put back bit for bit."""

import copy

import pytest
import torch

from every_variant import EVERY, every_model
from explained_layers import FAMILIES, family_model
from small_encoders import encoder_of
from small_models import random_ids, small_model
from twofold.explain.activations import run
from twofold.explain.sharing import Rows, inputs_of, joint, plain_inputs, value_from_key
from twofold.explain.sharing_loss import (
    foretold_by_inputs,
    foretold_by_weights,
    halves,
    measured,
    own_loss,
    require_losses,
    text_loss,
)
from twofold.explain.sharing_places import Places, places_of, refusals, replaced

SEPARATE = ("QKV", "GQA-2", "MQA", "Q=K")
HEADS, DIMS, WIDTH, N = 3, 5, 23, 67


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rows_of(*, key_bias=False, value_bias=False):
    key, value = drawn(HEADS * DIMS, WIDTH, seed=1), drawn(HEADS * DIMS, WIDTH, seed=2)
    bias = drawn(HEADS * DIMS, seed=3), drawn(HEADS * DIMS, seed=4)
    return Rows(key, value, bias[0] if key_bias else None, bias[1] if value_bias else None)


def inputs():
    """Correlated, with a mean, and of different strength."""
    return drawn(N, WIDTH) @ drawn(WIDTH, WIDTH, seed=5) + 2 * drawn(WIDTH, seed=6)


def own(variant, **others):
    """A float64 model, and a float32 one of transformers' families."""
    return family_model(variant) if variant in FAMILIES else small_model(variant, **others)


def made(rows, x):
    """Keys and values [N, R], written out."""
    return tuple(
        x @ weight.T + (0 if bias is None else bias)
        for weight, bias in ((rows.key_RM, rows.key_bias_R), (rows.value_RM, rows.value_bias_R))
    )


def test_inputs_are_known_by_mean_and_covariance():
    x = inputs()
    known = inputs_of(x)
    torch.testing.assert_close(known.mean_M, x.mean(0))
    torch.testing.assert_close(known.spread_MN @ known.spread_MN.T, torch.cov(x.T, correction=0))
    few = inputs_of(x[:7])
    torch.testing.assert_close(few.spread_MN @ few.spread_MN.T, torch.cov(x[:7].T, correction=0))


@pytest.mark.parametrize("dims", [1, 4, 15, 22])
@pytest.mark.parametrize("bias", [False, True])
def test_a_joint_factor_is_the_best_projection_of_what_the_layer_makes(dims, bias):
    """By the SVD of keys and values themselves, which it never sees; the loss is what it leaves of them."""
    x, rows = inputs(), rows_of(key_bias=bias, value_bias=bias)
    shared = joint(rows, inputs_of(x), dims)
    plain = rows._replace(key_bias_R=None, value_bias_R=None)
    both = torch.cat(made(plain, x), dim=1)
    left, values, right = torch.linalg.svd(both, full_matrices=False)
    best = left[:, :dims] @ torch.diag(values[:dims]) @ right[:dims]
    new = shared.rows(rows)
    torch.testing.assert_close(torch.cat(made(new._replace(key_bias_R=None, value_bias_R=None), x), dim=1), best)
    assert shared.lost == pytest.approx(float((both - best).square().sum() / both.square().sum()), abs=1e-12)
    assert (new.key_bias_R is rows.key_bias_R, new.value_bias_R is rows.value_bias_R) == (True, True)
    assert torch.linalg.matrix_rank(torch.cat([new.key_RM, new.value_RM])) == shared.factor_NM.shape[0] == dims


def test_a_plain_joint_factor_is_a_projection_on_right_singular_vectors():
    rows = rows_of()
    stacked = torch.cat([rows.key_RM, rows.value_RM])
    right = torch.linalg.svd(stacked, full_matrices=False).Vh[:7]
    shared = joint(rows, plain_inputs(WIDTH), 7)
    torch.testing.assert_close(torch.cat(shared.rows(rows)[:2]), stacked @ right.T @ right)
    assert joint(rows, plain_inputs(WIDTH), WIDTH).lost == 0 < shared.lost < 1
    with pytest.raises(ValueError, match="at least one dim"):
        joint(rows, plain_inputs(WIDTH), 0)


@pytest.mark.parametrize(("key_bias", "value_bias"), [(False, False), (True, False), (False, True), (True, True)])
def test_values_from_keys_are_the_least_squares_fit_by_head(key_bias, value_bias):
    x, rows = inputs(), rows_of(key_bias=key_bias, value_bias=value_bias)
    mapped = value_from_key(rows, inputs_of(x), HEADS)
    keys, values = (role.unflatten(1, (HEADS, DIMS)) for role in made(rows, x))
    new = made(mapped.rows(rows), x)
    torch.testing.assert_close(new[0], keys.flatten(1))
    missed = whole = 0.0
    for head in range(HEADS):
        # without a bias for them, values are made of what the key is without its own
        key = keys[:, head] - (rows.key_bias_R.unflatten(0, (HEADS, DIMS))[head] if key_bias and not value_bias else 0)
        design = torch.cat([key, torch.ones(N, int(value_bias), dtype=torch.float64)], dim=1)
        fitted = design @ torch.linalg.lstsq(design, values[:, head]).solution
        torch.testing.assert_close(new[1].unflatten(1, (HEADS, DIMS))[:, head], fitted)
        centre = values[:, head].mean(0) if value_bias else 0
        left, of = (values[:, head] - fitted).square().sum(), (values[:, head] - centre).square().sum()
        assert float(mapped.lost_G[head]) == pytest.approx(float(left / of), abs=1e-12)
        missed, whole = missed + left, whole + of
    assert mapped.lost == pytest.approx(float(missed / whole), abs=1e-12)
    assert 0 < mapped.lost < 1
    assert (mapped.rows(rows).value_bias_R is None) == (not value_bias)


@pytest.mark.parametrize("bias", [False, True])
def test_values_that_are_made_of_keys_lose_nothing(bias):
    rows, mixed = rows_of(key_bias=bias, value_bias=bias), drawn(HEADS, DIMS, DIMS, seed=9)
    rows = rows._replace(value_RM=(mixed @ rows.key_RM.unflatten(0, (HEADS, DIMS))).flatten(0, 1))
    for known in (inputs_of(inputs()), plain_inputs(WIDTH)):
        mapped = value_from_key(rows, known, HEADS)
        assert mapped.lost == pytest.approx(0, abs=1e-20)
        torch.testing.assert_close(mapped.map_GDD, mixed)
        torch.testing.assert_close(mapped.rows(rows).value_RM, rows.value_RM)
    other = joint(rows, inputs_of(inputs()), HEADS * DIMS)
    assert other.lost == pytest.approx(0, abs=1e-20)


@pytest.mark.parametrize("name", [*SEPARATE, *FAMILIES])
def test_places_are_what_makes_keys_and_values(name):
    """What stands in them makes the layer's own keys and values of its input, and others change its output."""
    model = own(name)
    ids = random_ids(2, 11)
    for found in run(model, ids):
        places = places_of(model, found.layer)
        rows, x = Rows(*(None if one is None else one.double() for one in places.rows)), found.row_x_BTM.double()
        keys, values = made(rows, x.flatten(0, 1))
        assert places.kv_heads == found.k_BTGD.shape[2]
        torch.testing.assert_close(values, found.v_BTGD.double().flatten(0, 1).flatten(1), rtol=1e-4, atol=1e-4)
        if name not in ("qwen3", "gemma3_text"):  # their keys have a norm
            torch.testing.assert_close(keys, found.k_BTGD.double().flatten(0, 1).flatten(1), rtol=1e-4, atol=1e-4)


def test_fused_matrices_are_the_same_places():
    model = small_model("GQA-2", fused_projections=True)
    found = next(run(model, random_ids(2, 11)))
    keys, values = made(places_of(model, 0).rows, found.row_x_BTM.flatten(0, 1))
    torch.testing.assert_close(keys, found.k_BTGD.flatten(0, 1).flatten(1))
    torch.testing.assert_close(values, found.v_BTGD.flatten(0, 1).flatten(1))


@pytest.mark.parametrize("name", ["QKV", "gpt2", "opt", "qwen2"])
def test_weights_come_back_bit_for_bit(name):
    model = own(name)
    before = copy.deepcopy(model.state_dict())
    places = places_of(model, 1)
    other = Rows(*(None if one is None else one * 3 + 1 for one in places.rows))
    with replaced(places, other):
        changed = [key for key, value in model.state_dict().items() if not torch.equal(value, before[key])]
    assert 1 <= len(changed) <= 4
    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error), replaced(places, other):
            raise error
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    with (
        pytest.raises((AttributeError, RuntimeError)),
        replaced(places, Rows(other.key_RM, other.value_RM[:, :1, None])),
    ):
        pass
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", [*SEPARATE, *FAMILIES])
def test_where_sharing_loses_nothing_the_loss_does_not_change(name):
    """Keys and values of rank G·D together, and then values that are made of keys."""
    model, ids = own(name), random_ids(8, 17)
    places = places_of(model, 1)
    with torch.no_grad():
        key = places.rows.key_RM.unflatten(0, (places.kv_heads, -1))
        dims = key.shape[1]
        places.rows.value_RM.copy_((0.1 * drawn(places.kv_heads, dims, dims).to(key) @ key).flatten(0, 1))
    parts = halves(ids)
    x = {found.layer: parts.fitted(found.row_x_BTM) for found in run(model, ids)}[1]
    foretold, mapped = foretold_by_inputs(model, 1, x)
    tight = 1e-9 if next(model.parameters()).dtype == torch.float64 else 1e-4
    assert foretold_by_weights(model, 1)["value_from_key_predicted_weights"] == pytest.approx(0, abs=1e-9)
    assert foretold["value_from_key_predicted"] == pytest.approx(0, abs=1e-9)
    shared = joint(places.rows, inputs_of(x), places.dims)
    assert shared.lost == pytest.approx(0, abs=1e-9)
    before = model(ids).logits.detach()
    for rows in (mapped["value_from_key"], Rows(*shared.rows(places.rows))):
        with replaced(places, rows):
            torch.testing.assert_close(model(ids).logits, before, rtol=tight, atol=tight * float(before.abs().max()))


def test_loss_is_that_of_the_next_token():
    model, ids = small_model("QKV"), random_ids(3, 13)
    logits = model(ids).logits.detach().log_softmax(-1)
    nats = [-float(logits[b, t, ids[b, t + 1]]) for b in range(3) for t in range(12)]
    assert text_loss(model, ids) == pytest.approx(sum(nats) / len(nats))


@pytest.mark.parametrize(("batch", "length"), [(5, 8), (2, 7), (1, 9)])
def test_maps_and_losses_have_no_token_in_common(batch, length):
    ids = torch.arange(batch * length).view(batch, length)
    parts = halves(ids)
    both = torch.cat([part.flatten() for part in parts])
    assert sorted(both.tolist()) == list(range(batch * length))
    x = ids[..., None].expand(-1, -1, 3)
    assert torch.equal(parts.fitted(x)[:, 0], parts.fitted_BT.flatten())


def test_measured_losses_are_those_of_one_layer_at_a_time():
    model, ids = small_model("QKV", hidden_size=61), random_ids(6, 17)
    parts, made_of = halves(ids), {}
    for found in run(model, ids):
        _, made_of[found.layer] = foretold_by_inputs(model, found.layer, parts.fitted(found.row_x_BTM)[:50])
    assert set(made_of[0]) == {"value_from_key"}  # 50 inputs tell nothing of 60 joint dims
    steps = []
    baseline = own_loss(model, parts)
    losses = measured(model, made_of, parts.scored_BT, baseline, lambda done, total: steps.append((done, total)))
    assert baseline == text_loss(model, parts.scored_BT)
    assert steps == [(0, 2), (1, 2)]
    for layer in range(2):
        other = copy.deepcopy(model)
        seam, rows = other.model.layers[layer].attention.projections, made_of[layer]["value_from_key"]
        seam.v_proj.weight.data = rows.value_RM
        added = text_loss(other, parts.scored_BT) - baseline
        assert losses[layer]["value_from_key_loss"] == pytest.approx(added, abs=1e-12) != 0


def test_layers_without_a_matrix_each_say_why():
    told = {
        "K=V": "one vector already",
        "MLA": "one latent",
        "Q=K=V": "one vector already",
    }
    for name, why in told.items():
        model = small_model(name, rotary="partial" if name == "MLA" else "full")
        assert foretold_by_weights(model, 0) == {}
        assert foretold_by_inputs(model, 0, drawn(5, 13)) == ({}, {})
        assert why in refusals(model, (0, 1))[0]
        assert "any layer" in refusals(model, (0, 1))[0]


def test_every_variant_has_places_or_a_reason():
    reasons = set()
    for name in EVERY:
        model = every_model(name)
        for layer in range(len(model.model.layers)):
            found = places_of(model, layer)
            if isinstance(found, Places):
                assert found.rows.key_RM.shape == found.rows.value_RM.shape
            else:
                reasons.add(found.split()[0])
    assert len(reasons) >= 5


def test_models_and_texts_without_losses_are_refused():
    with pytest.raises(ValueError, match="give more text"):
        require_losses(small_model("QKV"), halves(torch.zeros(1, 2, dtype=torch.long)))
    with pytest.raises(ValueError, match="no next token"):
        require_losses(encoder_of("tokens", "positions"), halves(random_ids(2, 9)))
