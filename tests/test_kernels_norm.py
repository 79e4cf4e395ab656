"""RMSNorm for decoding: an `nn.RMSNorm` in every respect, held to float64."""

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrize

from test_kernels_matvec import isas
from twofold.kernels import native, per_token
from twofold.kernels.norm import DecodeRMSNorm, use_decode_norm

needs_native = pytest.mark.skipif(not native.AVAILABLE, reason="the native library is not built here")
ROUNDING = {torch.float32: 2.0**-21, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}
SUBNORMAL = {torch.float32: 0, torch.bfloat16: 0, torch.float16: 2.0**-24}
dtypes = st.sampled_from(list(ROUNDING))


@pytest.fixture
def calls(monkeypatch):
    """The vectors that the native norm got."""
    counted = []
    norm = per_token.rms_norm
    monkeypatch.setattr(per_token, "rms_norm", lambda *a: counted.append(a) or norm(*a))
    return counted


def norm(width, dtype=torch.float32):
    layer = DecodeRMSNorm(width, eps=1e-5).to(dtype).requires_grad_(False)
    layer.weight.copy_(torch.randn(width))
    return layer


def exact(x, weight, epsilon):
    x = x.double()
    return x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight.double()


def assert_close(got, x, weight, epsilon):
    right = exact(x, weight, epsilon)
    assert got.dtype == x.dtype
    assert got.shape == x.shape
    assert bool(((got.double() - right).abs() <= ROUNDING[x.dtype] * right.abs() + SUBNORMAL[x.dtype]).all())


def torchs(layer, x):
    return nn.RMSNorm.forward(layer, x)


@needs_native
@given(
    width=st.integers(1, 300),
    vectors=st.integers(1, 5),
    dtype=dtypes,
    size=st.sampled_from([1e-3, 1.0, 37.0]),
    epsilon=st.sampled_from([1e-5, 1e-6, 1.0]),
    isa=st.sampled_from(isas() or ["none"]),
)
def test_every_width_and_dtype_equals_float64(width, vectors, dtype, size, epsilon, isa):
    x, weight = (torch.randn(vectors, width) * size).to(dtype), torch.randn(width).to(dtype)
    with native.use_isa(isa):
        assert_close(per_token.rms_norm(x, weight, epsilon), x, weight, epsilon)


@needs_native
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("shape", [(37,), (1, 37), (3, 1, 37), (2, 5, 37)])
def test_few_vectors_take_the_native_norm(calls, dtype, shape):
    layer, x = norm(37, dtype), torch.randn(shape).to(dtype)
    assert_close(layer(x), x, layer.weight, 1e-5)
    assert len(calls) == 1


@needs_native
def test_many_vectors_and_none_are_torchs(calls):
    layer = norm(37)
    for x in (torch.randn(2**15 // 37 + 1, 37), torch.randn(0, 37)):
        assert torch.equal(layer(x), torchs(layer, x))
    assert not calls


@needs_native
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf, 3e38])
def test_what_is_not_finite_becomes_what_it_becomes_in_torch(calls, dtype, wrong):
    layer, x = norm(29, dtype), torch.randn(3, 29)
    x[1, 4] = wrong
    x[2] = 0
    x = x.to(dtype)
    torch.testing.assert_close(layer(x), torchs(layer, x), equal_nan=True)
    assert bool((layer(x)[2] == 0).all())
    assert len(calls) == 2


@needs_native
def test_any_strides(calls):
    layer, x = norm(23), torch.randn(2, 23, 3).mT
    assert not x.is_contiguous()
    assert_close(layer(x), x, layer.weight, 1e-5)
    wide = torch.randn(2, 3, 46)[..., ::2]
    assert_close(layer(wide), wide, layer.weight, 1e-5)
    layer.weight = nn.Parameter(torch.randn(46)[::2], requires_grad=False)
    assert_close(layer(wide), wide, layer.weight, 1e-5)
    assert len(calls) == 3


