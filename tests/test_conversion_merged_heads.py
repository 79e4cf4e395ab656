"""Merged heads: the same function where the heads of a group are equal, or maps of one another."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_by_hand import own_layer, plain_names, rotary_layer
from twofold.conversion.layer_maps import layer_maps
from twofold.conversion.merged_heads import merged_heads
from twofold.conversion.rotary_importance import pairs_of, rows_from
from twofold.explain.sharing import inputs_of

WIDTH, DIMS, BASE = 31, 6, 11.0
METHODS = ("mean", "low-rank")


def drawn(seed=0, heads=8, kv_heads=4):
    draw = torch.Generator().manual_seed(seed)
    query, key, value, output = (
        torch.randn(rows, columns, dtype=torch.float64, generator=draw) * 0.4
        for rows, columns in ((heads * DIMS, WIDTH), *[(kv_heads * DIMS, WIDTH)] * 2, (WIDTH, heads * DIMS))
    )
    return layer_maps(query, key, value, output, heads=heads, kv_heads=kv_heads)


def with_equal_heads(maps, merged):
    """Each run of heads that is merged to one has the keys and values of its first."""
    run = maps.kv_heads // merged
    key, value = (
        one.unflatten(0, (merged, run, -1))[:, :1].expand(-1, run, -1, -1).flatten(0, 2)
        for one in (maps.key_RM, maps.value_RM)
    )
    return maps._replace(key_RM=key, value_RM=value)


def with_related_heads(maps, merged, seed):
    """The same, with a complex multiple for each pair of a key, and a linear map for each value."""
    maps, draw = with_equal_heads(maps, merged), torch.Generator().manual_seed(seed)
    factor = torch.randn(maps.kv_heads, DIMS // 2, 1, dtype=torch.complex128, generator=draw)
    turn = torch.randn(maps.kv_heads, DIMS, DIMS, dtype=torch.float64, generator=draw)
    return maps._replace(
        key_RM=rows_from(factor * pairs_of(maps.key_RM, maps.kv_heads)),
        value_RM=(turn @ maps.value_RM.unflatten(0, (maps.kv_heads, DIMS))).flatten(0, 1),
    )


def given_inputs(seed=1):
    x_NM = torch.randn(67, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.3
    return x_NM[:7], inputs_of(x_NM)


def difference(maps, made, merged, x_TM):
    new = rotary_layer(plain_names(made), x_TM, maps.heads, merged, BASE)
    return float((new - own_layer(maps, x_TM, BASE)).abs().max())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("merged", [1, 2, 4])
def test_equal_heads_merge_without_a_difference(method, merged):
    maps, (x_TM, inputs) = with_equal_heads(drawn(), merged), given_inputs()
    made = merged_heads(maps, inputs, merged, method)
    assert {name: tuple(one.shape) for name, one in made.tensors.items()} == {
        "q_proj.weight": (8 * DIMS, WIDTH),
        "k_proj.weight": (merged * DIMS, WIDTH),
        "v_proj.weight": (merged * DIMS, WIDTH),
        "o_proj.weight": (WIDTH, 8 * DIMS),
    }
    assert difference(maps, made, merged, x_TM) < 1e-12
    assert made.lost < 1e-12
    torch.testing.assert_close(
        made.tensors["k_proj.weight"], maps.key_RM.unflatten(0, (merged, -1, DIMS))[:, 0].flatten(0, 1)
    )


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 99), merged=st.sampled_from([1, 2]))
def test_related_heads_merge_by_low_rank_without_a_difference(seed, merged):
    maps, (x_TM, inputs) = with_related_heads(drawn(seed), merged, seed), given_inputs()
    assert difference(maps, merged_heads(maps, inputs, merged), merged, x_TM) < 1e-9
    assert difference(maps, merged_heads(maps, inputs, merged, "mean"), merged, x_TM) > 1e-3


def test_low_rank_keeps_what_the_output_reads():
    """Two heads with half of their values unread have D dims between them, however large the others are."""
    maps, (x_TM, inputs) = with_equal_heads(drawn(heads=4, kv_heads=2), 1), given_inputs()
    value_GDM = drawn(seed=3, heads=4, kv_heads=2).value_RM.unflatten(0, (2, DIMS)).clone()
    value_GDM[:, DIMS // 2 :] *= 100
    output_MHD = maps.output_MR.unflatten(1, (4, DIMS)).clone()
    output_MHD[..., DIMS // 2 :] = 0
    maps = maps._replace(value_RM=value_GDM.flatten(0, 1), output_MR=output_MHD.flatten(1))
    assert difference(maps, merged_heads(maps, inputs, 1), 1, x_TM) < 1e-9


@pytest.mark.parametrize("method", METHODS)
def test_what_is_lost_is_measured_on_what_stands_for_keys_and_values(method):
    maps, (_, inputs) = drawn(heads=6, kv_heads=3), given_inputs()
    made = merged_heads(maps, inputs, 1, method)
    assert 0 < made.lost < 1
    if method == "mean":
        root = torch.cat([inputs.spread_MN, inputs.mean_M[:, None]], dim=1)
        key_GDN = (maps.key_RM @ root).unflatten(0, (3, DIMS))
        expected = (key_GDN - key_GDN.mean(0)).square().sum() / key_GDN.square().sum()
        assert made.lost_key == pytest.approx(float(expected))
    else:
        assert made.lost < merged_heads(maps, inputs, 1, "mean").lost


def test_heads_that_do_not_divide_are_named():
    maps, (_, inputs) = drawn(), given_inputs()
    for merged in (0, 3, 8):
        with pytest.raises(ValueError, match=f"4 key/value heads do not merge to {merged}"):
            merged_heads(maps, inputs, merged)
