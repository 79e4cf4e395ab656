"""Keys and values made of less: the same function where nothing is lost, and losses as they are, by brute force."""

import pytest
import torch

from shared_layers import DIMS, HEADS, KV_HEADS, WIDTH, correlated, drawn, output, read, small_maps, turned
from twofold.conversion.importance import importance, roots
from twofold.conversion.latents import energy, latents, spectrum
from twofold.conversion.layer_maps import layer_maps, lost_of
from twofold.conversion.rotary_importance import Text
from twofold.conversion.values_from_keys import values_from_keys
from twofold.explain.sharing import inputs_of, plain_inputs

ROWS = KV_HEADS * DIMS
SCOPES = (("all", 1), ("group", 3), ("group", 2), ("head", 1))


def made_by_latent(tensors, x_NM):
    """Keys and values [N, G, D] from latents, as a model reads them."""
    latent_NC = x_NM @ tensors["latent_proj.weight"].T
    ups = (tensors[f"{role}_up_proj.weight"] for role in "kv")
    return tuple((latent_NC @ up.T).unflatten(1, (-1, DIMS)) for up in ups)


def own(maps, x_NM):
    return tuple((x_NM @ weight.T).unflatten(1, (-1, DIMS)) for weight in (maps.key_RM, maps.value_RM))


def latent_output(tensors, x_NM):
    query_NHD = (x_NM @ tensors["q_proj.weight"].T).unflatten(1, (-1, DIMS))
    return read(query_NHD, *made_by_latent(tensors, x_NM)).flatten(1) @ tensors["o_proj.weight"].T


def text_of(x_NM):
    """As one window, with rotary of the base that `shared_layers` has."""
    return Text(x_NM[None], 100.0)


def share(missed, whole):
    return float(sum(one.square().sum() for one in missed) / sum(one.square().sum() for one in whole))


@pytest.mark.parametrize(("scope", "groups"), SCOPES)
def test_latents_of_full_size_lose_nothing(scope, groups):
    maps, x = small_maps(), correlated()
    made = latents(maps, inputs_of(x), 2 * ROWS, scope, groups)
    for new, was in zip(made_by_latent(made.tensors, x), own(maps, x), strict=True):
        torch.testing.assert_close(new, was)
    torch.testing.assert_close(latent_output(made.tensors, x), output(maps, x))
    assert made[1:4] == pytest.approx((0, 0, 0), abs=1e-20)


@pytest.mark.parametrize("rank", [7, 13])
def test_a_latent_as_large_as_the_rank_loses_nothing(rank):
    """Also where what is given has no more dims than that, and where the model is narrower than its rows."""
    maps, x = small_maps(), correlated()
    stacked = drawn(2 * ROWS, rank) @ drawn(rank, WIDTH, seed=1)
    low = maps._replace(key_RM=stacked[:ROWS], value_RM=stacked[ROWS:])
    flat = x @ drawn(WIDTH, rank, seed=2) @ drawn(rank, WIDTH, seed=3)
    narrow = small_maps(width=rank)
    for given, tokens in ((low, x), (maps, flat), (narrow, correlated(width=rank))):
        made = latents(given, inputs_of(tokens), rank)
        torch.testing.assert_close(latent_output(made.tensors, tokens), output(given, tokens))
        assert made.lost == pytest.approx(0, abs=1e-20)
        assert latents(given, inputs_of(tokens), rank - 1).lost > 1e-9


