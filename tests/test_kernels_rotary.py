"""Turning by positions: the native path and torch's, held to complex numbers in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from test_kernels_matvec import isas
from twofold.kernels import native, per_token
from twofold.kernels.rotary import turn

needs_native = pytest.mark.skipif(not native.AVAILABLE, reason="the native library is not built here")
# Torch's operations round three times to the dtype, the native path once.
ROUNDING = {torch.float32: 2.0**-22, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9, torch.float64: 2.0**-50}


@pytest.fixture
def calls(monkeypatch):
    """What the native path got."""
    counted = []
    native_turn = per_token.turn
    monkeypatch.setattr(per_token, "turn", lambda *a: counted.append(a) or native_turn(*a))
    return counted


def angles(batch, positions, turned, dtype=torch.float32):
    """Cosines and signed sines [B, T, 1, r] of random angles."""
    by = torch.rand(batch, positions, 1, turned // 2, dtype=torch.float64) * 100
    cos, sin = by.cos().to(dtype), by.sin().to(dtype)
    return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


def exact(x, cos, sin, sign):
    """By complex multiplication, with the given cosines and sines."""
    half = cos.shape[-1] // 2
    x, unit = x.double(), torch.complex(cos[..., :half].double(), sign * sin[..., half:].double())
    turned = torch.complex(x[..., :half], x[..., half : 2 * half]) * unit
    return torch.cat([turned.real, turned.imag, x[..., 2 * half :]], -1)


def assert_close(got, x, cos, sin, sign):
    right = exact(x, cos, sin, sign)
    assert got.dtype == x.dtype
    assert got.shape == x.shape
    half = cos.shape[-1] // 2
    length = torch.hypot(x.double()[..., :half], x.double()[..., half : 2 * half])
    bound = torch.cat([length, length, torch.zeros_like(right[..., 2 * half :])], -1)
    assert bool(((got.double() - right).abs() <= ROUNDING[x.dtype] * bound + 1e-7 * (x.dtype is torch.float16)).all())


@needs_native
@given(
    batch=st.integers(1, 3),
    positions=st.integers(1, 4),
    heads=st.integers(1, 5),
    pairs=st.integers(1, 40),
    rest=st.sampled_from([0, 1, 7, 24]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    alike=st.booleans(),
    sign=st.sampled_from([1, -1]),
    isa=st.sampled_from(isas() or ["none"]),
)
def test_every_shape_and_dtype_equals_float64(batch, positions, heads, pairs, rest, dtype, alike, sign, isa):
    x = torch.randn(batch, positions, heads, 2 * pairs + rest).to(dtype)
    cos, sin = angles(1 if alike else batch, positions, 2 * pairs, dtype)
    with native.use_isa(isa):
        assert_close(per_token.turn(x, cos, sin, sign), x, cos, sin, sign)
    many = x.repeat(1, 1, 2**15 // x.numel() + 1, 1)
    assert_close(turn(many, cos, sin, sign), many, cos, sin, sign)


@needs_native
def test_any_strides_of_few_positions_are_read_natively(calls):
    cos, sin = angles(3, 2, 10)
    whole = torch.randn(3, 7, 2, 30)
    for x in (whole.transpose(1, 2), whole.transpose(1, 2)[..., 3:17], torch.randn(3, 2, 5, 28)[..., ::2]):
        assert_close(turn(x, cos, sin), x, cos, sin, 1)
        assert turn(x, cos, sin).is_contiguous()
    spaced = (torch.stack([cos, cos], -1)[..., 0], torch.stack([sin, sin], -1)[..., 1])
    assert not spaced[0].is_contiguous()
    assert_close(turn(whole.transpose(1, 2), *spaced), whole.transpose(1, 2), cos, sin, 1)
    assert len(calls) == 7


@needs_native
def test_turning_back_is_the_inverse(calls):
    x, by = torch.randn(2, 1, 3, 40), angles(1, 1, 16)
    torch.testing.assert_close(turn(turn(x, *by), *by, sign=-1), x, rtol=0, atol=1e-6)
    assert torch.equal(turn(x, *by)[..., 16:], x[..., 16:])
    assert len(calls) == 3


@needs_native
def test_other_dtypes_and_shapes_are_torchs(calls):
    x, (cos, sin) = torch.randn(2, 3, 5, 12), angles(1, 3, 12)
    assert_close(turn(x.double(), cos.double(), sin.double()), x.double(), cos.double(), sin.double(), 1)
    assert turn(x.bfloat16(), cos, sin).dtype == torch.bfloat16
    torch.testing.assert_close(turn(x[0], cos, sin), exact(x[:1], cos, sin, 1).float(), rtol=0, atol=1e-5)
    each_head = cos.expand(1, 3, 5, 12), sin.expand(1, 3, 5, 12)
    torch.testing.assert_close(turn(x, *each_head), exact(x, cos, sin, 1).float(), rtol=0, atol=1e-5)
    first = cos[:, :1], sin[:, :1]
    torch.testing.assert_close(turn(x, *first), exact(x, *first, 1).float(), rtol=0, atol=1e-5)
    assert not calls
    with pytest.raises(RuntimeError):
        turn(x, *angles(1, 2, 12))


@pytest.mark.parametrize("turned", [6, 12])
@pytest.mark.parametrize("sign", [1, -1])
def test_gradients(turned, sign):
    x, (cos, sin) = torch.randn(2, 1, 3, 12, dtype=torch.float64, requires_grad=True), angles(1, 1, turned)
    assert torch.autograd.gradcheck(lambda x: turn(x, cos.double(), sin.double(), sign), x)
    narrow, weights = x.detach().float().requires_grad_(), torch.randn(2, 1, 3, 12)
    (grad,) = torch.autograd.grad((turn(narrow, cos, sin, sign) * weights).sum(), narrow)
    assert_close(grad, weights, cos, sin, -sign)  # a turn is orthogonal


@needs_native
@pytest.mark.filterwarnings("ignore:.torch.jit.*deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of sizes, which a trace fixes
def test_modes_transforms_and_negated_views_see_torchs_operations(calls):
    x, other, (cos, sin) = torch.randn(2, 1, 3, 12), torch.randn(2, 1, 3, 12), angles(1, 1, 8)

    def turned(x):
        return turn(x, cos, sin)

    right, right_other = (exact(given, cos, sin, 1).float() for given in (x, other))
    close = {"rtol": 0, "atol": 1e-5}
    torch.testing.assert_close(torch.vmap(turned)(torch.stack([x, other])), torch.stack([right, right_other]), **close)
    torch.testing.assert_close(torch.func.jvp(turned, (x,), (other,))[1], right_other, **close)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(turned(forward_ad.make_dual(x, other))).tangent
    torch.testing.assert_close(tangent, right_other, **close)
    torch.testing.assert_close(make_fx(turned)(x)(other), right_other, **close)
    torch.testing.assert_close(torch.jit.trace(turned, x, check_trace=False)(other), right_other, **close)
    torch.testing.assert_close(torch.compile(turned, fullgraph=True, backend="eager")(x), right, **close)
    torch.testing.assert_close(turned(torch._neg_view(x)), -right, **close)
    assert not calls


def test_without_the_library_it_is_torchs(monkeypatch):
    monkeypatch.setattr(native, "AVAILABLE", False)
    x, (cos, sin) = torch.randn(2, 1, 3, 12), angles(2, 1, 12)
    assert_close(turn(x, cos, sin, -1), x, cos, sin, -1)
