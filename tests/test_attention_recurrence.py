"""Linear attention: three forms that say the same, to gradients; padding, groups, precision, constant state."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from twofold.attention.recurrence import (
    RELU_OFFSET,
    chunked,
    elu_plus_one,
    no_state,
    quadratic,
    relu_plus_offset,
    step,
)

MAPS = (elu_plus_one, relu_plus_offset)
KEY, VALUE = 7, 5  # widths
GROUPS = ((6, 6), (6, 2), (6, 1))  # query and key/value heads

maps = pytest.mark.parametrize("features", MAPS)
grouped = pytest.mark.parametrize(("heads", "kv_heads"), GROUPS)


def inputs(length, heads=6, kv_heads=2, batch=2, dtype=torch.float64, key=KEY, value=VALUE):
    sizes = ((heads, key), (kv_heads, key), (kv_heads, value))
    return [torch.randn(batch, count, length, width, dtype=dtype) for count, width in sizes]


def padded(batch, length, padding):
    real = torch.ones(batch, length, dtype=torch.bool)
    for sequence, missing in enumerate(padding):
        real[sequence, :missing] = False
    return real


def in_parts(form, parts, query, key, value, features, real=None):
    """What `form` reads part by part, from state to state, and the last state."""
    read, state, start = [], None, 0
    for tokens in parts:
        at = slice(start, start + tokens)
        seen = None if real is None else real[:, at]
        new, state = form(query[:, :, at], key[:, :, at], value[:, :, at], features, state, seen)
        read.append(new)
        start += tokens
    return torch.cat(read, dim=1), state


def token_by_token(query, key, value, features):
    """S, z and y of the equations, vector by vector."""
    batch, heads, length, _ = query.shape
    read = torch.empty(batch, length, heads, value.shape[-1], dtype=query.dtype)
    for b in range(batch):
        for h in range(heads):
            g = h * key.shape[1] // heads
            S, z = torch.zeros(query.shape[-1], value.shape[-1], dtype=query.dtype), 0
            for t in range(length):
                phi = features(key[b, g, t])
                S, z = S + torch.outer(phi, value[b, g, t]), z + phi
                read[b, t, h] = features(query[b, h, t]) @ S / (features(query[b, h, t]) @ z)
    return read


@maps
@grouped
def test_every_form_is_the_recurrence_of_the_paper(features, heads, kv_heads):
    qkv = inputs(13, heads, kv_heads)
    expected = token_by_token(*qkv, features)
    for read in (
        quadratic(*qkv, features),
        chunked(*qkv, features, chunk=5)[0],
        step(*qkv, features)[0],
        in_parts(step, [1] * 13, *qkv, features)[0],
    ):
        torch.testing.assert_close(read, expected, rtol=0, atol=1e-13)


@given(
    length=st.integers(1, 47),
    chunk=st.integers(1, 50),
    groups=st.sampled_from(GROUPS),
    features=st.sampled_from(MAPS),
    padding=st.tuples(st.integers(0, 47), st.integers(0, 47)),
    cuts=st.lists(st.integers(1, 46), max_size=3),
)
def test_any_chunks_parts_and_padding_read_the_same(length, chunk, groups, features, padding, cuts):
    qkv, real = inputs(length, *groups), padded(2, length, padding)
    edges = [0, *sorted({cut for cut in cuts if cut < length}), length]
    parts = [end - start for start, end in pairwise(edges)]
    expected = quadratic(*qkv, features, real)

    def in_chunks(*args):
        return chunked(*args, chunk=chunk)

    for form in (in_chunks, step):
        whole, state = form(*qkv, features, None, real)
        cut, same_state = in_parts(form, parts, *qkv, features, real)
        torch.testing.assert_close(whole, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(state, same_state, rtol=0, atol=1e-11)
        first = real.int().argmax(dim=1)
        for b in range(2):  # a padded position may read what a later part's state holds, and nobody looks at it
            torch.testing.assert_close(cut[b, first[b] :], expected[b, first[b] :], rtol=0, atol=1e-12)


@maps
@grouped
def test_gradients_agree_and_reach_the_state(features, heads, kv_heads):
    length, real = 23, padded(2, 23, (4, 0))
    leaves = [part.requires_grad_() for part in inputs(length, heads, kv_heads)]
    towards = torch.randn(2, length, heads, VALUE, dtype=torch.float64)

    def gradients(read):
        return torch.autograd.grad((read * towards).sum(), leaves)

    expected = gradients(quadratic(*leaves, features, real))
    assert all(bool(gradient.isfinite().all()) for gradient in expected)
    for read in (
        chunked(*leaves, features, real_BT=real, chunk=7)[0],
        step(*leaves, features, real_BT=real)[0],
        in_parts(step, [1] * length, *leaves, features, real)[0],
        in_parts(lambda *args: chunked(*args, chunk=3), [11, 12], *leaves, features, real)[0],
    ):
        for found, gradient in zip(gradients(read), expected, strict=True):
            torch.testing.assert_close(found, gradient, rtol=0, atol=1e-11)


@given(
    lengths=st.lists(st.integers(1, 17), min_size=1, max_size=6),
    chunk=st.integers(1, 40),
    groups=st.sampled_from(GROUPS),
    features=st.sampled_from(MAPS),
)
def test_documents_read_what_each_reads_alone(lengths, chunk, groups, features):
    """With all gradients; the state before belongs to the first, and the last one's is the state after."""
    leaves, before = [part.requires_grad_() for part in inputs(sum(lengths), *groups)], inputs(3, *groups)
    _, state = chunked(*before, features)
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).expand(2, -1)
    together, after = chunked(*leaves, features, state, chunk=chunk, documents_BT=numbers)
    alone, state_alone, start = [], state, 0
    for length in lengths:
        read, state_alone = step(*(part[:, :, start : start + length] for part in leaves), features, state_alone)
        alone.append(read)
        last, state_alone, start = state_alone, None, start + length
    torch.testing.assert_close(together, torch.cat(alone, dim=1), rtol=0, atol=1e-12)
    torch.testing.assert_close(after, last, rtol=0, atol=1e-11)
    towards = torch.randn_like(together)
    found = torch.autograd.grad((together * towards).sum() + after.sum(), leaves)
    expected = torch.autograd.grad((torch.cat(alone, dim=1) * towards).sum() + last.sum(), leaves)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    fresh, _ = chunked(*leaves, features, chunk=chunk, documents_BT=numbers)
    torch.testing.assert_close(fresh, quadratic(*leaves, features, documents_BT=numbers), rtol=0, atol=1e-12)


