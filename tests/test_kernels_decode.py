"""Decode attention over rows: both paths are the definition, whatever the layout, dtype, strides and limits."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings

from decode_steps import LAYOUTS, cases, make, reference, spans, strided
from twofold.kernels import native
from twofold.kernels.decode import decode_attention

ISAS = [
    pytest.param(name, marks=pytest.mark.skipif(not native.AVAILABLE, reason=native.why_not()))
    for name in ("best", "portable")
]
F32_TOLERANCE = 4e-6
"""Of the largest output: float32 rounding over 1,009 rows and dims up to 328, angles of float32 tables among them."""


@pytest.fixture(params=["plain", *ISAS])
def path(request):
    """Each path, and the native one by its best and by its plainest instruction set."""
    if request.param == "plain":
        yield "plain"
        return
    with native.use_isa(native.isa() if request.param == "best" else request.param):
        yield "native"


def close(got, wanted, tolerance=F32_TOLERANCE):
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=tolerance * max(1.0, float(wanted.abs().max())))


class TestTheDefinition:
    @settings(max_examples=60)
    @given(case=cases())
    def test_plain(self, case):
        args, options = case.arguments(path="plain")
        close(decode_attention(*args, **options), reference(case))

    @settings(max_examples=120)
    @given(case=cases())
    @pytest.mark.parametrize("isa", ISAS)
    def test_native(self, isa, case):
        args, options = case.arguments(path="native")
        with native.use_isa(native.isa() if isa == "best" else isa):
            close(decode_attention(*args, **options), reference(case))

    @settings(max_examples=30)
    @given(case=cases())
    def test_plain_in_float64_is_exact(self, case):
        (query, *rows), options = case.arguments(path="plain")
        close(decode_attention(query.double(), *rows, **options), reference(case), 1e-12)


def step(layout="K=V", *, rows=97, dtype=torch.float32, positions=1, groups=2, per_group=3, batch=2, seed=3):
    sizes = {"batch": batch, "groups": groups, "per_group": per_group, "positions": positions, "rows": rows}
    return make(LAYOUTS[layout], **sizes, dtype=dtype, seed=seed)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_queries_come_back_as_they_are(path, dtype):
    case = step(dtype=dtype)
    (query, *rows), options = case.arguments(path=path)
    got = decode_attention(query.to(dtype), *rows, **options)
    assert got.dtype == dtype
    close(got, reference(case), 2e-2 if dtype == torch.bfloat16 else 3e-3)


@pytest.mark.parametrize("per_group", [1, 3, 5])  # few queries, several, and as many as fill registers
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_that_nobody_sees_may_hold_anything(path, layout, per_group):
    case = step(layout, rows=61, positions=3, per_group=per_group)
    limits = {"starts_B": torch.tensor([5, 0]), "lengths_B": torch.tensor([59, 38])}
    args, options = case.arguments(path=path, **limits)
    clean = decode_attention(*args, **options)
    for junk in (torch.nan, torch.inf):
        for part in args[1:]:
            if part is not None:
                part[0, ..., :5, :] = part[0, ..., 59:, :] = part[1, ..., 38:, :] = junk
        assert torch.equal(decode_attention(*args, **options), clean)


@pytest.mark.parametrize("per_group", [1, 3, 8, 16])
def test_nan_in_a_row_that_is_seen_shows(path, per_group):
    (query, heads, _), options = step(rows=331, per_group=per_group).arguments(path=path)
    heads[1, 0, 200, 3] = torch.nan
    out = decode_attention(query, heads, **options)
    assert out[1, :per_group].isnan().all()
    assert not out[1, per_group:].isnan().any()
    assert not out[0].isnan().any()


@pytest.mark.parametrize("per_group", [8, 16])
@pytest.mark.parametrize("rows", [5, 23, 1009])
def test_many_queries_with_limits_of_their_own(path, per_group, rows):
    """Some sequences and queries see nothing of a tile in which others see rows."""
    case = step(rows=rows, positions=5, per_group=per_group)
    limits = {"starts_B": torch.tensor([0, 3]), "lengths_B": torch.tensor([rows, 4]), "window": 3, "softcap": 7.0}
    case.options.update(limits)
    args, options = case.arguments(path=path)
    close(decode_attention(*args, **options), reference(case))


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_few_or_no_rows(path, rows):
    case = step(rows=rows, positions=3)
    args, options = case.arguments(path=path)
    out = decode_attention(*args, **options)
    close(out, reference(case))
    assert not out[:, :, : 3 - rows].any()  # these queries see no row
    if rows:
        close(out[:, :, 3 - rows], case.heads[:, :, 0].repeat_interleave(3, 1).double())


@pytest.mark.parametrize("per_group", [1, 3, 8])
def test_large_scores_do_not_overflow(path, per_group):
    """The weights are those of the largest score, which may come late: at any time one tile outweighs all before."""
    case = step(rows=331, per_group=per_group)
    case.query.mul_(300)
    case.heads.mul_(torch.linspace(1, 100, 331)[:, None])
    args, options = case.arguments(path=path)
    close(decode_attention(*args, **options), reference(case), 1e-3)  # scores near 1e6 have an ulp of 0.06


def test_equal_to_torch_with_two_tensors(path):
    """`is_causal` in torch aligns to the first row; the newest query must see everything."""
    (query, heads, _), options = step("QKV", positions=5, per_group=1).arguments(path=path)
    key, value = heads[..., :24], heads[..., 24:]
    wanted = F.scaled_dot_product_attention(query, key, value, attn_mask=torch.ones(5, 97).tril(92).bool())
    close(decode_attention(query, heads, **options), wanted.double())


@pytest.mark.skipif(not native.AVAILABLE, reason=native.why_not())
@pytest.mark.parametrize("rows", [1009, 4099])
def test_error_is_at_most_twice_that_of_torch(rows):
    (query, heads, _), options = step(rows=rows, groups=3, per_group=1).arguments(path="native")
    exact = F.scaled_dot_product_attention(query.double(), heads.double(), heads.double())
    torchs = (F.scaled_dot_product_attention(query, heads, heads) - exact).abs().max()
    assert (decode_attention(query, heads, **options) - exact).abs().max() <= 2 * torchs + 1e-8


def test_a_split_context_is_an_unsplit_one(path):
    """Several threads share a long context in chunks; one thread takes it in one piece."""
    case = strided(step("decoupled", rows=2003, dtype=torch.bfloat16, batch=1, positions=2), "token-major")
    args, options = case.arguments(path=path, softcap=5.0, starts_B=torch.tensor([301]), frequencies=torch.ones(3))
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            results.append(decode_attention(*args, **options))
            assert torch.equal(decode_attention(*args, **options), results[-1])
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        close(result, results[0].double(), 1e-6)


def test_turning_on_read_depends_on_differences_only(path):
    """Queries turned to their position meet keys turned when read: a shift of all positions changes nothing."""
    case = step(rows=97, batch=1)
    frequencies = 10_000.0 ** -(torch.arange(20, dtype=torch.float64) / 20)
    outs = []
    for shift in (0, 1_000_000):
        angle = (96 + shift) * frequencies
        turned = torch.complex(case.query[..., :20].double(), case.query[..., 20:].double()) * torch.exp(1j * angle)
        query = torch.cat([turned.real, turned.imag], dim=-1).float()
        options = {**spans(LAYOUTS["K=V"]), "frequencies": frequencies, "first_position": shift, "path": path}
        outs.append(decode_attention(query, case.heads, **options))
    close(outs[1], outs[0].double())
    assert not torch.allclose(outs[0], decode_attention(case.query, case.heads, **spans(LAYOUTS["K=V"])), atol=1e-2)


def test_rows_that_require_gradients_get_right_ones():
    case = step("decoupled", rows=13, positions=2)
    (query, heads, shared), options = case.arguments(softcap=5.0, window=7, starts_B=torch.tensor([0, 4]))
    inputs = [t.double().requires_grad_() for t in (query, heads, shared)]
    assert torch.autograd.gradcheck(lambda *t: decode_attention(*t, **options), inputs, fast_mode=True)
    single = [t.detach().float().requires_grad_() for t in inputs]
    assert decode_attention(*single, **options).requires_grad  # auto takes the path that has gradients
