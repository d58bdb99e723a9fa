"""
Whether the times of a profile can be true; where they cannot, the same facts without them: counts and bytes hold.

On a busy machine every profiled iteration may meet another program. What shows it: kernels that take far longer than an
iteration takes in the timing rounds, or a conversion that is slower than any processor copies.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from layoutdoctor.diagnosis.records import (
        Account,
        AccountKind,
        Conversion,
        Graph,
        Kernel,
        KernelSummary,
        Measurement,
        RedundantPair,
        Trial,
    )

_DISTURBED_FACTOR = 1.5
"""Kernels that take this many times what an iteration takes in the rounds were disturbed."""

_LEAST_BANDWIDTH_SHARE = 0.05
"""Of the copy bandwidth: eager's strided copies, the slowest conversions there are, were seen to reach 10 %."""

_LEAST_CPU_BANDWIDTH = 1e9
"""Bytes per second that one core moves element by element, however many cores make the copy bandwidth."""

_START_SECONDS = 100e-6
"""What a conversion of any size may take to start: threads are woken, caches are cold."""

_ALIKE = 0.1
"""Page faults that differ by less are as many."""

OUTSIDE_KERNELS: tuple[AccountKind, ...] = ("allocation", "launches", "outside_kernels")

WITHOUT_SECONDS = "no times of kernels are told, counts and bytes hold"


def exceeds_rounds(kernels: KernelSummary | None, measurement: Measurement | None) -> bool:
    """Whether a profile's kernels take far longer than an iteration does in the rounds."""
    if kernels is None or measurement is None or kernels.seconds is None:
        return False
    return _busy_seconds(kernels.seconds, kernels.kernels) > _DISTURBED_FACTOR * measurement.usual_seconds


def doubt_by_rounds(kernels: KernelSummary | None, measurement: Measurement | None) -> str | None:
    """What the rounds say against a profile; None where they do not."""
    if kernels is None or measurement is None or kernels.seconds is None or not exceeds_rounds(kernels, measurement):
        return None
    return (
        f"profiled kernels take {format_seconds(kernels.seconds)}, an iteration in the timing rounds "
        f"{format_seconds(measurement.usual_seconds)}"
    )


def mapping_seconds(*trials: Trial) -> list[float] | None:
    """
    What mapping memory anew takes in a usual call of each trial.

    As many pages take as long in each: what was measured of one beside the other then differs by the machine's state.

    Returns:
        None where it is not known of one.
    """
    measured = [trial.measurement for trial in trials if trial.measurement is not None]
    seconds = [one.memory_seconds for one in measured if one.memory_seconds is not None]
    if len(seconds) < len(trials):
        return None
    faults = [one.usual_page_faults for one in measured if one.usual_page_faults is not None]
    if len(faults) == len(seconds) and max(faults) <= (1 + _ALIKE) * min(faults):
        return [statistics.mean(seconds)] * len(seconds)
    return seconds


def paces_of(*trials: Trial) -> list[float]:
    """
    How many times as long kernels take in a usual call of each trial as in its profile, as the machine may be slower.

    Returns:
        1 for all, where it is not known of one.
    """
    unknown = [1.0] * len(trials)
    mapping = mapping_seconds(*trials)
    if mapping is None:
        return unknown
    paces = []
    for trial, own in zip(trials, mapping, strict=True):
        measured, kernels = trial.measurement, trial.kernels
        if measured is None or measured.profiled_call_seconds is None:
            return unknown
        usual = max(0.0, measured.usual_seconds - own)
        # In a call its kernels take no longer than all of it.
        paces.append(usual / max(measured.profiled_call_seconds, (kernels and kernels.seconds) or 0.0))
    return paces


def is_borne_out(account: Account) -> bool:
    """
    Whether the slower is slower, and its kernels by up to twice that, or faster by no more than that.

    Else one of both profiles met a slower machine, or the calls differ by less than profiles can tell.
    """
    difference = account.slower_seconds - account.faster_seconds
    outside = sum(row.seconds for row in account.rows if row.kind in OUTSIDE_KERNELS)
    return difference > 0 and -difference <= outside <= 2 * difference


def doubt_by_bandwidth(conversions: Iterable[Conversion], bandwidth: float | None, device: str | None) -> str | None:
    """The conversion that is furthest below what the device copies, in words; None where none is."""
    if not bandwidth:
        return None
    least = _LEAST_BANDWIDTH_SHARE * bandwidth
    if device == "cpu":
        least = min(least, _LEAST_CPU_BANDWIDTH)
    slow = [
        (conversion.seconds / (_START_SECONDS + conversion.bytes_moved / least), conversion)
        for conversion in conversions
        if conversion.seconds is not None
        and conversion.bytes_moved is not None
        and conversion.seconds_source == "measured"
    ]
    factor, worst = max(slow, key=lambda item: item[0], default=(0.0, None))
    if worst is None or factor <= 1 or worst.seconds is None or worst.bytes_moved is None:
        return None
    return (
        f"a conversion that moves {format_bytes(worst.bytes_moved)} was recorded with {format_seconds(worst.seconds)}, "
        "far below what the device copies"
    )


def _busy_seconds(seconds: float, kernels: Sequence[Kernel]) -> float:
    """Time of all kernels; on a GPU, where streams run beside one another, overlaps are counted once."""
    spans = [
        (kernel.start_seconds, kernel.seconds)
        for kernel in kernels
        if kernel.stream is not None and kernel.start_seconds is not None and kernel.seconds is not None
    ]
    if not spans or len(spans) < len(kernels):
        return seconds
    total, end = 0.0, float("-inf")
    for start, own in sorted(spans):
        total += max(0.0, start + own - max(start, end))
        end = max(end, start + own)
    return total


def graphs_without_seconds(graphs: Iterable[Graph]) -> tuple[Graph, ...]:
    """Graphs whose conversions and breakers say nothing of time."""
    return tuple(
        msgspec.structs.replace(
            graph,
            conversions=_without_seconds(graph.conversions),
            breakers=tuple(msgspec.structs.replace(breaker, seconds=None) for breaker in graph.breakers),
        )
        for graph in graphs
    )


def kernels_without_seconds(kernels: KernelSummary) -> KernelSummary:
    """The kernel list, which says nothing of time."""
    return msgspec.structs.replace(
        kernels,
        seconds=None,
        conversion_seconds=None,
        share=None,
        conversions=_without_seconds(kernels.conversions),
        kernels=tuple(msgspec.structs.replace(kernel, seconds=None) for kernel in kernels.kernels),
        exposed_conversion_seconds=None,
        convolution_seconds=None,
        totals=(),
    )


def pairs_without_seconds(pairs: Iterable[RedundantPair]) -> tuple[RedundantPair, ...]:
    """Round trips that say nothing of time."""
    return tuple(
        msgspec.structs.replace(pair, seconds=None, seconds_source=None, exposed_seconds=None) for pair in pairs
    )


def _without_seconds(conversions: Iterable[Conversion]) -> tuple[Conversion, ...]:
    return tuple(
        msgspec.structs.replace(one, seconds=None, seconds_source=None, bandwidth_share=None, exposed_seconds=None)
        for one in conversions
    )
