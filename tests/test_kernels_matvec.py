"""A weight matrix times a few vectors: the native product, and the plain one, held to float64."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from twofold.kernels import native
from twofold.kernels.matvec import MAX_TOKENS, matvec, obstacle

needs_native = pytest.mark.skipif(not native.AVAILABLE, reason="the native library is not built here")
ROUNDING = {torch.float32: 2.0**-22, torch.bfloat16: 2.0**-8}


def isas():
    """The instruction sets that this machine runs."""
    if not native.AVAILABLE:
        return []
    found = []
    for name in ("portable", "avx2", "avx512", "neon"):
        try:
            with native.use_isa(name):
                found.append(native.isa())
        except ValueError:
            pass
    return found


def weights(rows, width, dtype, seed=0, gap=0):
    """A [rows, width] matrix of `dtype` whose rows lie `width + gap` numbers apart, and scales for int8."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.int8:
        whole = torch.randint(-127, 128, (rows, width + gap), generator=generator, dtype=torch.int8)
        return whole[:, :width], torch.rand(rows, generator=generator) + 0.1
    return torch.randn(rows, width + gap, generator=generator).to(dtype)[:, :width], None


def exact(weight, x, bias, scales):
    """The product in float64, and Σ |w| |x| + |b|, which its rounding is relative to."""
    w = weight.double() * (1 if scales is None else scales.double()[:, None])
    b = torch.zeros(len(w), dtype=torch.float64) if bias is None else bias.double()
    return x.double() @ w.T + b, x.double().abs() @ w.abs().T + b.abs()


def assert_close(got, weight, x, bias, scales):
    right, magnitude = exact(weight, x, bias, scales)
    assert got.dtype == x.dtype
    assert got.shape == right.shape
    rounding = right.abs() * (ROUNDING[torch.bfloat16] if x.dtype is torch.bfloat16 else 0)
    assert bool(((got.double() - right).abs() <= 2 * ROUNDING[torch.float32] * magnitude + rounding + 1e-30).all())


@needs_native
@given(
    rows=st.integers(1, 150),
    width=st.integers(1, 300),
    tokens=st.integers(1, MAX_TOKENS),
    weight_dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int8]),
    x_dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    bias_dtype=st.sampled_from([None, torch.float32, torch.bfloat16]),
    gap=st.sampled_from([0, 1, 13]),
    isa=st.sampled_from(isas() or ["none"]),
    seed=st.integers(0, 99),
)
def test_every_shape_and_dtype_equals_float64(rows, width, tokens, weight_dtype, x_dtype, bias_dtype, gap, isa, seed):
    weight, scales = weights(rows, width, weight_dtype, seed, gap)
    x = torch.randn(tokens, width).to(x_dtype)
    bias = None if bias_dtype is None else torch.randn(rows).to(bias_dtype)
    with native.use_isa(isa):
        got = matvec(weight, x, bias, scales, path="native")
    assert_close(got, weight, x, bias, scales)
    assert_close(matvec(weight, x, bias, scales, path="plain"), weight, x, bias, scales)


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("rows", [1031, 2])
def test_large_matrices_on_several_threads_equal_float64(dtype, rows):
    weight, scales = weights(rows, 1289, dtype)
    x = torch.randn(3, 1289)
    try:
        torch.set_num_threads(3)
        several = matvec(weight, x, None, scales, path="native")
    finally:
        torch.set_num_threads(1)
    assert_close(several, weight, x, None, scales)
    assert torch.equal(several, matvec(weight, x, None, scales, path="native"))  # whoever takes which weight rows


@needs_native
@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_surrounds_weights_and_vectors_is_not_read(isa, dtype):
    """NaN behind each weight row and around x and bias must not reach the result."""
    weight, _ = weights(7, 45, dtype, gap=19)
    weight._base[:, 45:] = torch.nan
    x = torch.full((6, 45), torch.nan)
    x[2:5] = torch.randn(3, 45)
    bias = torch.full((9,), torch.nan)
    bias[1:8] = 1.0
    with native.use_isa(isa):
        assert_close(matvec(weight, x[2:5], bias[1:8], path="native"), weight, x[2:5], bias[1:8], None)


@needs_native
def test_nan_and_infinity_arrive_where_torch_has_them():
    weight, _ = weights(5, 19, torch.float32)
    weight[1, 18], weight[2, 3], weight[3, 0] = torch.nan, torch.inf, -torch.inf
    for x in (torch.ones(2, 19), torch.ones(2, 19).bfloat16()):
        got = matvec(weight, x, path="native").float()
        torch.testing.assert_close(got, x.float() @ weight.T, equal_nan=True, rtol=2.0**-7, atol=1e-6)


