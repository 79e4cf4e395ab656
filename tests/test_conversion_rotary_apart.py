"""Rotary keys apart: exact where they can be, best where they cannot, and pairs chosen by what they save."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_by_hand import all_turned, apart_layer, own_layer, plain_names
from twofold.conversion import turn_fit
from twofold.conversion.layer_maps import layer_maps
from twofold.conversion.rotary_apart import content_apart, latent_apart
from twofold.conversion.rotary_importance import Text, choose_pairs, importance, mean_turns, pairs_of, rows_from
from twofold.conversion.turn_fit import Apart, Factors, fitted_factors
from twofold.explain.sharing import inputs_of
from twofold.export.rotary_places import least_width
from twofold.models.architecture import Architecture

WIDTH, DIMS, TOKENS = 31, 6, 7
ALL, BASE, STILL = (0, 1, 2), 11.0, 1e300


def layer(heads=4, kv_heads=2, seed=0, copies=False):
    """Random maps; with `copies`, key heads that are complex multiples of the first in each pair."""
    draw = torch.Generator().manual_seed(seed)
    query, key, value, output = (
        torch.randn(rows, columns, dtype=torch.float64, generator=draw) * 0.4
        for rows, columns in ((heads * DIMS, WIDTH), *[(kv_heads * DIMS, WIDTH)] * 2, (WIDTH, heads * DIMS))
    )
    if copies:
        factor = torch.randn(kv_heads, DIMS // 2, 1, dtype=torch.complex128, generator=draw)
        key = rows_from(factor * pairs_of(key, kv_heads)[:1])
    return layer_maps(query, key, value, output, heads=heads, kv_heads=kv_heads)


def text(base=BASE, seed=1, windows=2, tokens=43):
    draw = torch.Generator().manual_seed(seed)
    x_BTM = torch.randn(windows, tokens, WIDTH, dtype=torch.float64, generator=draw) + 0.3
    return Text(x_BTM, base), inputs_of(x_BTM.flatten(0, 1))


def other_inputs():
    return torch.randn(TOKENS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize(("maps", "base", "pairs"), [
    (layer(heads=3, kv_heads=1), BASE, ALL),
    (layer(heads=3, kv_heads=1), BASE, (2, 0, 1)),
    (layer(heads=6, kv_heads=3, copies=True), BASE, ALL),
    (layer(heads=4, kv_heads=2), STILL, ()),
    (layer(heads=4, kv_heads=2), STILL, (1,)),
])  # fmt: skip
def test_nothing_is_lost_where_all_that_turns_is_kept(maps, base, pairs):
    if base == STILL:  # the first pair turns at any base: it is taken out
        maps = without_first_pair(maps)
    read, inputs = text(base)
    made = latent_apart(maps, inputs, read, pairs, min(maps.row_width, WIDTH))
    x_TM = other_inputs()
    torch.testing.assert_close(apart_layer(plain_names(made), x_TM, maps, base, pairs), own_layer(maps, x_TM, base))
    assert made.lost < 1e-12


def without_first_pair(maps):
    key = pairs_of(maps.key_RM, maps.kv_heads)
    key[:, 0] = 0
    return maps._replace(key_RM=rows_from(key))


def test_content_alone_holds_both_where_values_follow_from_contents():
    maps = without_first_pair(layer(heads=6, kv_heads=2))
    turn = torch.randn(2, DIMS, DIMS, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    maps = maps._replace(value_RM=(turn @ maps.key_RM.unflatten(0, (2, DIMS))).flatten(0, 1))
    read, inputs = text(STILL)
    made = content_apart(maps, inputs, read, ())
    x_TM = other_inputs()
    torch.testing.assert_close(apart_layer(plain_names(made), x_TM, maps, STILL, ()), own_layer(maps, x_TM, STILL))


def test_with_all_pairs_of_one_key_head_content_holds_values_alone():
    maps, (read, inputs) = layer(heads=5, kv_heads=1), text()
    made, x_TM = content_apart(maps, inputs, read, ALL), other_inputs()
    torch.testing.assert_close(apart_layer(plain_names(made), x_TM, maps, BASE, ALL), own_layer(maps, x_TM, BASE))


@pytest.mark.parametrize("kept", [(), (1,), (0, 2)])
def test_shapes_and_what_is_lost_are_those_of_the_tensors(kept):
    maps, (read, inputs) = layer(heads=6, kv_heads=3), text()
    latent, content = latent_apart(maps, inputs, read, kept, 5), content_apart(maps, inputs, read, kept)
    turned = 2 * len(kept)
    assert {name: tuple(one.shape) for name, one in latent.tensors.items()} == {
        "q_proj.weight": (6 * (DIMS + turned), WIDTH), "latent_proj.weight": (5, WIDTH),
        "k_rope_proj.weight": (turned, WIDTH), "k_up_proj.weight": (3 * DIMS, 5), "v_up_proj.weight": (3 * DIMS, 5),
        "o_proj.weight": (WIDTH, 6 * DIMS),
    }  # fmt: skip
    assert {name: tuple(one.shape) for name, one in content.tensors.items()} == {
        "q_proj.weight": (6 * (DIMS + turned), WIDTH), "k_proj.weight": (3 * DIMS, WIDTH),
        "k_rope_proj.weight": (turned, WIDTH), "o_proj.weight": (WIDTH, 6 * DIMS),
    }  # fmt: skip
    assert 0 < latent.lost < 1
    x_NM = read.x_BTM.flatten(0, 1)
    missed = x_NM @ (maps.value_RM - latent.tensors["v_up_proj.weight"] @ latent.tensors["latent_proj.weight"]).T
    expected = missed.square().sum() / (x_NM @ maps.value_RM.T).square().sum()
    assert latent.lost_value == pytest.approx(float(expected))


def test_more_pairs_and_a_wider_latent_bring_the_output_nearer():
    maps, (read, inputs) = layer(heads=6, kv_heads=3), text()
    x_TM = read.x_BTM[0, :17]
    own = own_layer(maps, x_TM, BASE)

    def off(pairs, dims):
        made = plain_names(latent_apart(maps, inputs, read, pairs, dims))
        return float((apart_layer(made, x_TM, maps, BASE, pairs) - own).square().mean())

    assert off((), 31) > off(ALL, 31) > 0
    assert off(ALL, 4) > off(ALL, 12) > off(ALL, 31)


def test_the_weight_of_keys_decides_who_gets_the_latent():
    """As many dims as all keys have, or all values: a role that counts for nearly everything loses nearly nothing."""
    maps, (read, inputs) = layer(heads=4, kv_heads=2), text()
    for_keys = latent_apart(maps, inputs, read, (1,), 2 * DIMS, key_weight=1e4)
    for_values = latent_apart(maps, inputs, read, (1,), 2 * DIMS, key_weight=1e-4)
    assert for_keys.lost_key < 1e-4 < 0.1 < for_keys.lost_value
    assert for_values.lost_value < 1e-4 < 0.1 < for_values.lost_key


def test_fitted_factors_leave_the_least_of_the_scores_variance(monkeypatch):
    monkeypatch.setattr(turn_fit, "RIDGE", 0.0)
    maps, (read, _) = layer(heads=4, kv_heads=2), text(windows=3)
    mean_HP = mean_turns(maps, read)
    apart = one_pair_apart(maps)
    plain = Factors(mean_HP, torch.ones(4, 1, dtype=mean_HP.dtype))
    fitted = fitted_factors(maps, read, apart, apart.rest_RM, plain)
    assert left_variance(maps, read, apart, fitted) < 0.98 * left_variance(maps, read, apart, plain)
    for nudge in (1e-3, -1e-3, 1e-3j, -1e-3j):
        moved = Factors(fitted.content_HP + nudge, fitted.turned_HP)
        assert left_variance(maps, read, apart, moved) > left_variance(maps, read, apart, fitted)


def one_pair_apart(maps):
    """The first head's key of pair 1 turns for all heads."""
    rest_GPM, query_HPM = pairs_of(maps.key_RM, maps.kv_heads), pairs_of(maps.query_RM, maps.heads)[:, [1]]
    key_PM = rest_GPM[0, [1]].clone()
    rest_GPM[:, 1] -= key_PM
    return Apart([1], query_HPM, key_PM, rows_from(rest_GPM))


