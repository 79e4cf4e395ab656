"""Linear layers for decoding: an `nn.Linear` in every respect, and one with int8 weights."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, prune

from twofold.kernels import linear as linear_module
from twofold.kernels import matvec as matvec_module
from twofold.kernels import native
from twofold.kernels.linear import DecodeLinear, quantise_linear, use_decode_linear, weight_error

needs_native = pytest.mark.skipif(not native.AVAILABLE, reason="the native library is not built here")
RELATIVE = 2.0**-21  # to |W| |x| + |b|: two sums in float32, each off by half of that at most


class Net(nn.Module):
    """Two layers, one of them without a bias, and two modules that share it."""

    def __init__(self, layer=nn.Linear):
        super().__init__()
        self.up = layer(13, 29)
        self.down = layer(29, 13, bias=False)
        self.again = self.down

    def forward(self, x):
        return self.again(F.gelu(self.up(x))) + self.down(F.gelu(self.up(x)))


@pytest.fixture(autouse=True)
def _small_and_slow_products_too(monkeypatch):
    monkeypatch.setattr(matvec_module, "_WINS", native.AVAILABLE)
    monkeypatch.setattr(matvec_module, "_small", lambda *a: False)


@pytest.fixture
def calls(monkeypatch):
    """How many products the native library made."""
    counted = []
    product = linear_module.native_product
    monkeypatch.setattr(linear_module, "native_product", lambda *a: counted.append(a) or product(*a))
    return counted


def same(layer, x):
    """Equal to torch's linear, relative to what was added up."""
    with torch.no_grad():
        got, right = layer(x), F.linear(x, layer.weight, layer.bias)
        magnitude = F.linear(x.abs(), layer.weight.abs(), None if layer.bias is None else layer.bias.abs())
    assert got.shape == right.shape
    assert bool(((got - right).abs() <= RELATIVE * magnitude).all())


@needs_native
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("shape", "native_serves"), [((1, 1), 1), ((4, 1), 1), ((2, 2), 1), ((), 1), ((5, 1), 0), ((0, 1), 0)]
)
def test_few_vectors_take_the_native_product_and_many_do_not(calls, bias, shape, native_serves):
    layer = DecodeLinear(17, 23, bias=bias)
    same(layer, torch.randn(*shape, 17))
    assert len(calls) == native_serves


@needs_native
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_are_torchs_or_close_to_it(calls, dtype):
    layer, x = DecodeLinear(17, 23, dtype=dtype), torch.randn(1, 17, dtype=dtype)
    with torch.no_grad():
        right = F.linear(x.double(), layer.weight.double(), layer.bias.double())
        torch.testing.assert_close(layer(x).double(), right, rtol=2 * torch.finfo(dtype).eps, atol=2e-3)
    assert len(calls) == (dtype is torch.bfloat16)


def test_switching_changes_the_class_and_nothing_else():
    net, x = Net(), torch.randn(1, 13)
    names, identities = list(net.state_dict()), [id(p) for p in net.parameters()]
    before = net(x)
    heard = []
    net.up.register_forward_hook(lambda *a: heard.append(1))
    assert use_decode_linear(net) == 2
    assert use_decode_linear(net) == 0
    assert isinstance(net.up, nn.Linear)
    assert list(net.state_dict()) == names
    assert [id(p) for p in net.parameters()] == identities
    with torch.no_grad():
        torch.testing.assert_close(net(x), before)
    assert heard == [1, 1]
    assert use_decode_linear(net, enabled=False) == 2
    assert type(net.up) is nn.Linear
    assert torch.equal(net(x), before)


def test_subclasses_of_linear_are_left_alone():
    class Special(nn.Linear):
        pass

    assert use_decode_linear(nn.Sequential(Special(3, 3), nn.Bilinear(3, 3, 3))) == 0
    assert use_decode_linear(nn.Linear(3, 3)) == 1


def test_copies_and_saved_states_keep_working():
    net, x = Net(DecodeLinear), torch.randn(2, 13)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert type(twin.up) is DecodeLinear
        assert torch.equal(twin(x), net(x))
    plain = Net()
    plain.load_state_dict(net.state_dict())
    assert torch.equal(plain(x), net(x))  # with gradients, both are torch's