@needs_native
@given(value=st.floats(width=32, allow_nan=False), below=st.booleans())
def test_bfloat16_results_are_rounded_as_torch_rounds(value, below):
    x = torch.ones(1, 1, dtype=torch.bfloat16)
    weight = torch.tensor([[value]])
    with native.use_isa("portable" if below else native.isa()):
        assert torch.equal(matvec(weight, x, path="native"), weight.bfloat16())


@needs_native
def test_leading_dims_and_strides_of_x():
    weight, _ = weights(11, 13, torch.float32)
    x = torch.randn(13, 2, 2).permute(1, 2, 0)
    assert not x.is_contiguous()
    got = matvec(weight, x, path="native")
    assert got.shape == (2, 2, 11)
    assert_close(got, weight, x, None, None)
    assert_close(matvec(weight, x[0, 0], path="native"), weight, x[0, 0], None, None)
    assert matvec(weight, x[:0]).shape == (0, 2, 11)
    assert matvec(weight[:0], x).shape == (2, 2, 0)
    assert torch.equal(matvec(weight[:, :0], x[..., :0]), torch.zeros(2, 2, 11))
    turned = torch.randn(13, 11).T  # weight rows that are not contiguous
    assert "contiguous" in obstacle(turned, x, forced=True)
    assert_close(matvec(turned, x), turned, x, None, None)