def test_gradients_by_differences():
    leaves = [part.requires_grad_() for part in inputs(5, batch=1, heads=2, kv_heads=1, key=3, value=2)]
    state = torch.rand(1, 1, 3, 3, dtype=torch.float64).requires_grad_()
    for features in MAPS:
        assert torch.autograd.gradcheck(
            lambda *args, f=features: chunked(*args[:3], f, args[3], chunk=2), (*leaves, state)
        )


@maps
def test_a_padded_sequence_reads_what_it_reads_alone(features):
    query, key, value = inputs(19, batch=1)
    alone, state_alone = chunked(query, key, value, features, chunk=4)
    missing = 6
    wide = [torch.cat([torch.full_like(part[:, :, :missing], 1e3), part], dim=2) for part in (query, key, value)]
    real = padded(1, 19 + missing, (missing,))
    for read, state in (chunked(*wide, features, None, real, 4), step(*wide, features, None, real)):
        torch.testing.assert_close(read[:, missing:], alone, rtol=0, atol=1e-13)
        torch.testing.assert_close(state, state_alone, rtol=0, atol=1e-12)
        assert not read[:, :missing].any(), "nothing was there to read"


def test_padding_alone_leaves_a_state_as_it_is():
    qkv = inputs(11)
    _, state = chunked(*qkv, elu_plus_one)
    nothing = torch.zeros(2, 11, dtype=torch.bool)
    for form in (step, lambda *args: chunked(*args, chunk=4)):
        _, after = form(*qkv, elu_plus_one, state, nothing)
        assert torch.equal(after, state)


@maps
def test_what_is_read_is_a_mean(features):
    query, key, _ = inputs(31)
    value = torch.full((2, 2, 31, VALUE), 3.7, dtype=torch.float64)
    read, _ = chunked(query, key, value, features, chunk=8)
    torch.testing.assert_close(read, torch.full_like(read, 3.7), rtol=1e-13, atol=0)


def test_one_matrix_for_all_roles():
    """Q=K=V, MHA: the state-space model whose read-out is its own input, with one gradient for the one tensor."""
    z = torch.randn(2, 3, 17, KEY, dtype=torch.float64, requires_grad=True)
    towards = torch.randn(2, 17, 3, KEY, dtype=torch.float64)
    (expected,) = torch.autograd.grad((quadratic(z, z, z, elu_plus_one) * towards).sum(), z)
    (found,) = torch.autograd.grad((chunked(z, z, z, elu_plus_one, chunk=5)[0] * towards).sum(), z)
    roles = [z.detach().clone().requires_grad_() for _ in range(3)]
    apart = torch.autograd.grad((chunked(*roles, elu_plus_one, chunk=5)[0] * towards).sum(), roles)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(found, sum(apart), rtol=0, atol=1e-12)