def test_a_seed_gives_the_values_that_it_gives_a_linear_layer():
    torch.manual_seed(3)
    ours = DecodeLinear(5, 7)
    torch.manual_seed(3)
    assert torch.equal(ours.weight, nn.Linear(5, 7).weight)


@needs_native
def test_gradients_are_torchs(calls):
    net, x = Net(DecodeLinear), torch.randn(1, 13, requires_grad=True)
    plain = Net()
    plain.load_state_dict(net.state_dict())
    got = torch.autograd.grad(net(x).square().sum(), [x, *net.parameters()])
    right = torch.autograd.grad(plain(x).square().sum(), [x, *plain.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(got, right, strict=True))
    net.requires_grad_(False)
    net(x).sum().backward()  # frozen weights, as under an adapter
    assert not calls
    net(x.detach())
    assert len(calls) == 4


@needs_native
def test_changed_and_moved_weights_are_read(calls):
    layer, x = DecodeLinear(17, 23), torch.randn(1, 17)
    same(layer, x)
    with torch.no_grad():
        layer.weight.mul_(2)
    same(layer, x)
    layer.weight = nn.Parameter(torch.randn(31, 34)[:, ::2])  # rows that are not contiguous
    layer.bias = None
    same(layer, x)
    assert len(calls) == 2


@needs_native
def test_pruned_and_parametrised_layers_use_what_they_were_made(calls):
    x = torch.randn(1, 9)
    pruned = prune.l1_unstructured(DecodeLinear(9, 8), "weight", amount=0.5)
    orthogonal = parametrizations.orthogonal(DecodeLinear(9, 8))
    pruned_bias = prune.l1_unstructured(DecodeLinear(9, 8), "bias", amount=0.5)
    for layer in (pruned, orthogonal, pruned_bias):
        same(layer, x)


@needs_native
@pytest.mark.filterwarnings("ignore:.torch.jit.*deprecated:DeprecationWarning")  # torch's own, inside jvp
def test_modes_and_transforms_of_torch_see_torchs_operations(calls):
    from torch.autograd import forward_ad
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils.flop_counter import FlopCounterMode

    layer, x = DecodeLinear(17, 23).requires_grad_(False), torch.randn(3, 1, 17)
    right = F.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(torch.vmap(layer)(x), right)
    _, turned = torch.func.jvp(layer, (x,), (torch.ones_like(x),))
    torch.testing.assert_close(turned, layer.weight.sum(1).expand(3, 1, 23))
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, torch.ones_like(x)))).tangent
        torch.testing.assert_close(tangent, turned)
    with FlopCounterMode(display=False) as counter:
        layer(x)
    assert counter.get_total_flops() == 2 * 3 * 17 * 23
    assert "twofold" not in make_fx(layer)(x).code
    assert "aten::linear" in str(torch.jit.trace(layer, x, check_trace=False).inlined_graph)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype is torch.bfloat16
    assert not calls


def test_torch_refuses_what_it_refuses():
    layer = DecodeLinear(17, 23)
    for x in (torch.randn(1, 16), torch.randn(1, 17).double()):
        with torch.no_grad(), pytest.raises(RuntimeError):
            layer(x)
    mixed = DecodeLinear(17, 23)
    mixed.bias = nn.Parameter(torch.randn(23).bfloat16())
    with torch.no_grad(), pytest.raises(RuntimeError):
        mixed(torch.randn(1, 17))
    flat = DecodeLinear(17, 23, bias=False)
    flat.weight = nn.Parameter(torch.randn(17))
    x = torch.randn(2, 17)
    assert torch.equal(flat(x), F.linear(x, flat.weight))


@pytest.mark.parametrize("shape", [(1,), (1, 23), (23, 1), ()], ids=str)
def test_a_bias_that_torch_stretches_is_torchs(calls, shape):
    layer, x = DecodeLinear(17, 23).requires_grad_(False), torch.randn(23, 17)[:1]
    layer.bias = nn.Parameter(torch.full(shape, 7.0), requires_grad=False)
    try:
        right = F.linear(x, layer.weight, layer.bias)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            layer(x)
    else:
        assert torch.equal(layer(x), right)
    assert not calls


