"""Queries and outputs fitted again: nothing near them has a smaller error, and nothing changes where nothing did."""

import pytest
import torch

from shared_layers import correlated, drawn
from twofold.conversion.refit import OutputRefit, refit_output, refit_query, refit_turned_query
from twofold.explain.sharing import inputs_of

DIMS, WIDTH, OTHER, QUERIES = 6, 23, 5, 3
READ, OUT, TOKENS = 13, 7, 59
# Over N distances, N prime, two different whole numbers of turns per N distances are not correlated.
DISTANCES = 11
TURNS = (1, 2, 4)


def x():
    return correlated(tokens=43, width=WIDTH)


def reads_and_targets(tokens=TOKENS, noise=0.3):
    read = drawn(tokens, READ, seed=1) @ drawn(READ, READ, seed=2)
    return read, read @ drawn(OUT, READ, seed=3).T + noise * drawn(tokens, OUT, seed=4)


def near(matrix, seed, size):
    return matrix + size * drawn(*matrix.shape, seed=seed)


def test_an_output_is_the_plain_fit_with_many_tokens_and_none_better():
    read, target = reads_and_targets()
    prior = drawn(OUT, READ, seed=9)
    plain = refit_output(read, target, prior, ridge=0)
    torch.testing.assert_close(plain, torch.linalg.lstsq(read, target).solution.T)

    def missed(weight, ridge):
        held = ridge * read.square().sum() / TOKENS
        return float((target - read @ weight.T).square().sum() + held * (weight - prior).square().sum())

    for ridge in (0.0, 0.01, 1.0, 7.0):
        fit = refit_output(read, target, prior, ridge=ridge)
        assert all(missed(near(fit, seed, 1e-3), ridge) > missed(fit, ridge) for seed in range(20))


def test_tokens_may_come_in_parts_and_in_any_dtype():
    read, target = reads_and_targets()
    prior = drawn(OUT, READ, seed=9)
    fit = OutputRefit()
    for part in (slice(0, 2), slice(2, 2), slice(2, 40), slice(40, None)):
        fit.add(read[part].float(), target[part].float())
    assert fit.tokens == TOKENS
    whole = refit_output(read.float(), target.float(), prior.float())
    assert whole.dtype == torch.float64
    torch.testing.assert_close(fit.solved(prior.float()), whole)


def test_few_tokens_do_not_ruin_an_output():
    """Fewer than it takes to determine the fit: the plain one is worse on other tokens than the prior, and this not."""
    read, target = reads_and_targets(tokens=1000, noise=1.0)
    truth = drawn(OUT, READ, seed=3)
    prior = near(truth, 10, 0.1)

    def error(weight):
        return float((target[500:] - read[500:] @ weight.T).square().mean())

    for tokens in (1, 3, READ - 1, READ, READ + 2):
        fit = refit_output(read[:tokens], target[:tokens], prior)
        plain = refit_output(read[:tokens], target[:tokens], prior, ridge=0)
        assert error(fit) < error(plain)
        assert error(fit) < 1.2 * error(prior)
    many = refit_output(read[:500], target[:500], prior)
    assert error(many) < error(prior)
    torch.testing.assert_close(refit_output(read, target, prior, ridge=1e12), prior)


def test_a_right_prior_stays():
    read, _ = reads_and_targets()
    prior = drawn(OUT, READ, seed=9)
    for tokens in (2, TOKENS):
        for ridge in (0.0, 1.0):
            torch.testing.assert_close(refit_output(read[:tokens], read[:tokens] @ prior.T, prior, ridge=ridge), prior)
    nothing = torch.zeros(4, READ)
    torch.testing.assert_close(refit_output(nothing, torch.zeros(4, OUT), prior, ridge=0.0), prior)
    torch.testing.assert_close(refit_output(nothing, torch.zeros(4, OUT), prior), prior)


def test_the_prior_weighs_as_many_tokens_as_there_are_dims_read():
    """With reads alike in all directions, N tokens move the fit N / (N + R) of the way."""
    read = torch.linalg.qr(drawn(TOKENS, READ)).Q * 3
    target, prior = drawn(TOKENS, OUT, seed=1), drawn(OUT, READ, seed=9)
    plain = refit_output(read, target, prior, ridge=0)
    way = TOKENS / (TOKENS + READ)
    torch.testing.assert_close(refit_output(read, target, prior), prior + way * (plain - prior))


def test_refits_refuse_what_does_not_fit():
    read, target = reads_and_targets()
    prior = drawn(OUT, READ, seed=9)
    fit = OutputRefit()
    with pytest.raises(ValueError, match="no tokens"):
        fit.solved(prior)
    with pytest.raises(ValueError, match="59 reads and 58 targets"):
        fit.add(read, target[1:])
    fit.add(read, target)
    with pytest.raises(ValueError, match="12 and 7 numbers do not go with earlier ones of 13 and 7"):
        fit.add(read[:, 1:], target)
    with pytest.raises(ValueError, match=r"the prior is \[13, 7\]"):
        fit.solved(prior.T)
    with pytest.raises(ValueError, match="at least 0, not -1"):
        fit.solved(prior, ridge=-1)
    key, known = drawn(DIMS, WIDTH), inputs_of(x())
    with pytest.raises(ValueError, match="13 rows of queries"):
        refit_query(drawn(13, WIDTH), key, key, known)
    for other in (key[1:], key[2:]):
        with pytest.raises(ValueError, match="no rotary pairs in common"):
            refit_turned_query(drawn(12, WIDTH), key, other, known)
    with pytest.raises(ValueError, match="no rotary pairs in common"):
        refit_turned_query(drawn(15, WIDTH), key[1:], key[1:], known)


