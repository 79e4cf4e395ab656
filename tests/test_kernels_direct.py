"""What reads memory past torch's dispatcher gives way to tracers, transforms, tangents and negated views."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from decode_steps import LAYOUTS, make
from twofold.kernels import direct, native
from twofold.kernels.decode import decode_attention
from twofold.kernels.matvec import matvec

pytestmark = [
    pytest.mark.skipif(not native.AVAILABLE, reason=native.why_not() or "built"),
    pytest.mark.filterwarnings("ignore:.torch.jit.*deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),  # of sizes, which a trace fixes
]
LIMITS = {"starts_B": torch.tensor([3, 0]), "lengths_B": torch.tensor([31, 29]), "window": 17}
TURNS = {"frequencies": torch.tensor([1.0, 0.1]), "first_position": 5, "softcap": 7.0}


def case(dtype=torch.float32, layout="K=V"):
    return make(LAYOUTS[layout], batch=2, groups=3, per_group=5, positions=2, rows=31, dtype=dtype, seed=1)


@pytest.fixture(params=[{}, LIMITS, LIMITS | TURNS], ids=["bare", "limits", "turns"])
def attention(request):
    """Attention over fixed options, of queries and rows."""
    options = case().arguments(**request.param)[1]

    def call(query, heads):
        return decode_attention(query, heads, **options)

    return call


def matrix(x, weight):
    return matvec(weight, x)


def products():
    return (torch.randn(2, 1289), torch.randn(1031, 1289))  # of a size that "auto" takes


class TestTracers:
    """A trace made with some numbers is right for others."""

    def test_a_jit_trace(self, attention):
        of = case()
        traced = torch.jit.trace(attention, (of.query, of.heads), check_trace=False)
        others = of.query.flip(0), of.heads.flip(2)
        torch.testing.assert_close(traced(*others), attention(*others), rtol=0, atol=1e-5)

    def test_make_fx(self, attention):
        of = case()
        graph = make_fx(attention)(of.query, of.heads)
        others = of.query.flip(0), of.heads.flip(2)
        torch.testing.assert_close(graph(*others), attention(*others), rtol=0, atol=1e-5)

    def test_products(self):
        for made in (torch.jit.trace(matrix, products(), check_trace=False), make_fx(matrix)(*products())):
            others = products()
            torch.testing.assert_close(made(*others), matrix(*others), rtol=1e-4, atol=1e-3)

    def test_a_path_by_name_is_refused(self):
        of = case()
        with pytest.raises(ValueError, match="mode or transform"):
            torch.jit.trace(lambda q, h: decode_attention(q, h, path="native", **of.options), (of.query, of.heads))
        with pytest.raises(ValueError, match="mode or transform"):
            torch.jit.trace(lambda x, w: matvec(w, x, path="native"), products())


class TestTransforms:
    def tangent(self, attention, of, turn):
        """By central differences in float64."""
        query, heads, step = of.query.double(), of.heads.double(), 1e-6 * turn.double()
        return ((attention(query + step, heads) - attention(query - step, heads)) / 2e-6).float()

    def test_a_dual_number_keeps_its_tangent(self, attention):
        of, turn = case(), torch.randn(2, 15, 2, 40)
        with forward_ad.dual_level():
            out = attention(forward_ad.make_dual(of.query, turn), of.heads)
            tangent = forward_ad.unpack_dual(out).tangent
        torch.testing.assert_close(tangent, self.tangent(attention, of, turn), rtol=0, atol=1e-5)

    def test_jvp(self, attention):
        of, turn = case(), torch.randn(2, 15, 2, 40)
        out, tangent = torch.func.jvp(lambda query: attention(query, of.heads), (of.query,), (turn,))
        torch.testing.assert_close(out, attention(of.query, of.heads), rtol=0, atol=1e-5)
        torch.testing.assert_close(tangent, self.tangent(attention, of, turn), rtol=0, atol=1e-5)

    def test_vmap(self, attention):
        of = case()
        queries = torch.randn(3, 2, 15, 2, 40)
        rows = torch.stack([of.heads, of.heads.flip(2), of.heads.flip(0)])
        wanted = torch.stack([attention(*pair) for pair in zip(queries, rows, strict=True)])
        torch.testing.assert_close(torch.vmap(attention)(queries, rows), wanted, rtol=0, atol=1e-5)


class TestNegatedViews:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
    def test_of_attention(self, dtype):
        of = case(dtype, "decoupled")
        options = of.arguments(frequencies=torch.tensor([1.0, 0.1]), starts_B=torch.tensor([3, 0]))[1]
        tensors = {"query_BHTD": of.query, "heads_BGSW": of.heads, "shared_BSW": of.shared, **options}
        for name in ("query_BHTD", "heads_BGSW", "shared_BSW", "frequencies", "scales_BGS", "shared_scales_BS"):
            if name in tensors and tensors[name].is_floating_point():
                wanted = decode_attention(**{**tensors, name: -tensors[name]})
                got = decode_attention(**{**tensors, name: torch._neg_view(tensors[name])})
                torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)

    def test_of_products(self):
        x, weight = products()
        bias = torch.randn(1031)
        for x_, weight_, bias_ in ((-x, weight, bias), (x, -weight, bias), (x, weight, -bias)):
            views = [torch._neg_view(-a) if a is not b else a for a, b in ((x_, x), (weight_, weight), (bias_, bias))]
            assert sum(view.is_neg() for view in views) == 1
            right = F.linear(x_, weight_, bias_)
            torch.testing.assert_close(matvec(views[1], views[0], views[2]), right, rtol=1e-4, atol=1e-3)
            assert torch.equal(torch.ops.twofold.matvec(views[1], views[0], views[2]) > 0, right > 0)


def test_gradients_of_frequencies_and_scales():
    of = case(torch.int8)
    scales = of.options["scales_BGS"].clone().requires_grad_()
    frequencies = torch.tensor([1.0, 0.1], requires_grad=True)
    options = {**of.options, "scales_BGS": scales, "frequencies": frequencies}
    found = torch.autograd.grad(decode_attention(of.query, of.heads, **options).square().sum(), (scales, frequencies))
    assert all(bool(grad.isfinite().all()) and bool(grad.any()) for grad in found)


def test_no_query_heads_read_nothing():
    of = case()
    assert decode_attention(of.query[:, :0], of.heads, **of.options).shape == (2, 0, 2, 40)


def test_nothing_stands_in_the_way_of_plain_numbers():
    assert direct.obstacle(torch.ones(3), None) == ""
    assert not direct.watched()
