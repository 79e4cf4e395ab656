"""Maps with biases as matrices on [x; 1]: in and out of layers, what is known of inputs, and fits that have a bias."""

import pytest
import torch
from torch import nn

from twofold.conversion.affine import biases_apart, inputs_with_one, map_of, put_map, with_one
from twofold.conversion.layer_maps import root_of
from twofold.conversion.refit import refit_affine, refit_output
from twofold.explain.sharing import Rows, inputs_of


def drawn(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_maps_go_in_and_out_with_their_biases():
    layer, plain = nn.Linear(3, 5).double(), nn.Linear(3, 5, bias=False).double()
    x, whole = drawn(7, 3, seed=1), drawn(5, 4, seed=2)
    put_map(layer, whole)
    torch.testing.assert_close(layer(x), with_one(x) @ whole.T)
    assert torch.equal(map_of(layer), whole)
    put_map(layer, whole[:, 1:])
    assert torch.equal(map_of(layer), torch.cat([whole[:, 1:], whole[:, 3:]], dim=1))
    put_map(plain, whole[:, :3])
    assert torch.equal(map_of(plain), whole[:, :3])
    apart = biases_apart(Rows(whole, 2 * whole))
    assert torch.equal(apart.value_bias_R, 2 * whole[:, 3])
    assert torch.equal(apart.key_RM, whole[:, :3])
    for given, wrong in ((plain, whole), (layer, whole[:, :2]), (layer, whole[:4]), (layer, whole[0])):
        with pytest.raises(ValueError, match="does not go into a layer of"):
            put_map(given, wrong)


def test_the_constant_beside_inputs_is_known_exactly():
    x_NM = drawn(23, 11, seed=5) + 1
    x_NM[:, 4] = 0  # an input that is dead
    known = inputs_with_one(inputs_of(x_NM))
    both = with_one(x_NM)
    torch.testing.assert_close(root_of(known) @ root_of(known).T, both.T @ both / 23)
    assert float(known.mean_M[-1]) == 1
    assert not bool(known.spread_MN[-1].any())


@pytest.mark.parametrize("tokens", [3, 37])
def test_a_matrix_and_a_bias_are_fitted_at_once(tokens):
    """Against one least-squares problem with the ridge as more equations, in which the bias has no say."""
    read, target, prior = drawn(tokens, 5, seed=0) + 3, drawn(tokens, 7, seed=1) - 2, drawn(7, 5, seed=2)
    held = float((read - read.mean(0)).square().sum() / tokens) ** 0.5
    left = torch.cat([with_one(read), torch.nn.functional.pad(held * torch.eye(5, dtype=torch.float64), (0, 1))])
    expected = torch.linalg.lstsq(left, torch.cat([target, held * prior.T])).solution.T
    found = refit_affine(read, target, prior)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(refit_affine(read, target + 5, prior), with_moved(found, 5.0))
    alone = refit_output(read, target, prior)
    errors = [float((target - made).square().sum()) for made in (with_one(read) @ found.T, read @ alone.T)]
    assert errors[0] < errors[1]
    with pytest.raises(ValueError, match="no tokens"):
        refit_affine(read[:0], target[:0], prior)


def with_moved(map_MR, by):
    return torch.cat([map_MR[:, :-1], map_MR[:, -1:] + by], dim=1)
