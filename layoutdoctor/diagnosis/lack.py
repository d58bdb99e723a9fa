"""The missing part of a record, and why it is missing."""

from __future__ import annotations

from typing import Literal

from layoutdoctor.diagnosis.record import Record

LackPart = Literal[
    "graphs",
    "operations",
    "kernels",
    "launched_kernels",
    "launches",
    "kernels_of_library",
    "kernel_names",
    "block_sizes",
    "tensors",
    "shapes",
    "strides",
    "stack",
    "order",
    "times",
    "rows",
    "conversions",
    "round_trips",
]
"""Parts of a record. ``launched_kernels`` are kernels that were launched but that the profiler did not record."""


class Lack(Record, frozen=True, kw_only=True):
    """
    A part of a record that is missing.

    Attributes:
        reason: Why the part is missing, or what cannot be known without it, as reports print it.
    """

    part: LackPart
    reason: str
