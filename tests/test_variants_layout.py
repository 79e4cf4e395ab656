"""The row of every line of the design's picture: spans, widths, permutation, bytes, drawing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.variants.layout import ITEM_BYTES, RowLayout, Span, cache_bytes, draw, item_bytes
from twofold.variants.notation import parse

sizes = st.integers(1, 40)


def numbers_of(span):
    return set(range(span.start, span.stop))


@given(sizes)
def test_separate_rows_share_nothing(d):
    row = RowLayout.separate(d)
    assert (row.head_width, row.shared_width, row.key_dim, row.value.width) == (2 * d, 0, d, d)
    assert (row.key, row.value) == (Span(0, d), Span(d, 2 * d))
    assert not numbers_of(row.key) & numbers_of(row.value)


@given(sizes)
def test_shared_rows_share_everything(d):
    row = RowLayout.shared(d)
    assert (row.head_width, row.shared_width, row.key_dim) == (d, 0, d)
    assert row.key == row.value == Span(0, d)


@given(sizes, st.data())
def test_partial_rows_keep_the_rotated_part_twice(r, data):
    d = r + data.draw(sizes)
    row = RowLayout.partial(d, r)
    assert (row.head_width, row.shared_width, row.key_dim, row.value.width) == (d + r, 0, d, d)
    assert (row.key, row.value) == (Span(0, d), Span(r, d + r))
    assert len(numbers_of(row.key) & numbers_of(row.value)) == d - r


@given(sizes, st.data())
def test_partial_rows_give_back_key_and_value_of_an_unshared_layer(r, data):
    d = r + data.draw(sizes)
    row = RowLayout.partial(d, r)
    raw = np.arange(d)  # the unshared layer's value, and its key before rotary
    rotated = -1 - raw[:r]  # anything that differs from the raw part
    cached = np.full(row.head_width, 10**6)
    cached[row.value.start : row.value.stop] = raw[list(row.value_order)]
    cached[:r] = rotated
    assert cached[row.key.start : row.key.stop].tolist() == [*rotated, *raw[r:]]
    value = np.empty(d, int)
    value[list(row.value_order)] = cached[row.value.start : row.value.stop]
    assert value.tolist() == raw.tolist()


@pytest.mark.parametrize("make", [RowLayout.decoupled, RowLayout.latent])
def test_decoupled_rows_have_one_rotary_key_for_all_heads(make):
    row = make(11, 3)
    assert (row.head_width, row.shared_width, row.key_dim, row.value.width) == (11, 3, 14, 11)
    assert row.key == row.value == Span(0, 11)
    assert row.shared_key == Span(0, 3)
    assert row.numbers(5) == 5 * 11 + 3


def test_deepseek_v2_latent_row_is_576_numbers():
    assert RowLayout.latent(512, 64).numbers(1) == 576


def test_input_row_is_the_input():
    row = RowLayout.input(17)
    assert (row.numbers(1), row.key, row.value) == (17, Span(0, 17), Span(0, 17))


@pytest.mark.parametrize(
    ("variant", "width"), [("QKV", 2), ("Q=K", 2), ("K=V", 1), ("Q=K=V", 1), ("MQA", 2), ("K=V GQA-2", 1)]
)
def test_variants_take_the_first_two_layouts(variant, width):
    row = parse(variant).row_layout(7)
    assert (row.head_width, row.shared_width) == (7 * width, 0)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 7), st.integers(1, 13), st.sampled_from([1, 2, 4, 8]))
def test_cache_bytes_are_those_of_an_array(layers, batch, kv_heads, tokens, itemsize):
    layout = RowLayout.decoupled(11, 3)
    array = np.zeros((layers, batch, tokens, kv_heads * 11 + 3), f"V{itemsize}")
    counted = cache_bytes(layout, kv_heads, tokens=tokens, itemsize=itemsize, layers=layers, batch=batch)
    assert counted == array.nbytes


def test_an_empty_cache_has_no_bytes():
    assert cache_bytes(RowLayout.separate(5), 3, tokens=0, itemsize=4) == 0


@pytest.mark.parametrize(
    ("layout", "picture"),
    [
        (RowLayout.separate(64), "[ k k k k | v v v v ]"),
        (RowLayout.shared(64), "[ c c c c ]"),
        (RowLayout.partial(512, 128), "[ kʳ | c c c | vʳ ]"),
        (RowLayout.decoupled(64, 16), "[ c c c c ] [ kʳ ]"),
        (RowLayout.latent(512, 64), "[ c c c c ] [ kʳ ]"),
        (RowLayout.input(1024), "[ c c c c ]"),
    ],
)
def test_draw(layout, picture):
    assert draw(layout) == picture


@given(sizes, st.data())
def test_a_drawn_row_shows_every_kind_of_region(r, data):
    d = r + data.draw(sizes)
    picture = draw(RowLayout.partial(d, r))
    assert [picture.count(mark) for mark in ("kʳ", "vʳ", "|")] == [1, 1, 2]
    assert "c" in picture


@pytest.mark.parametrize("rotary", [0, -1, 8, 9])
def test_partial_refuses_rotary_dims_that_leave_nothing(rotary):
    # Over all dims the partial layout would save nothing.
    with pytest.raises(ValueError, match=f"rotary dims must be between 1 and 7, not {rotary}"):
        RowLayout.partial(8, rotary)


def test_decoupled_needs_rotary_dims():
    with pytest.raises(ValueError, match="rotary dims must be at least 1, not 0"):
        RowLayout.decoupled(8, 0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"key": Span(0, 6)}, r"the key \[0:6\) does not lie in a part of 5"),
        ({"value": Span(3, 3)}, r"the value \[3:3\)"),
        ({"value": Span(-1, 3)}, r"the value \[-1:3\)"),
        ({"shared_key": Span(0, 1)}, r"the shared key \[0:1\) does not lie in a part of 0"),
        ({"value_order": (0, 1, 1, 3, 4)}, "value_order must permute the value's 5 dims"),
        ({"value_order": (0, 1)}, "value_order must permute the value's 5 dims"),
    ],
)
def test_spans_that_do_not_fit_are_refused(fields, message):
    whole = {"head_width": 5, "shared_width": 0, "key": Span(0, 5), "value": Span(0, 5)}
    with pytest.raises(ValueError, match=message):
        RowLayout(**{**whole, **fields})


def test_item_bytes_agree_with_torch():
    torch = pytest.importorskip("torch")
    for name, size in ITEM_BYTES.items():
        assert item_bytes(name) == size == getattr(torch, name).itemsize
    with pytest.raises(ValueError, match="unknown dtype 'float8': choose one of float64"):
        item_bytes("float8")
