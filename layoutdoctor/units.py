"""Adds quantities and formats them as text. Inside the package all times are in seconds and all sizes in bytes."""

from __future__ import annotations

from typing import TypeVar

Seconds = float
Bytes = int
_Number = TypeVar("_Number", int, float)

NANOSECONDS_PER_SECOND = 1e9

_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_SIZE_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def sum_if_all_known(*values: _Number | None) -> _Number | None:
    """Returns the sum of the values; None if any value is None, or if there are no values."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def format_significant(value: float, digits: int = 3) -> str:
    """
    Formats a number with ``digits`` significant digits and no exponent: ``"1.23"``, ``"123"``.

    Args:
        value: Any finite number.
        digits: Number of significant digits. Later digits before the decimal point become 0: ``"12300"``.
    """
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = max(0, digits - 1 - int(f"{rounded:e}".split("e")[1]))
    return f"{rounded:.{decimals}f}"


def format_seconds(seconds: Seconds) -> str:
    """Formats a duration with three significant digits and a unit: ``"1.23 ms"``, ``"950 us"``, ``"2.50 s"``."""
    if seconds == 0:
        return "0 s"
    # Round first, then choose the unit: 0.99996 ms is "1.00 ms", never "1000 us".
    rounded = float(f"{seconds:.2e}")
    for scale, unit in _TIME_UNITS:
        if rounded >= scale:
            return f"{format_significant(rounded / scale)} {unit}"
    return f"{format_significant(rounded / 1e-9)} ns"


def format_bytes(count: Bytes) -> str:
    """Formats a size with three significant digits, ``"1.53 MiB"``; below 1 KiB with all digits, ``"1000 B"``."""
    for scale, unit in _SIZE_UNITS[:-1]:
        # Round first, as for durations: one byte less than a mebibyte is "1.00 MiB", never "1024 KiB".
        if float(f"{count / scale:.2e}") >= 1:
            return f"{format_significant(count / scale)} {unit}"
    return f"{count} B"


_SMALLEST_PERCENT = 0.05


def format_share(share: float) -> str:
    """Formats a share as a percentage: ``"19 %"``, ``"2.6 %"``, ``"0.4 %"``, ``"below 0.1 %"``."""
    percent = 100 * share
    if 0 < percent < _SMALLEST_PERCENT:
        return "below 0.1 %"
    return f"{percent:.0f} %" if percent >= 9.95 or percent == 0 else f"{percent:.1f} %"


def format_ratio(ratio: float) -> str:
    """Formats a ratio with two decimals: ``"1.28x"``; from 100 on, with four significant digits."""
    return f"{ratio:.2f}x" if ratio < 100 else f"{format_significant(ratio, 4)}x"
