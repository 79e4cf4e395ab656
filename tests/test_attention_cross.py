"""Cross-attention: what decoder positions read of a memory, beside the same written out; rows made and kept once."""

from types import SimpleNamespace

import pytest
import torch

from small_models import randomise, small_config
from twofold.attention.cross import CrossAttention, MemorySpan, memory_span
from twofold.attention.reference_roles import Head, Setting, linear
from twofold.attention.scores import Scoring
from twofold.cache.layer import RowLayer
from twofold.kernels import decode_native, native
from twofold.models.sights import memory_sight
from twofold.variants.layout import cache_bytes
from twofold.variants.notation import parse
from twofold.variants.tensors import LayerSizes

B, T, S, HEADS, D, WIDTH = 3, 5, 11, 6, 10, 13
ENTRIES = {
    **{name: {} for name in ("QKV", "GQA-2", "MQA", "K=V", "K=V GQA-3", "K=V MQA", "K=V on_read", "Q=K", "Q=K=V")},
    **{name: {} for name in ("K=V GQA-2 diagonal", "Q=K=V diagonal", "K=V rank-3", "GQA-2 nonlinear-WQ")},
    **{name: {} for name in ("no-WQ", "K=V no-WK", "no-WK no-WV")},
    "K=V GQA-2, norms": {"qk_norm": True},
    "K=V, sinks": {"sinks": True},
}
MASKS = {
    "no padding": None,
    "padding on the right": [[1] * 11, [1] * 7 + [0] * 4, [1] + [0] * 10],
    "padding on the left": [[1] * 11, [0] * 4 + [1] * 7, [0] * 10 + [1]],
    "padding between": [[1] * 11, [1, 0, 0] + [1] * 8, [0, 1] * 5 + [0]],
}


def crossing(name, implementation="sdpa", scoring=None, dims=D, **others):
    variant = parse(name.split(",")[0])
    width = HEADS * dims if variant.unprojected or variant.nonlinear_query else WIDTH
    sizes = LayerSizes(width, HEADS, dims, rotary_dims=dims, biases=True, **{**ENTRIES.get(name, {}), **others})
    made = CrossAttention(variant, sizes, SimpleNamespace(_attn_implementation=implementation), scoring=scoring)
    randomise(made.double())
    return made


def written_out(layer, x, memory, real, exponent=0.5, softcap=0.0):
    """Queries of x; keys and values of the memory's real tokens; softmax with its sinks; head by head."""
    weights = {name.removeprefix("projections."): p for name, p in layer.named_parameters()}
    setting = Setting(HEADS, layer.projections.head_dim)
    outputs = []
    for b in range(len(x)):
        read = []
        for h in range(HEADS):
            query = Head(x[b], weights, layer.projections.variant, setting, torch.arange(x.shape[1]), h)
            kept = Head(memory[b, real[b]], weights, layer.projections.variant, setting, torch.arange(S), h)
            scores = query.query() @ kept.key().T / layer.projections.head_dim**exponent
            shares = (softcap * torch.tanh(scores / softcap) if softcap else scores).exp()
            total = shares.sum(dim=1, keepdim=True) + (weights["sinks"][h].exp() if "sinks" in weights else 0)
            read.append(query.read(shares / total @ kept.value()))
        outputs.append(linear("o_proj", torch.cat(read, dim=1), weights))
    return torch.stack(outputs)


def inputs(layer, positions=T):
    width = layer.projections.sizes.width
    x = torch.randn(B, positions, width, dtype=torch.float64, requires_grad=True)
    return x, torch.randn(B, S, width, dtype=torch.float64, requires_grad=True)


def real_of(padding):
    mask = MASKS[padding]
    return torch.ones(B, S, dtype=torch.bool) if mask is None else torch.tensor(mask, dtype=torch.bool)


def gradients(output, layer, *given):
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return torch.autograd.grad((output * weights).sum(), [*given, *layer.parameters()])


PATHS = [
    (name, path, padding)
    for name in ENTRIES
    for path in ("sdpa", "eager", "span")
    for padding in MASKS
    if path != "span" or ("sinks" not in name and padding != "padding between")
]