# Feature maps ---------------------------------------------------------------------------------------------------


def test_feature_maps_are_those_of_the_papers():
    x = torch.linspace(-9, 9, 101, dtype=torch.float64)
    torch.testing.assert_close(elu_plus_one(x), torch.nn.functional.elu(x) + 1, rtol=0, atol=1e-15)
    torch.testing.assert_close(relu_plus_offset(x), x.clamp(min=0) + RELU_OFFSET, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@maps
def test_no_denominator_vanishes(features, dtype):
    """Keys of −30 lie where 1 + elu rounds to 0 in float32: all features are equal, and the values' mean is read."""
    query, key, value = inputs(13, dtype=dtype)
    low = torch.full_like(key, -30.0)
    read, state = chunked(query - 30, low, value, features, chunk=5)
    means = value.double().cumsum(dim=2) / torch.arange(1, 14)[:, None]
    expected = means.repeat_interleave(3, dim=1).transpose(1, 2)
    torch.testing.assert_close(read.double(), expected, rtol=0, atol=1e-6 if dtype == torch.float32 else 2e-2)
    assert bool((state[..., -1] > 0).all())


def test_the_gradient_at_far_negative_numbers_is_finite():
    x = torch.tensor([-1e4, -30.0, 0.0, 1e4], requires_grad=True)
    elu_plus_one(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([0.0, torch.tensor(-30.0).exp().item(), 1.0, 1.0]))


# Precision and memory -------------------------------------------------------------------------------------------


@maps
def test_float32_stays_close_at_ten_thousand_tokens(features):
    qkv = inputs(10_000, heads=4, kv_heads=2, batch=1, dtype=torch.float32, key=32, value=32)
    expected, expected_state = chunked(*(part.double() for part in qkv), features)
    for read, state in (chunked(*qkv, features), in_parts(step, [8] * 1250, *qkv, features)):
        late = slice(9_000, None)
        assert (read[:, late] - expected[:, late]).abs().max() < 1e-5 * expected[:, late].abs().max()
        assert (read - expected).abs().max() < 3e-6
        assert (state - expected_state).abs().max() < 1e-4 * expected_state.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes_sum_in_float32(dtype):
    """The result is that of the same numbers in float32, rounded once; under autocast as well, to the bit."""
    qkv = inputs(1_000, dtype=dtype)
    wide = [part.float() for part in qkv]
    for form in (chunked, step):
        expected, expected_state = form(*wide, elu_plus_one)
        for autocast in (False, True):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                read, state = form(*qkv, elu_plus_one)
            assert read.dtype == dtype
            assert state.dtype == torch.float32
            assert torch.equal(read, expected.to(dtype))
            assert torch.equal(state, expected_state)


@pytest.mark.parametrize("length", [1, 64, 65, 631])
def test_a_state_is_one_compact_tensor_of_constant_size(length):
    qkv = inputs(length, dtype=torch.float32)
    before = no_state(*qkv[1:])
    _, state = chunked(*qkv, elu_plus_one, before)
    assert state.shape == (2, 2, KEY, VALUE + 1)
    assert state.untyped_storage().nbytes() == 2 * 2 * KEY * (VALUE + 1) * 4
    assert not before.any(), "the state before is left as it was"


def test_queries_of_a_group_read_one_state():
    """No tensor of the forward pass holds a state for each query head."""
    qkv, largest = inputs(40, heads=12, kv_heads=1, batch=1, key=29, value=31), 0

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            made = func(*args, **(kwargs or {}))
            if isinstance(made, torch.Tensor) and made.shape[-2:] == (29, 32):
                largest = max(largest, made.untyped_storage().nbytes())
            return made

    with Watch():
        chunked(*qkv, elu_plus_one, chunk=10)
    assert 0 < largest <= 5 * 29 * 32 * 8  # the states before the four chunks, and the last


def test_shapes_without_memory():
    with torch.device("meta"):
        read, state = chunked(*inputs(131, dtype=torch.float32), elu_plus_one)
    assert read.shape == (2, 131, 6, VALUE)
    assert state.shape == (2, 2, KEY, VALUE + 1)
