"""An upper bound on the time that a cure can save, from the bytes that copies move; known before any compile."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layoutdoctor.units import Bytes, Seconds

LEAST_GAIN = 0.02
"""A cure that can save a smaller share of a call is not worth a compile."""

COPIES_ONLY = frozenset({"autocast-dtype", "channels-last-cat", "without-contiguous"})
"""
Cures that save copies and change nothing else.

Other cures run different code for an operation: the bytes that copies move do not bound their gain.
"""
_THERE_AND_BACK = 2
_SLOWEST_COPY = 4
"""A conversion, with its strided reads or writes, takes at most this many times as long as a plain copy."""


def can_pay(cure: str, bytes_moved: Bytes, call_seconds: Seconds, bandwidth: float | None) -> bool:
    """
    Whether a cure may save enough of a call to be compiled and timed.

    Args:
        cure: Name of the cure.
        bytes_moved: Bytes read and written by the copies that the cure saves; each copy may be converted back later.
        bandwidth: The device's copy bandwidth, bytes read plus bytes written per second; None if not measured.

    Returns:
        True also if the cure changes more than copies, or if an argument is 0 or None.
    """
    if cure not in COPIES_ONLY or not bandwidth or not call_seconds or not bytes_moved:
        return True
    return _THERE_AND_BACK * _SLOWEST_COPY * bytes_moved / bandwidth / call_seconds >= LEAST_GAIN