@needs_native
def test_one_weight_row_that_stands_for_all():
    weight = torch.randn(1, 17).expand(6, 17)
    x = torch.randn(2, 17)
    assert_close(matvec(weight, x, path="native"), weight, x, None, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_go_by_torch_and_are_right(dtype):
    weight, x, bias = (torch.randn(*shape).to(dtype).requires_grad_() for shape in ((5, 7), (3, 7), (5,)))
    outer = torch.randn(3, 5).to(dtype)
    got = torch.autograd.grad(matvec(weight, x, bias), (weight, x, bias), outer)
    right = torch.autograd.grad(F.linear(x, weight, bias), (weight, x, bias), outer)
    for a, b in zip(got, right, strict=True):
        assert torch.equal(a, b)


def test_gradients_of_int8_weights_reach_x_and_scales():
    weight, scales = weights(5, 7, torch.int8)
    x, scales = torch.randn(2, 7, dtype=torch.float64, requires_grad=True), scales.requires_grad_()
    outer = torch.randn(2, 5, dtype=torch.float64)
    got_x, got_scales = torch.autograd.grad(matvec(weight, x, None, scales), (x, scales), outer)
    torch.testing.assert_close(got_x, outer @ (weight.double() * scales.double()[:, None]))
    torch.testing.assert_close(got_scales, ((x @ weight.double().T) * outer).sum(0).float())
    assert matvec(weight, x.detach().float(), None, scales).requires_grad


@needs_native
def test_why_torch_serves_instead():
    weight, x, bias = torch.randn(5, 7), torch.randn(2, 7), torch.randn(5)
    here = {"forced": True}
    assert obstacle(weight, x, bias, **here) == ""
    assert "more than 4" in obstacle(weight, torch.randn(MAX_TOKENS + 1, 7), **here)
    assert "CPU" in obstacle(weight.to("meta"), x.to("meta"), **here)
    assert "float16" in obstacle(weight.half(), x, **here)
    assert "float64" in obstacle(weight, x, bias.double(), **here)
    assert "subclass" in obstacle(weight, x.as_subclass(type("Mine", (torch.Tensor,), {})), **here)
    assert obstacle(nn.Parameter(weight), x, **here) == "gradients are wanted"
    assert obstacle(weight, x, bias.clone().requires_grad_(), **here) == "gradients are wanted"
    with torch.no_grad():
        assert obstacle(nn.Parameter(weight), x, **here) == ""
    with pytest.raises(ValueError, match=r"cannot serve: .*more than 4"):
        matvec(weight, torch.randn(5, 7), path="native")


@needs_native
def test_small_matrices_are_left_to_torch():
    def reason(rows, width, tokens, dtype):
        return obstacle(torch.zeros(rows, width, dtype=dtype), torch.zeros(tokens, width, dtype=dtype))

    if native.isa() == "portable":
        assert reason(2048, 1024, 1, torch.float32) == "no vector instructions"
        return
    for dtype in (torch.float32, torch.bfloat16):
        assert "small" in reason(64, 64, 1, dtype)
        assert reason(2048, 1024, 1, dtype) == reason(384, 384, 2, dtype) == ""
    assert "small" in reason(384, 384, 1, torch.float32)
    assert reason(384, 384, 1, torch.bfloat16) == ""
    assert obstacle(torch.zeros(3, 5, dtype=torch.int8), torch.zeros(1, 5), None, torch.ones(3)) == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((5, 7), (2, 8)), r"shape \[5, 7\].*\[2, 8\]"),
        (((5, 7, 1), (2, 7)), r"\[5, 7, 1\]"),
        (((5, 7), ()), r"shape \[\]"),
        (((5, 7), (2, 7), (6,)), r"\[6\] for 5 weight rows"),
        (((5, 7), (2, 7), (5, 1)), r"\[5, 1\] for 5"),
        (((5, 7), (2, 7), None, (5,)), "float32, and there are  scales|take scales"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_numbers(arguments, message):
    tensors = [None if shape is None else torch.zeros(shape) for shape in arguments]
    with pytest.raises(ValueError, match=message):
        matvec(*tensors)
    with pytest.raises(ValueError, match=message):
        torch.ops.twofold.matvec(*tensors)


def test_scales_and_dtypes_that_do_not_fit_are_refused():
    weight, scales = weights(5, 7, torch.int8)
    with pytest.raises(ValueError, match="no scales"):
        matvec(weight, torch.zeros(1, 7))
    with pytest.raises(ValueError, match=r"float64 \[5\].*float32 \[5\]"):
        matvec(weight, torch.zeros(1, 7), None, scales.double())
    with pytest.raises(ValueError, match=r"\[4\] for 5 weight rows"):
        matvec(weight, torch.zeros(1, 7), None, scales[:4])
    with pytest.raises(ValueError, match=r"x: torch\.int64"):
        matvec(weight, torch.zeros(1, 7, dtype=torch.int64), None, scales)
    x, floats = torch.zeros(1, 7), torch.zeros(5, 7)
    with pytest.raises(ValueError, match=r"weights: torch\.int32"):
        matvec(floats.int(), x)
    with pytest.raises(ValueError, match=r"weights: torch\.complex64"):
        matvec(floats.cfloat(), x)
    with pytest.raises(ValueError, match=r"bias: torch\.complex64"):
        matvec(floats, x, torch.zeros(5).cfloat())
    with pytest.raises(ValueError, match="scales on meta and x on cpu"):
        matvec(weight, x, None, scales.to("meta"))


def test_an_unknown_path_is_refused():
    with pytest.raises(ValueError, match="unknown path 'gpu': choose one of auto, native, plain"):
        matvec(torch.zeros(5, 7), torch.zeros(1, 7), path="gpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_it_is_a_sound_operation_of_torch(dtype):
    weight, scales = weights(11, 13, dtype, gap=2)
    for x, bias in ((torch.randn(2, 13), torch.randn(11)), (torch.randn(1, 3, 13).bfloat16(), None)):
        torch.library.opcheck(torch.ops.twofold.matvec.default, (weight, x, bias, scales))


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_it_compiles_into_one_graph_on_the_path_that_suits(dtype):
    torch._dynamo.reset()  # whose limit on recompiling counts those of all tests
    graphs = []
    compiled = torch.compile(
        matvec, fullgraph=True, dynamic=False, backend=lambda graph, _: graphs.append(graph.code) or graph
    )
    for rows, tokens, native_serves in ((1031, 1, True), (1031, 5, False), (3, 1, dtype is torch.int8)):
        weight, scales = weights(rows, 701, dtype)
        x = torch.randn(tokens, 701).to(torch.float32 if dtype is torch.int8 else dtype)
        assert_close(compiled(weight, x, None, scales), weight, x, None, scales)
        assert ("twofold.matvec" in graphs[-1]) == (native_serves and native.isa() != "portable")


@needs_native
def test_a_forced_native_product_can_be_exported():
    class Layer(nn.Module):
        def forward(self, weight, x):
            return matvec(weight, x, path="native")

    weight, x = torch.randn(11, 13), torch.randn(2, 13)
    exported = torch.export.export(Layer(), (weight, x))
    assert "twofold.matvec" in exported.graph_module.code
    assert_close(exported.module()(weight, x), weight, x, None, None)


def test_more_than_four_vectors_through_the_operation():
    """A compiled graph may meet sizes that it was not traced with."""
    weight, x = torch.randn(5, 7), torch.randn(9, 7)
    torch.testing.assert_close(torch.ops.twofold.matvec(weight, x), x @ weight.T)


@needs_native
def test_threads_of_python_do_not_disturb_each_other():
    from concurrent.futures import ThreadPoolExecutor

    weight, _ = weights(67, 131, torch.bfloat16)
    inputs = [torch.randn(1 + i % 4, 131).bfloat16() for i in range(64)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda x: matvec(weight, x, path="native"), inputs))
    for x, got in zip(inputs, results, strict=True):
        assert_close(got, weight, x, None, None)