def score_error(query_HDM, new_HCM, key_DM, other_CM, turn=lambda z_ND, distance: z_ND, distances=1):
    """E (q'·k' − q·k)² over all pairs of tokens, and all distances between them."""
    error = 0.0
    for distance in range(distances):
        key_ND, other_NC = (turn(x() @ weight.T, distance) for weight in (key_DM, other_CM))
        was, now = (
            torch.einsum("nm,hdm,sd->hns", x(), by_head, keys)
            for by_head, keys in ((query_HDM, key_ND), (new_HCM, other_NC))
        )
        error += float((now - was).square().mean()) / distances
    return error


@pytest.mark.parametrize("dims", [OTHER, DIMS, 2 * DIMS])
def test_no_query_has_scores_nearer_to_the_old_keys(dims):
    """Of any linear map of the inputs, for keys of fewer, as many, or more numbers, and on keys with a mean."""
    query, key, other = drawn(QUERIES * DIMS, WIDTH), drawn(DIMS, WIDTH, seed=1), drawn(dims, WIDTH, seed=2)
    if dims > DIMS:
        other = torch.cat([other[:DIMS], other[:DIMS]])  # of less rank than numbers
    new = refit_query(query, key, other, inputs_of(x())).unflatten(0, (QUERIES, -1))
    assert new.shape == (QUERIES, dims, WIDTH)
    by_head = query.unflatten(0, (QUERIES, -1))
    least = score_error(by_head, new, key, other)
    assert all(score_error(by_head, near(new, seed, 1e-2), key, other) > least for seed in range(30))


def test_queries_of_equal_keys_stay():
    query, key, known = drawn(QUERIES * DIMS, WIDTH), drawn(DIMS, WIDTH, seed=1), inputs_of(x())
    torch.testing.assert_close(refit_query(query, key, key, known), query)
    torch.testing.assert_close(refit_turned_query(query, key, key, known), query)
    mixed = drawn(DIMS, DIMS, seed=3)
    torch.testing.assert_close(
        refit_query(query, key, mixed @ key, known), (torch.linalg.inv(mixed).T @ _heads(query)).flatten(0, 1)
    )
    content = drawn(DIMS + 3, WIDTH, seed=4)  # a latent that holds the key
    up = drawn(DIMS, DIMS + 3, seed=5)
    torch.testing.assert_close(refit_query(query, up @ content, content, known), (up.T @ _heads(query)).flatten(0, 1))


def _heads(query):
    return query.unflatten(0, (QUERIES, DIMS))


def turned(z_ND, distance):
    """By whole turns per DISTANCES, i with i + D/2."""
    angle = torch.tensor(TURNS, dtype=torch.float64) * (2 * torch.pi * distance / DISTANCES)
    real, imag = z_ND.chunk(2, dim=1)
    return torch.cat([real * angle.cos() - imag * angle.sin(), imag * angle.cos() + real * angle.sin()], dim=1)


def complex_times(factor_P, query_HDM):
    """One complex number for each pair, written out; [H, D, M]."""
    real, imag = query_HDM.chunk(2, dim=1)
    a, b = factor_P.real[:, None], factor_P.imag[:, None]
    return torch.cat([a * real - b * imag, a * imag + b * real], dim=1)


def test_no_complex_number_has_turned_scores_nearer_to_the_old_keys():
    query, key, other = drawn(QUERIES * DIMS, WIDTH), drawn(DIMS, WIDTH, seed=1), drawn(DIMS, WIDTH, seed=2)
    new = _heads(refit_turned_query(query, key, other, inputs_of(x())))
    by_head = _heads(query)
    least = score_error(by_head, new, key, other, turned, DISTANCES)
    assert least < score_error(by_head, by_head, key, other, turned, DISTANCES)
    for seed in range(12):
        pair = drawn(DIMS // 2, 2, seed=seed) * 1e-2
        moved = complex_times(1 + torch.complex(pair[:, 0], pair[:, 1]), new)
        assert score_error(by_head, moved, key, other, turned, DISTANCES) > least


def test_turned_queries_follow_keys_that_were_turned_and_stretched():
    """k' is k by a complex number per pair: nothing is lost, at any distance; a pair without a key asks nothing."""
    query, key = drawn(QUERIES * DIMS, WIDTH), drawn(DIMS, WIDTH, seed=1)
    factor = torch.complex(drawn(DIMS // 2, seed=2), drawn(DIMS // 2, seed=3))
    other = complex_times(factor, key[None])[0]
    new = _heads(refit_turned_query(query, key, other, inputs_of(x())))
    torch.testing.assert_close(new, complex_times(1 / factor.conj(), _heads(query)))
    assert score_error(_heads(query), new, key, other, turned, 3) == pytest.approx(0, abs=1e-20)
    other[[1, 1 + DIMS // 2]] = 0
    without = _heads(refit_turned_query(query, key, other, inputs_of(x())))
    assert not without[:, [1, 1 + DIMS // 2]].any()
    torch.testing.assert_close(without[:, 0], new[:, 0])
