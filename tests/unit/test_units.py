"""Quantities as text, also where rounding crosses into the next unit."""

from __future__ import annotations

import pytest

from layoutdoctor.units import format_bytes, format_ratio, format_seconds, format_share, format_significant


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (1.2345e-3, "1.23 ms"),
        (0.99996e-3, "1.00 ms"),
        (950e-6, "950 us"),
        (2.5, "2.50 s"),
        (0.9999, "1.00 s"),
        (3600, "3600 s"),
        (1.5e-12, "0.00150 ns"),
    ],
)
def test_a_duration_has_three_digits_and_the_unit_that_fits(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (12, "12 B"),
        (1024, "1.00 KiB"),
        (1_605_632, "1.53 MiB"),
        (3 << 30, "3.00 GiB"),
        ((1 << 20) - 1, "1.00 MiB"),
    ],
)
def test_a_size_has_a_binary_unit(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (0.004, "0.4 %"), (0.026, "2.6 %"), (0.0994, "9.9 %"), (0.0996, "10 %"), (0.19, "19 %"), (1, "100 %")],
)
def test_a_share_is_a_percentage(share: float, text: str) -> None:
    assert format_share(share) == text


def test_a_ratio_has_two_decimals_and_a_number_its_significant_digits() -> None:
    assert [format_ratio(ratio) for ratio in (1.284, 0.5, 99.99, 123.456)] == ["1.28x", "0.50x", "99.99x", "123.5x"]
    numbers = ((0, 3), (123456, 3), (9.999, 3), (-1.234, 3), (99, 2))
    assert [format_significant(*number) for number in numbers] == ["0", "123000", "10.0", "-1.23", "99"]