@needs_native
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # torch's own
def test_what_the_native_norm_does_not_know_is_torchs(calls):
    x = torch.randn(2, 23)
    no_epsilon, no_weight = DecodeRMSNorm(23), DecodeRMSNorm(23, eps=1e-5, elementwise_affine=False)
    two_dims, wide = DecodeRMSNorm((2, 23), eps=1e-5), norm(23, torch.float64)
    for layer, given_x in ((no_epsilon, x), (no_weight, x), (two_dims, x), (wide, x.double())):
        layer.requires_grad_(False)
        assert torch.equal(layer(given_x), torchs(layer, given_x))
    mixed = norm(23, torch.bfloat16)
    assert torch.equal(mixed(x), torchs(mixed, x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer = norm(23)
        assert layer(x.bfloat16()).dtype == torchs(layer, x.bfloat16()).dtype
        assert layer(x).dtype == torchs(layer, x).dtype
    assert not calls
    for wrong in (torch.randn(2, 22), torch.tensor(1.0)):
        with pytest.raises((RuntimeError, ValueError)):
            norm(23)(wrong)


@needs_native
def test_gradients_are_torchs(calls):
    layer, x = norm(23).requires_grad_(True), torch.randn(3, 23, requires_grad=True)
    got = torch.autograd.grad(layer(x).square().sum(), [x, layer.weight])
    right = torch.autograd.grad(torchs(layer, x).square().sum(), [x, layer.weight])
    assert all(torch.equal(a, b) for a, b in zip(got, right, strict=True))
    layer(x.detach()).sum().backward()
    layer.requires_grad_(False)(x).sum().backward()  # a frozen weight, as under an adapter
    assert not calls
    layer(x.detach())
    with torch.no_grad():
        layer.requires_grad_(True)(x)
    assert len(calls) == 2


@needs_native
@pytest.mark.filterwarnings("ignore:.torch.jit.*deprecated:DeprecationWarning")
def test_modes_transforms_and_negated_views_see_torchs_operations(calls):
    layer, x, turn = norm(23), torch.randn(3, 2, 23), torch.randn(3, 2, 23)
    right = torchs(layer, x)
    torch.testing.assert_close(torch.vmap(layer)(x), right)
    _, turned = torch.func.jvp(layer, (x,), (turn,))
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, turn))).tangent
    torch.testing.assert_close(tangent, turned)
    slope = (torchs(layer.double(), x.double() + 1e-6 * turn) - torchs(layer, x.double() - 1e-6 * turn)) / 2e-6
    torch.testing.assert_close(turned, slope.float(), rtol=1e-3, atol=1e-4)
    layer = layer.float()
    assert "twofold" not in make_fx(layer)(x).code
    traced = torch.jit.trace(layer, x, check_trace=False)
    torch.testing.assert_close(traced(turn), torchs(layer, turn))
    torch.testing.assert_close(layer(torch._neg_view(x)), torchs(layer, -x))
    assert not calls


@needs_native
def test_a_compiled_norm_and_an_exported_one_hold_torchs_operations(calls):
    layer, x = norm(23), torch.randn(2, 23)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), torchs(layer, x))
    exported = torch.export.export(layer, (x,))
    torch.testing.assert_close(exported.module()(x), torchs(layer, x))
    assert "twofold" not in exported.graph_module.code
    assert not calls


def test_switching_changes_the_class_and_nothing_else():
    class Special(nn.RMSNorm):
        pass

    net = nn.Sequential(nn.RMSNorm(13, eps=1e-5), nn.Linear(13, 13), nn.RMSNorm(13, eps=1e-5), Special(13))
    identities, names, heard = [id(p) for p in net.parameters()], list(net.state_dict()), []
    net[0].register_forward_hook(lambda *a: heard.append(1))
    x = torch.randn(1, 13)
    before = net(x)
    assert use_decode_norm(net) == 2
    assert use_decode_norm(net) == 0
    assert [type(layer) for layer in net] == [DecodeRMSNorm, nn.Linear, DecodeRMSNorm, Special]
    assert ([id(p) for p in net.parameters()], list(net.state_dict())) == (identities, names)
    with torch.no_grad():
        torch.testing.assert_close(net(x), before)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net[2]))):
        assert isinstance(twin if isinstance(twin, nn.RMSNorm) else twin[0], DecodeRMSNorm)
    assert use_decode_norm(net, enabled=False) == 2
    assert type(net[0]) is nn.RMSNorm
    assert torch.equal(net(x), before)
    assert heard == [1, 1, 1]


def test_a_parametrised_weight_is_used():
    class Doubled(nn.Module):
        def forward(self, weight):
            return 2 * weight

    layer, x = norm(23), torch.randn(2, 23)
    right = 2 * torchs(layer, x)
    parametrize.register_parametrization(layer, "weight", Doubled())
    torch.testing.assert_close(layer(x), right)


def test_without_the_library_it_is_torchs(monkeypatch):
    monkeypatch.setattr(native, "AVAILABLE", False)
    layer, x = norm(23), torch.randn(2, 23)
    assert torch.equal(layer(x), torchs(layer, x))