@needs_native
def test_a_compiled_layer_holds_the_operation():
    layer, x = DecodeLinear(17, 23).requires_grad_(False), torch.randn(2, 17)
    graphs = []
    compiled = torch.compile(layer, fullgraph=True, backend=lambda graph, _: graphs.append(graph.code) or graph)
    torch.testing.assert_close(compiled(x), F.linear(x, layer.weight, layer.bias))
    assert "twofold.matvec" in graphs[0]
    many = torch.randn(7, 17)
    torch.testing.assert_close(compiled(many), F.linear(many, layer.weight, layer.bias))
    with torch.enable_grad():
        layer.requires_grad_(True)
        compiled(x).sum().backward()
    torch.testing.assert_close(layer.weight.grad, x.sum(0).expand(23, 17))


def test_an_exported_layer_holds_torchs_operations_alone():
    layer, x = DecodeLinear(17, 23).requires_grad_(False), torch.randn(2, 17)
    exported = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("T", min=2, max=99)},))
    assert "twofold" not in exported.graph_module.code
    many = torch.randn(50, 17)
    torch.testing.assert_close(exported.module()(many), layer(many))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", [1, 4, 9])
def test_int8_weights_are_off_by_half_a_step_at_most(bias, tokens):
    layer, x = nn.Linear(61, 37, bias=bias), torch.randn(tokens, 61)
    with torch.no_grad():
        layer.weight[5] = 0.0
        layer.weight[6] *= 1e4
    quantised = quantise_linear(layer)
    steps = layer.weight.detach().abs().amax(1) / 127
    off = (layer.weight - quantised.weight * quantised.scales[:, None]).abs()
    assert bool((off <= steps[:, None] * 0.5001).all())
    got, right = quantised(x).double(), layer.double()(x.double())
    assert bool(
        ((got - right).abs() <= 0.5001 * steps * x.abs().sum(1, keepdim=True) + 1e-5 * right.abs() + 1e-6).all()
    )
    assert 0 < weight_error(layer, quantised) < 0.01
    assert not any(p.requires_grad for p in quantised.parameters())


def test_int8_weights_are_a_quarter_of_the_bytes_and_survive_saving():
    layer, x = nn.Linear(64, 32), torch.randn(3, 64)
    quantised = quantise_linear(layer)
    assert quantised.weight.nbytes * 4 == layer.weight.nbytes
    assert list(quantised.state_dict()) == ["weight", "bias", "scales"]
    other = quantise_linear(nn.Linear(64, 32))
    other.load_state_dict(quantised.state_dict())
    assert torch.equal(other(x), quantised(x))
    assert torch.equal(copy.deepcopy(quantised)(x), quantised(x))


def test_int8_layers_keep_exact_scales_in_bfloat16():
    layer, x = nn.Linear(64, 32), torch.randn(3, 64)
    quantised = quantise_linear(layer)
    scales = quantised.scales.clone()
    narrow = quantised.to(torch.bfloat16)
    assert narrow.weight.dtype is torch.int8
    assert torch.equal(narrow.scales, scales)
    assert narrow(x.bfloat16()).dtype is torch.bfloat16
    torch.testing.assert_close(narrow(x.bfloat16()).float(), layer(x), rtol=0.05, atol=0.05)
    assert quantised.to("meta").scales.is_meta


def test_int8_weights_pass_gradients_to_what_comes_before():
    layer, x = nn.Linear(13, 7), torch.randn(2, 13, requires_grad=True)
    quantised = quantise_linear(layer)
    quantised(x).sum().backward()
    torch.testing.assert_close(x.grad, (quantised.weight * quantised.scales[:, None]).sum(0).expand(2, 13))


def test_weights_without_an_int8_form_are_refused():
    layer = nn.Linear(3, 5)
    with torch.no_grad():
        layer.weight[2, 1], layer.weight[4, 0] = torch.nan, torch.inf
    with pytest.raises(ValueError, match="2 of 5 weight rows hold NaN or infinity"):
        quantise_linear(layer)
