"""int8 rows: how far off a number is, what has no scale, where scales lie, and what a model makes of them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from small_models import PAIRED, random_ids, small_model
from test_cache_operations import rounded
from test_kernels_matvec import isas
from twofold.cache.kept import quantise
from twofold.cache.layer import GROWTH, RowLayer
from twofold.cache.row_cache import RowCache
from twofold.kernels import native, per_token
from twofold.variants.layout import RowLayout, cache_bytes

LAYOUT = RowLayout.decoupled(5, 2)
KV_HEADS = 3

every_variant = pytest.mark.parametrize(("variant", "style"), PAIRED)
needs_native = pytest.mark.skipif(not native.AVAILABLE, reason="the native library is not built here")
narrow_dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
numbers = st.floats(-(2.0**99), 2.0**99, width=32).filter(lambda x: x == 0 or abs(x) > 1e-30)


def filled(tokens=7, batch=2, dtype=torch.float64, **how):
    layer = RowLayer(LAYOUT, KV_HEADS, dtype="int8", **how)
    layer.append(*rows(tokens, batch, dtype))
    return layer


def rows(tokens, batch=2, dtype=torch.float64):
    return torch.randn(batch, KV_HEADS, tokens, 5, dtype=dtype), torch.randn(batch, tokens, 2, dtype=dtype)


@given(st.lists(numbers, min_size=5, max_size=5), st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_no_number_is_off_by_more_than_half_a_scale(row, dtype):
    given = torch.tensor(row, dtype=dtype).view(1, 1, 1, 5)
    layer = RowLayer(RowLayout.shared(5), 1, dtype="int8")
    seen, _ = layer.update(given, None)
    assert seen.dtype == dtype
    kept, given = layer.kept(), given.double()
    scale = kept.scales_BGS.double()
    torch.testing.assert_close(127 * scale[0, 0, 0], given.abs().max(), rtol=1e-6, atol=0)
    exact, _ = kept.to(torch.float64)
    assert bool(((exact - given).abs() <= scale[..., None] / 2 * (1 + 2e-5)).all())  # quotients are rounded as well
    assert torch.equal(seen, exact.to(torch.float32).to(dtype) if dtype != torch.float64 else exact)


def test_rows_of_zeros_have_no_scale_and_stay_zeros():
    layer = RowLayer(LAYOUT, KV_HEADS, dtype="int8")
    heads, shared = rows(5)
    heads[:, 1, 2], shared[:, 3], heads[:, 0, 0] = 0, 0, 1e-42
    seen_heads, seen_shared = layer.update(heads, shared)
    kept = layer.kept()
    for read, scale in (
        (seen_heads[:, 1, 2], kept.scales_BGS[:, 1, 2]),
        (seen_shared[:, 3], kept.shared_scales_BS[:, 3]),
    ):
        assert bool((read == 0).all())
        assert bool((scale == 0).all())
    assert bool((seen_heads[:, 0, 0] == 0).all()), "below float32's normal numbers there is nothing"
    assert int((kept.scales_BGS == 0).sum()) == 4
    assert int((kept.shared_scales_BS == 0).sum()) == 2


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_not_hidden_and_stays_in_its_row(wrong):
    layer = RowLayer(LAYOUT, KV_HEADS, dtype="int8")
    heads, shared = rows(5)
    heads[0, 1, 2, 3] = wrong
    seen, _ = layer.update(heads, shared)
    assert not bool(seen[0, 1, 2].isfinite().any())
    seen[0, 1, 2] = 0
    assert bool(seen.isfinite().all())


def test_the_largest_number_of_a_row_comes_back_within_a_rounding():
    heads, _ = quantise(torch.randn(31, 7, 5))
    assert bool((heads.abs().amax(dim=-1) == 127).all())
    assert bool((heads == heads.round()).all())


def written(part, isa):
    """What the native library writes of `part` [B, G, T, W], between other numbers; then what torch makes of it."""
    batch, groups, tokens, width = part.shape
    room = torch.full((batch, groups, tokens + 5, width), 99, dtype=torch.int8)
    scales_room = torch.full((batch, groups, tokens + 5), 9.0)
    with native.use_isa(isa):
        per_token.quantise(part, room.narrow(2, 2, tokens), scales_room.narrow(2, 2, tokens))
    for before, after in ((room[:, :, :2], room[:, :, -3:]), (scales_room[:, :, :2] * 11, scales_room[:, :, -3:] * 11)):
        assert bool((before == 99).all())
        assert bool((after == 99).all())
    numbers, scales = quantise(part)
    return (room[:, :, 2:-3], scales_room[:, :, 2:-3]), (numbers.to(torch.int8), scales)


def assert_equal_bits(part, isa):
    (numbers, scales), (right, right_scales) = written(part, isa)
    assert torch.equal(numbers, right)
    assert torch.equal(scales.nan_to_num(-1.0), right_scales.nan_to_num(-1.0))


@needs_native
@given(
    width=st.integers(1, 70),
    shape=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 4)),
    dtype=narrow_dtypes,
    size=st.integers(-45, 38),
    isa=st.sampled_from(isas() or ["none"]),
    seed=st.integers(0, 99),
)
def test_few_rows_become_the_same_bits_by_the_native_library(width, shape, dtype, size, isa, seed):
    torch.manual_seed(seed)
    part = (torch.randn(*shape, width, dtype=torch.float64) * 10.0**size).to(dtype)
    assert_equal_bits(part, isa)
    assert_equal_bits((part.sign() * 127 - part.sign() * torch.randint(0, 254, part.shape) / 2).to(dtype), isa)  # ties
    swapped = part.transpose(1, 2).contiguous().transpose(1, 2)  # as the model makes them
    assert_equal_bits(swapped, isa)


@needs_native
@given(
    row=st.lists(st.floats(width=32), min_size=1, max_size=19),
    dtype=narrow_dtypes,
    isa=st.sampled_from(isas() or ["none"]),
)
def test_any_bits_at_all_become_the_same_bits(row, dtype, isa):
    assert_equal_bits(torch.tensor(row).to(dtype).view(1, 1, 1, -1), isa)


@needs_native
@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("around", [0, 1, 126, 127, 128])
def test_scales_around_the_least_normal_number_become_the_same_bits(around, isa):
    tiny = torch.finfo(torch.float32).tiny
    steps = torch.arange(-40, 41).float() * 2.0**-149
    assert_equal_bits((around * tiny + steps).view(3, 1, 27, 1), isa)
    assert_equal_bits((around * tiny + steps).view(1, 3, 1, 27), isa)


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_cache_takes_the_native_library_for_few_rows_and_keeps_the_same(dtype, monkeypatch):
    calls, native_quantise = [], per_token.quantise
    monkeypatch.setattr(per_token, "quantise", lambda *a: calls.append(a) or native_quantise(*a))
    kept = []
    parts = [rows(tokens, dtype=dtype) for tokens in (5, 1, 2000, 3)]
    for available in (True, False):
        monkeypatch.setattr(native, "AVAILABLE", available)
        layer = RowLayer(LAYOUT, KV_HEADS, dtype="int8")
        for heads, shared in parts:
            layer.append(heads.requires_grad_(), shared)
        kept.append(layer.kept())
    assert all(torch.equal(one, other) for one, other in zip(*kept, strict=True))
    assert len(calls) == (0 if dtype is torch.float64 else 3 * 2 + 1)  # 2000 tokens have few numbers in the shared part


@pytest.mark.parametrize("capacity", [None, 19])
def test_scales_lie_token_after_token_and_are_counted(capacity):
    layer = filled(capacity=capacity)
    layer.append(*rows(4))
    kept = layer.kept()
    assert kept.heads_BGSW.dtype == kept.shared_BSW.dtype == torch.int8
    assert kept.scales_BGS.dtype == kept.shared_scales_BS.dtype == torch.float32
    assert (kept.scales_BGS.shape, kept.shared_scales_BS.shape) == ((2, 3, 11), (2, 11))
    assert kept.scales_BGS.stride(-1) == kept.shared_scales_BS.stride(-1) == kept.heads_BGSW.stride(-1) == 1
    assert kept.heads_BGSW[1, 2].is_contiguous()
    formula = 2 * 11 * (3 * 5 + 2 + 4 * (3 + 1))
    assert layer.bytes_used == formula
    assert cache_bytes(LAYOUT, KV_HEADS, tokens=11, itemsize=1, batch=2, scale_bytes=4) == formula
    if capacity:
        assert layer.bytes_reserved == formula // 11 * capacity
    else:
        assert layer.bytes_reserved <= GROWTH * formula


def test_append_returns_views_of_the_storage():
    layer = filled(capacity=19)
    first, second = layer.append(*rows(1)), layer.kept()
    for part, same in zip(first, second, strict=True):
        assert part.data_ptr() == same.data_ptr()
        assert part.shape == same.shape
    first.heads_BGSW[0, 1, 3, 2] = 101
    assert layer.kept().heads_BGSW[0, 1, 3, 2] == 101


def test_int8_rows_have_no_gradient():
    heads, shared = (part.requires_grad_() for part in rows(3))
    seen = filled().update(heads, shared)
    assert not any(part.requires_grad for part in seen)


def test_a_cache_of_the_models_dtype_and_one_of_int8_take_their_names():
    assert {layer.dtype for layer in RowCache(2, LAYOUT, 3, dtype="int8").layers} == {torch.int8}
    assert RowCache(1, LAYOUT, 3, dtype=torch.int8).layers[0].dtype == torch.int8
    assert RowCache(1, LAYOUT, 3, dtype="bfloat16").layers[0].dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"rows can be kept in float64, .* int8, and not in int4"):
        RowCache(1, LAYOUT, 3, dtype="int4")


# Models ---------------------------------------------------------------------------------------------------------


class Rounding:
    """A model whose rows are rounded to int8 and back where they are made: what an int8 cache must amount to."""

    def __init__(self, variant, style):
        self.model = small_model(variant, *style)
        for block in self.model.model.layers:
            projections = block.attention.projections
            projections.forward = self.rounding(projections.forward)

    @staticmethod
    def rounding(forward):
        def made(*args, **kwargs):
            seen = forward(*args, **kwargs)
            return seen._replace(rows_BTGW=rounded(seen.rows_BTGW))

        return made

    def logits(self, ids, **arguments):
        return self.model(ids, use_cache=False, **arguments).logits


@every_variant
@pytest.mark.parametrize("capacity", [None, 19], ids=["growing", "preallocated"])
def test_decoding_is_a_full_pass_over_rounded_rows(variant, style, capacity):
    model, twin, ids = small_model(variant, *style), Rounding(variant, style), random_ids(3, 17)
    with torch.no_grad():
        expected = twin.logits(ids)
        assert (expected - model(ids, use_cache=False).logits).abs().max() > 1e-4, "rounding does something"
        cache = model.model.new_cache(capacity, dtype="int8")
        made = torch.cat([model(part, cache=cache).logits for part in ids.split([5, 1, 1, 3, 1, 6], dim=1)], dim=1)
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-9)
    sizes = model.config.architecture
    per_token = cache_bytes(sizes.row_layout, sizes.kv_heads, tokens=1, itemsize=1, layers=2, batch=3, scale_bytes=4)
    assert cache.bytes_used == 17 * per_token
    assert cache.bytes_reserved == 19 * per_token if capacity else cache.bytes_reserved <= GROWTH * 17 * per_token


@pytest.mark.parametrize("variant", ["QKV", "K=V GQA-2"])
def test_after_a_crop_a_reorder_a_repetition_and_a_selection_too(variant):
    style = ("modern", "full")
    model, twin, ids, after = (
        small_model(variant),
        Rounding(variant, style),
        random_ids(3, 11),
        random_ids(3, 4, seed=1),
    )
    changes = {
        "crop": (lambda cache: cache.crop(-4), lambda ids: ids[:, :7]),
        "reorder": (lambda cache: cache.reorder_cache(torch.tensor([2, 0, 0])), lambda ids: ids[[2, 0, 0]]),
        "repeat": (lambda cache: cache.batch_repeat_interleave(2), lambda ids: ids.repeat_interleave(2, 0)),
        "select": (lambda cache: cache.batch_select_indices(torch.tensor([1])), lambda ids: ids[[1]]),
    }
    with torch.no_grad():
        for change, same in changes.values():
            cache = model.model.new_cache(dtype="int8")
            model(ids, cache=cache)
            change(cache)
            before = same(ids)
            new = after[torch.arange(len(before)) % 3]
            expected = twin.logits(torch.cat([before, new], dim=1))[:, before.shape[1] :]
            made = torch.cat([model(token, cache=cache).logits for token in new.split(1, dim=1)], dim=1)
            torch.testing.assert_close(made, expected, rtol=0, atol=1e-9)


def test_a_left_padded_batch_is_rounded_as_each_sequence_alone():
    model, twin, ids, pads = small_model("K=V"), Rounding("K=V", ("modern", "full")), random_ids(2, 13), (0, 5)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    with torch.no_grad():
        cache, made = model.model.new_cache(dtype="int8"), []
        for stop in range(6, 14):
            start = stop - 1 if made else 0
            made.append(model(ids[:, start:stop], attention_mask=mask[:, :stop], cache=cache).logits)
        logits = torch.cat(made, dim=1)
        for row, pad in enumerate(pads):
            alone = twin.logits(ids[row : row + 1, pad:])[0]
            torch.testing.assert_close(logits[row, pad:], alone, rtol=0, atol=1e-9)