def left_variance(maps, read, apart, factors):
    """By brute force: the attention-weighted variance of the scores' error, summed over queries and heads."""
    total, speed_P = 0.0, BASE ** -(torch.arange(DIMS // 2).double() * 2 / DIMS)
    for x_TM in read.x_BTM:
        x_MT = x_TM.T.to(torch.complex128)
        query, key = pairs_of(maps.query_RM, maps.heads) @ x_MT, pairs_of(maps.key_RM, maps.kv_heads) @ x_MT
        rest = pairs_of(apart.rest_RM, maps.kv_heads) @ x_MT
        shared_query, shared_key = apart.query_HPM @ x_MT, apart.key_PM @ x_MT
        for head in range(maps.heads):
            group, per_pair = head // (maps.heads // maps.kv_heads), factors.content_HP[head]
            for at in range(len(x_TM)):
                seen = slice(at + 1)
                turn_PS = torch.exp(-1j * speed_P[:, None] * (at - torch.arange(at + 1)))
                own = (query[head, :, at].conj()[:, None] * turn_PS * key[group, :, seen]).sum(0).real
                content = (per_pair * query[head, :, at].conj()) @ rest[group, :, seen]
                turned = shared_query[head, :, at].conj() @ (turn_PS[apart.pairs] * shared_key[:, seen])
                off = own - (content + factors.turned_HP[head, 0] * turned).real
                weight = (own * DIMS**-0.5).softmax(0)
                total += float(weight @ (off - weight @ off).square())
    return total


def test_mean_turns_are_the_mean_over_distances_by_attention():
    maps, (read, _) = layer(heads=4, kv_heads=2), text(tokens=11)
    expected = torch.zeros(4, 3, dtype=torch.complex128)
    for x_TM in read.x_BTM:
        query, key = (x_TM @ maps.query_RM.T).unflatten(1, (4, -1)), (x_TM @ maps.key_RM.T).unflatten(1, (2, -1))
        query, key = all_turned(query, BASE), all_turned(key, BASE)
        for head in range(4):
            for at in range(11):
                weight = (key[: at + 1, head // 2] @ query[at, head] * DIMS**-0.5).softmax(0)
                for other in range(at + 1):
                    angle = (at - other) * BASE ** -(torch.arange(3).double() * 2 / DIMS)
                    expected[head] += weight[other] * torch.exp(-1j * angle) / (11 * len(read.x_BTM))
    torch.testing.assert_close(mean_turns(maps, read), expected)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 99))
def test_importance_is_the_error_that_a_pair_saves(seed):
    """By brute force: all queries against all keys at all distances of one distribution per head."""
    maps, (read, inputs) = layer(heads=4, kv_heads=2, seed=seed), text(tokens=13)
    distance_HN = torch.rand(4, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).softmax(-1)
    turn_NP = torch.exp(-1j * torch.arange(9)[:, None] * BASE ** -(torch.arange(3).double() * 2 / DIMS))
    mean_HP = distance_HN.to(torch.complex128) @ turn_NP
    x_NM = read.x_BTM.flatten(0, 1).to(torch.complex128)
    query_HPN, key_GPN = pairs_of(maps.query_RM, 4) @ x_NM.T, pairs_of(maps.key_RM, 2) @ x_NM.T
    lacking_HPN = (turn_NP.T - mean_HP[..., None]).abs().square() * distance_HN[:, None]
    asked_HP = query_HPN.abs().square().mean(-1)
    cost_GP = (asked_HP * lacking_HPN.sum(-1)).unflatten(0, (2, 2)).sum(1)
    saved = [best_rank_one(key_GPN[:, pair], cost_GP[:, pair]) for pair in range(3)]
    whole = (asked_HP.unflatten(0, (2, 2)).sum(1) * key_GPN.abs().square().mean(-1)).sum()
    torch.testing.assert_close(importance(maps, inputs, mean_HP), torch.tensor(saved, dtype=torch.float64) / whole)


def best_rank_one(key_GN, weights):
    """The most of Σ w_g E |k_g|² that multiples of one number for both heads hold, by the 2 × 2 closed form."""
    a, b = (float(w * one.abs().square().mean()) for w, one in zip(weights, key_GN, strict=True))
    c = abs(complex((key_GN[0] * key_GN[1].conj()).mean())) * (weights[0] * weights[1]) ** 0.5
    return (a + b) / 2 + (((a - b) / 2) ** 2 + c**2) ** 0.5


def test_pairs_are_chosen_by_the_sum_over_layers():
    layers = [torch.tensor([0.1, 0.5, 0.2, 0.0]), torch.tensor([0.5, 0.0, 0.1, 0.25])]
    assert choose_pairs(layers, 2) == (0,)
    assert choose_pairs(layers, 4) == (0, 1)
    assert choose_pairs(layers, 8) == (0, 1, 2, 3)
    assert choose_pairs(layers, 0) == ()
    assert choose_pairs([torch.ones(5)], 6) == (0, 1, 2)


@given(st.integers(1, 23), st.data())
def test_spaced_pairs_are_the_best_that_need_no_room(pairs, data):
    """Of 0, s, 2s, … the best, by trying every s; an engine's rotary key of as many dims has their frequencies."""
    total_P = torch.tensor(data.draw(st.lists(st.floats(0, 1), min_size=pairs, max_size=pairs)), dtype=torch.float64)
    count = data.draw(st.integers(1, pairs))
    chosen = choose_pairs([total_P], 2 * count, spaced=True)
    spaced = [[s * i for i in range(count)] for s in range(1, pairs + 1) if s * (count - 1) < pairs]
    assert list(chosen) in spaced
    sums = [float(total_P[one].sum()) for one in spaced]
    assert float(total_P[list(chosen)].sum()) == max(sums)
    free = choose_pairs([total_P], 2 * count)
    assert float(total_P[list(free)].sum()) >= max(sums) - 1e-12
    sizes = Architecture(1, 8, 1, 8, 8, 8, head_dim=2 * pairs, latent_dims=4, rotary_pairs=chosen, variant="MLA")
    assert least_width(sizes) == 2 * count


def test_mistakes_are_named():
    maps, (read, inputs) = layer(), text()
    with pytest.raises(ValueError, match="latent of 0 dims"):
        latent_apart(maps, inputs, read, (), 0)
    with pytest.raises(ValueError, match="latent of 25 dims: it has from 1 to 24"):
        latent_apart(maps, inputs, read, (), 25)
    for pairs in ((0, 0), (3,), (-1,)):
        with pytest.raises(ValueError, match="from 0 to 2"):
            content_apart(maps, inputs, read, pairs)
    with pytest.raises(ValueError, match="positive"):
        latent_apart(maps, inputs, read, (), 5, key_weight=0.0)
    with pytest.raises(ValueError, match="even"):
        choose_pairs([torch.ones(3)], 3)
    with pytest.raises(ValueError, match="even"):
        choose_pairs([torch.ones(3)], 8)
    with pytest.raises(ValueError, match="no layers"):
        choose_pairs([], 2)
    with pytest.raises(ValueError, match="even dim"):
        pairs_of(torch.ones(6, 3), 2)
