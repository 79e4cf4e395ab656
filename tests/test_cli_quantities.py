"""Memory sizes as people write them, bytes and shares as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.cli.quantities import mib, parse_bytes, parse_count, percent


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("24GiB", 24 * 2**30),
        ("24GB", 24 * 10**9),
        ("24 gib", 24 * 2**30),
        ("512MiB", 512 * 2**20),
        ("512mb", 512 * 10**6),
        ("1.5TiB", 3 * 2**39),
        ("1KiB", 1024),
        ("0.1GB", 10**8),
        ("1.001kB", 1001),
        ("123", 123),
        ("123B", 123),
        ("1_000", 1000),
        ("25,769,803,776", 24 * 2**30),
    ],
)
def test_sizes_are_read_exactly(text, number):
    assert parse_bytes(text) == number


@pytest.mark.parametrize("text", ["", "24G", "24g", "GiB", "-1GiB", "1e9", "24 Gi B", "nan", "24GiBs", "1.GiB"])
def test_anything_else_is_refused_with_the_forms(text):
    with pytest.raises(ValueError, match=r"write 24GiB .* 24GB .* plain number of bytes"):
        parse_bytes(text)


@given(st.integers(0, 2**60))
def test_plain_bytes_and_thousands_separators_round_trip(number):
    assert parse_bytes(str(number)) == parse_bytes(f"{number:,}") == number


@pytest.mark.parametrize(
    ("text", "number"),
    [("1.2M", 1_200_000), ("300k", 300_000), ("2B", 2 * 10**9), ("1_200", 1200), ("1,200", 1200), (" 7 ", 7)],
)
def test_counts_are_read_exactly(text, number):
    assert parse_count(text) == number


@pytest.mark.parametrize("text", ["", "-1", "1e6", "1.2MiB", "M", "nan", "1.2 million", "2GB"])
def test_any_other_count_is_refused_with_the_forms(text):
    with pytest.raises(ValueError, match=r"write 1200000, 1_200_000, 1\.2M, 300K or 2B"):
        parse_count(text)


def test_mib_is_two_to_the_twenty():
    assert [mib(n) for n in (2**20, 5632 * 2**20, 0)] == ["1.00", "5,632.00", "0.00"]
    assert mib(10_240) == "0.00977"


def test_percent_keeps_every_digit():
    assert [percent(r) for r in (1.0, 0.5, 1 / 16, 1 / 32)] == ["100 %", "50 %", "6.25 %", "3.125 %"]
