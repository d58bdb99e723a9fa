"""Quantities as text, also where rounding crosses into the next unit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import for_each

from layoutdoctor.units import format_bytes, format_ratio, format_seconds, format_share, format_significant


@for_each(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (1.2345e-3, "1.23 ms"),
        (0.99996e-3, "1.00 ms"),
        (0.9994e-3, "999 us"),
        (950e-6, "950 us"),
        (2.5, "2.50 s"),
        (0.9999, "1.00 s"),
        (3600, "3600 s"),
        (1e-9, "1.00 ns"),
        (1.5e-12, "0.00150 ns"),
    ],
)
def test_a_duration_has_three_digits_and_the_unit_that_fits(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


BELOW_A_UNIT = (((1 << 20) - 1, "1.00 MiB"), ((1 << 40) - 1, "1.00 TiB"))


@for_each(
    ("count", "text"),
    [
        (0, "0 B"),
        (12, "12 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1_605_632, "1.53 MiB"),
        (3 << 30, "3.00 GiB"),
        *BELOW_A_UNIT,
    ],
)
def test_a_size_has_a_binary_unit(count: int, text: str) -> None:
    assert format_bytes(count) == text


@for_each(
    ("share", "text"),
    [(0, "0 %"), (0.004, "0.4 %"), (0.026, "2.6 %"), (0.0994, "9.9 %"), (0.0996, "10 %"), (0.19, "19 %"), (1, "100 %")],
)
def test_a_share_is_a_percentage(share: float, text: str) -> None:
    assert format_share(share) == text


@pytest.mark.parametrize(("ratio", "text"), [(1.284, "1.28x"), (0.5, "0.50x"), (99.99, "99.99x"), (123.456, "123.5x")])
def test_a_ratio_has_two_decimals(ratio: float, text: str) -> None:
    assert format_ratio(ratio) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(0, 3, "0"), (123456, 3, "123000"), (9.999, 3, "10.0"), (-1.234, 3, "-1.23"), (99, 2, "99")],
)
def test_significant_digits_are_kept_without_an_exponent(value: float, digits: int, text: str) -> None:
    assert format_significant(value, digits) == text


@given(st.floats(1e-9, 1e5))
def test_a_duration_read_back_is_the_same_to_three_digits(seconds: float) -> None:
    number, unit = format_seconds(seconds).split()

    assert float(number) * {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit] == pytest.approx(seconds, rel=0.006)
    assert len(number.replace(".", "").lstrip("0")) >= 3