@pytest.mark.parametrize(("name", "path", "padding"), PATHS)
def test_what_is_read_of_a_memory_is_what_the_equations_say(name, path, padding):
    """Outputs, and gradients of the decoder's input, the memory and every weight."""
    layer = crossing(name, "eager" if path == "eager" else "sdpa")
    x, memory = inputs(layer)
    real = real_of(padding)
    sight = memory_span(real) if path == "span" else real[:, None, None].expand(-1, 1, T, -1)
    made = layer(x, layer.rows(memory), sight).output_BTM
    expected = written_out(layer, x, memory, real)
    assert expected.std() > 1
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-10)
    for own, other in zip(gradients(made, layer, x, memory), gradients(expected, layer, x, memory), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("positions", [1, T])
@pytest.mark.parametrize(("exponent", "softcap"), [(0.0, 0.0), (1.0, 0.0), (0.5, 1.7)])
def test_scores_are_scaled_and_capped_as_everywhere(exponent, softcap, positions):
    layer = crossing("K=V GQA-2", scoring=Scoring(exponent, softcap))
    x, memory = inputs(layer, positions)
    expected = written_out(layer, x, memory, real_of("no padding"), exponent, softcap)
    for sight in (None, MemorySpan()):
        torch.testing.assert_close(layer(x, layer.rows(memory), sight).output_BTM, expected, rtol=0, atol=1e-10)


def test_a_span_is_what_a_mask_without_holes_says():
    for padding in list(MASKS)[:3]:
        starts, lengths, _ = memory_span(real_of(padding))
        at = torch.arange(S)
        if starts is None:
            assert lengths is None
            assert padding == "no padding"
        else:
            assert torch.equal((at >= starts[:, None]) & (at < lengths[:, None]), real_of(padding))
    assert memory_span(real_of("padding between")) is None


@pytest.mark.skipif(not native.AVAILABLE, reason=native.why_not() if not native.AVAILABLE else "")
@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 1e-5), ("bfloat16", 3e-2), ("int8", 3e-2)])
@pytest.mark.parametrize("positions", [1, 2, 8])
@pytest.mark.parametrize("name", ["QKV", "GQA-2", "K=V", "K=V MQA"])
def test_few_positions_are_read_by_the_native_kernel_from_rows_as_they_are_kept(
    name, positions, dtype, tolerance, monkeypatch
):
    taken, attend = [], decode_native.attend
    monkeypatch.setattr(decode_native, "attend", lambda step: taken.append(step.query.shape) or attend(step))
    layer = crossing(name, dims=8)
    x, memory = inputs(layer, positions)
    real = real_of("padding on the right")
    with torch.no_grad():
        expected = written_out(layer, x, memory, real)
        layer.float()
        kept = RowLayer(layer.layout, layer.projections.kv_heads, dtype=dtype)
        made = layer(x.float(), layer.rows(memory.float(), kept), memory_span(real)).output_BTM
    assert taken == [(B, HEADS * positions, 1, 8)]
    assert (made - expected).norm() < tolerance * expected.norm()


def test_a_memorys_rows_are_made_once_and_read_from_their_storage():
    layer = crossing("K=V GQA-2")
    x, memory = inputs(layer)
    kept = RowLayer(layer.layout, 2)
    first = layer(x, layer.rows(memory, kept)).output_BTM
    storage = kept.storage_id
    for given in (None, memory, torch.full_like(memory, torch.nan)):
        rows = layer.rows(given, kept)
        assert rows.heads_BGSW.untyped_storage().data_ptr() == storage
        assert torch.equal(layer(x, rows).output_BTM, first)
    assert kept.get_seq_length() == S
    kept.reset()
    other = torch.randn_like(memory)
    assert torch.equal(layer(x, layer.rows(other, kept)).output_BTM, layer(x, layer.rows(other)).output_BTM)


@pytest.mark.parametrize("heads", ["", " GQA-2", " MQA"])
def test_a_memory_takes_half_the_bytes_with_shared_keys_and_values(heads):
    reserved = {}
    for sharing in ("QKV", "K=V"):
        layer = crossing((sharing + heads).removeprefix("QKV ") if heads else sharing)
        kept = RowLayer(layer.layout, layer.projections.kv_heads, capacity=S)
        layer.rows(inputs(layer)[1], kept)
        reserved[sharing] = kept.bytes_reserved
        formula = cache_bytes(layer.layout, layer.projections.kv_heads, tokens=S, batch=B, itemsize=8)
        assert kept.bytes_used == kept.bytes_reserved == formula
    assert reserved["QKV"] == 2 * reserved["K=V"]


def test_rows_that_do_not_fit_are_refused():
    layer = crossing("K=V")
    memory, kept = inputs(layer)[1], RowLayer(layer.layout, HEADS)
    with pytest.raises(ValueError, match=r"no rows of a memory are kept yet: give the encoder's output"):
        layer.rows(None, kept)
    with pytest.raises(ValueError, match=r"a memory must be \[B, S, 13\], as wide as the decoder, not \[3, 11, 12\]"):
        layer.rows(memory[..., 1:], kept)
    layer.rows(memory, kept)
    for wrong, numbers in ((memory[:2], "2 and 11"), (memory[:, 1:], "3 and 10")):
        with pytest.raises(ValueError, match=rf"3 sequences and 11 tokens are kept, and this one has {numbers}: reset"):
            layer.rows(wrong, kept)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MLA", "MLA needs rotary positions, and a memory's rows have none"),
        ("K=V decoupled", "decoupled needs rotary"),
        ("K=V kept", "kept needs rotary"),
        ("QKV linear", "keeps a state, and cross-attention reads rows"),
        ("QKV +", r"the \+ term relates positions of one sequence: drop the \+"),
    ],
)
def test_variants_without_a_meaning_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        crossing(name)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_mask_of_another_length_than_the_memory_is_refused(implementation):
    config = small_config(attn_implementation=implementation)
    layer = CrossAttention(parse("K=V"), LayerSizes(WIDTH, HEADS, D), config).double()
    x, memory = torch.randn(2, 1, WIDTH, dtype=torch.float64), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    rows = layer.rows(memory)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    with pytest.raises(ValueError, match="the mask covers 4 tokens, and the memory has 5"):
        layer(x, rows, memory_sight(config, x, mask))
    with pytest.raises(ValueError, match="there are 1 sequences and memories of 2"):
        layer(x[:1], rows)