@pytest.mark.parametrize(("scope", "groups"), SCOPES)
@pytest.mark.parametrize("dims", [6, 18, 30])
def test_losses_are_those_of_what_the_layer_makes(scope, groups, dims):
    """Over the tokens themselves, which the conversion never sees; and in the spectrum."""
    maps, x = small_maps(), correlated()
    made = latents(maps, inputs_of(x), dims, scope, groups)
    (new_key, new_value), (key, value) = made_by_latent(made.tensors, x), own(maps, x)
    assert made.lost_key == pytest.approx(share([new_key - key], [key]))
    assert made.lost_value == pytest.approx(share([new_value - value], [value]))
    assert made.lost == pytest.approx(share([new_key - key, new_value - value], [key, value]))
    losses = spectrum(maps, inputs_of(x), 6, scope, groups)
    assert losses[dims // 6] == pytest.approx(made.lost)
    assert energy(maps, inputs_of(x)) == pytest.approx(float(key.square().sum() + value.square().sum()) / len(x))
    shapes = {name: tuple(one.shape) for name, one in made.tensors.items()}
    assert shapes == {
        "q_proj.weight": (HEADS * DIMS, WIDTH),
        "latent_proj.weight": (dims, WIDTH),
        "k_up_proj.weight": (ROWS, dims),
        "v_up_proj.weight": (ROWS, dims),
        "o_proj.weight": (WIDTH, HEADS * DIMS),
    }


@pytest.mark.parametrize(("scope", "groups"), SCOPES)
def test_the_spectrum_falls_from_all_to_nothing_and_is_convex(scope, groups):
    losses = torch.tensor(spectrum(small_maps(), inputs_of(correlated()), 6, scope, groups), dtype=torch.float64)
    assert len(losses) == 2 * ROWS // 6 + 1
    assert (float(losses[0]), float(losses[-1])) == (1, 0)
    steps = losses.diff()
    assert bool((steps <= 0).all())
    assert bool((steps.diff() >= -1e-15).all())


def test_the_spectrum_of_a_narrow_model_ends_at_its_width():
    losses = spectrum(small_maps(width=17), inputs_of(correlated(width=17)))
    assert losses[16] > 0
    assert set(losses[17:]) == {0}
    assert len(losses) == 2 * ROWS + 1


@pytest.mark.parametrize("known", [inputs_of(correlated()), inputs_of(correlated(tokens=23)), plain_inputs(WIDTH)])
def test_more_heads_in_one_latent_never_lose_more(known):
    maps = small_maps()
    for dims in range(6, 2 * ROWS + 1, 6):
        whole, halves, thirds, alone = (
            latents(maps, known, dims, *scope).lost for scope in (*SCOPES[::2], *SCOPES[1::2])
        )
        for wide, narrow in ((whole, halves), (whole, thirds), (halves, alone), (thirds, alone)):
            assert wide <= narrow + 1e-14
        assert dims == 2 * ROWS or whole < alone


@pytest.mark.parametrize(("scope", "groups"), SCOPES)
def test_a_head_reads_no_latent_but_its_own(scope, groups):
    maps, x = small_maps(), correlated()
    made = latents(maps, inputs_of(x), 12, scope, groups)
    count = {"all": 1, "group": groups, "head": KV_HEADS}[scope]
    for role in "kv":
        blocks = made.tensors[f"{role}_up_proj.weight"].unflatten(0, (count, -1)).unflatten(2, (count, -1))
        for latent in range(count):
            for other in range(count):
                assert bool(blocks[latent, :, other].any()) == (latent == other)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_values_that_are_maps_of_keys_are_the_same_function(kv_heads):
    maps, x = small_maps(kv_heads=kv_heads), correlated()
    mixed_GDD = drawn(kv_heads, DIMS, DIMS, seed=21)
    exact = maps._replace(value_RM=(mixed_GDD @ maps.key_RM.unflatten(0, (kv_heads, DIMS))).flatten(0, 1))
    made = values_from_keys(exact, inputs_of(x))
    key_NGD = own(exact, x)[0]
    query_NHD = (x @ made.tensors["q_proj.weight"].T).unflatten(1, (HEADS, DIMS))
    torch.testing.assert_close(
        read(query_NHD, key_NGD, key_NGD).flatten(1) @ made.tensors["o_proj.weight"].T, output(exact, x)
    )
    assert made[1:4] == pytest.approx((0, 0, 0), abs=1e-20)
    assert sorted(made.tensors) == ["k_proj.weight", "o_proj.weight", "q_proj.weight"]


def test_values_from_keys_are_as_if_the_layer_had_those_values():
    """For values of any kind: the output with A k in their place, and what that loses; no other map loses less."""
    maps, x = small_maps(), correlated()
    made = values_from_keys(maps, inputs_of(x))
    key_NGD, value_NGD = own(maps, x)
    pairs = zip(key_NGD.unbind(1), value_NGD.unbind(1), strict=True)
    fitted = torch.stack([key @ torch.linalg.lstsq(key, value).solution for key, value in pairs], 1)
    query_NHD = (x @ maps.query_RM.T).unflatten(1, (HEADS, DIMS))
    torch.testing.assert_close(
        read(query_NHD, key_NGD, key_NGD).flatten(1) @ made.tensors["o_proj.weight"].T,
        read(query_NHD, key_NGD, fitted).flatten(1) @ maps.output_MR.T,
    )
    assert made.lost_key == 0
    assert made.lost_value == pytest.approx(share([fitted - value_NGD], [value_NGD]))
    assert made.lost == pytest.approx(share([fitted - value_NGD], [key_NGD, value_NGD]))


def test_what_does_not_fit_is_refused_with_its_numbers():
    maps, known = small_maps(), plain_inputs(WIDTH)
    for dims, scope, groups, words in (
        (0, "all", 1, "0 dims in 1 latents: each has from 1 to 48"),
        (49, "all", 1, "49 dims in 1 latents"),
        (13, "head", 1, "13 dims do not fall to 6 latents"),
        (20, "group", 4, "6 key/value heads do not fall into 4"),
        (20, "group", 0, "6 key/value heads do not fall into 0"),
    ):
        with pytest.raises(ValueError, match=words):
            latents(maps, known, dims, scope, groups)
    with pytest.raises(ValueError, match="1 to 17"):
        latents(small_maps(width=17), plain_inputs(17), 18)
    with pytest.raises(ValueError, match="a step is at least 1 dim, not 0"):
        spectrum(maps, known, 0)
    with pytest.raises(ValueError, match="do not fall to 6 latents"):
        spectrum(maps, known, 3, "head")
    with pytest.raises(ValueError, match="do not belong to one layer of 12 query heads and 5"):
        layer_maps(*maps[:4], heads=12, kv_heads=5)
    with pytest.raises(ValueError, match="do not belong to one layer"):
        layer_maps(maps.query_RM, maps.key_RM, maps.value_RM, maps.output_MR.T, heads=12, kv_heads=6)


def test_nothing_is_lost_of_nothing():
    maps = small_maps()
    none = maps._replace(key_RM=torch.zeros_like(maps.key_RM), value_RM=torch.zeros_like(maps.value_RM))
    assert lost_of(none, none.key_RM, none.value_RM, plain_inputs(WIDTH)) == (0, 0, 0)
    assert set(spectrum(none, plain_inputs(WIDTH), 7)) == {0}
    assert (maps.head_dim, maps.row_width) == (DIMS, 2 * ROWS)


def weighed_error(counted, maps, made, x):
    """What an error counts in all, over the tokens."""
    new, was = made_by_latent(made.tensors, x), own(maps, x)
    pairs = zip(counted, new, was, strict=True)
    return sum(float(torch.einsum("ngd,gde,nge->", a - b, weight, a - b)) for weight, a, b in pairs) / len(x)


def test_an_error_counts_by_the_scores_and_outputs_that_it_changes():
    """Against scores of all queries at all distances, and outputs of single values, up to one factor for each role."""
    maps, x, distances = small_maps(kv_heads=3), correlated(tokens=31), (0, 2, 7)
    counted = importance(maps, inputs_of(x), text_of(x), distances)
    query_NGHD = (x @ maps.query_RM.T).unflatten(1, (3, 4, DIMS))
    output_GHMD = maps.output_MR.T.reshape(3, 4, DIMS, WIDTH).mT
    error_GD = drawn(3, DIMS, seed=31)
    for head, error_D in enumerate(error_GD):
        changed = []
        for distance in distances:
            # the query stands at `distance`, and the key at 0
            query_NHD = query_NGHD[:, head]
            at = torch.stack([turned(one.expand(distance + 1, -1, -1))[distance] for one in query_NHD])
            changed.append((at @ error_D).square().sum(1).mean())
        score = float(sum(changed))
        written = float((output_GHMD[head] @ error_D).square().sum())
        key, value = (float(error_D @ weight[head] @ error_D) for weight in counted)
        if head == 0:
            scale = key / score, value / written
        assert (key, value) == pytest.approx((scale[0] * score, scale[1] * written))
    for weight, made_NGD in zip(counted, own(maps, x), strict=True):
        assert float(torch.einsum("ngd,gde,nge->", made_NGD, weight, made_NGD)) / len(x) == pytest.approx(1)


@pytest.mark.parametrize(("scope", "groups"), SCOPES)
def test_what_counts_decides_what_is_kept(scope, groups):
    maps, x = small_maps(), correlated()
    known = inputs_of(x)
    counted = importance(maps, known, text_of(x))
    losses = spectrum(maps, known, 6, scope, groups, counted)
    for dims in (6, 18, 30):
        made, plain = latents(maps, known, dims, scope, groups, counted), latents(maps, known, dims, scope, groups)
        error = weighed_error(counted, maps, made, x)
        assert error < weighed_error(counted, maps, plain, x)
        assert made.lost > plain.lost
        assert losses[dims // 6] == pytest.approx(error / 2)  # of 1 for keys and 1 for values
    whole = latents(maps, known, 2 * ROWS, scope, groups, counted)
    torch.testing.assert_close(latent_output(whole.tensors, x), output(maps, x))


def test_what_no_query_asks_for_is_kept_with_the_least_importance():
    maps, x = small_maps(), correlated()
    silent = maps._replace(
        query_RM=maps.query_RM.unflatten(0, (HEADS, DIMS)).clone().index_fill_(1, torch.tensor([1, 3]), 0).flatten(0, 1)
    )
    back = roots(importance(silent, inputs_of(x), text_of(x)))
    torch.testing.assert_close(back.key_RR @ back.key_back_RR, torch.eye(ROWS, dtype=torch.float64))
    for given in (
        silent,
        maps._replace(query_RM=torch.zeros_like(maps.query_RM), output_MR=torch.zeros_like(maps.output_MR)),
    ):
        made = latents(given, inputs_of(x), 2 * ROWS, counted=importance(given, inputs_of(x), text_of(x)))
        for new, was in zip(made_by_latent(made.tensors, x), own(maps, x), strict=True):
            torch.testing.assert_close(new, was)
