"""The time in which only conversions ran on a device, and whether a run waited for the device or for the host."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from layoutdoctor.diagnosis import Waiting
from layoutdoctor.recording.recording import NONE
from layoutdoctor.units import NANOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutdoctor.examination.kernels.attribution import Attribution
    from layoutdoctor.recording.recording import Column, RecordedTrace

_COLLECTIVE = re.compile(r"^(?:void )?(?:\w{0,20}nccl(?:Dev)?Kernel|nccl|rccl|msccl|deep_ep::|mori::|ishmem|oneccl)")


# Shares of the time of a run in which the device is busy.
_HARDLY_BUSY, _MOSTLY_IDLE, _MOSTLY_BUSY = 0.3, 0.6, 0.9
# A kernel that starts within this time after its launch found an empty queue.
_SHORT_LAG_SECONDS = 1e-4


def waiting_of(attribution: Attribution, exposed_nanoseconds: int) -> Waiting | None:
    """
    Finds out whether a run waited for its busiest device or for the host; None if no kernel ran.

    Args:
        exposed_nanoseconds: Time in which no kernels ran except kernels that convert or may convert a layout.
    """
    trace = attribution.trace
    if not len(trace.kernels):
        return None
    everything = np.ones(len(trace.kernels), bool)
    devices = _devices(trace, everything)
    ran = [_ran_on(trace, *device, everything) for device in devices]
    busy, first, last = max((int((end - begin).sum()), int(begin[0]), int(end[-1])) for begin, end in ran)
    names = np.array([_COLLECTIVE.match(name) is not None for name in trace.names] or [False])
    is_collective = names[trace.kernels.name]
    steps = _step_nanoseconds(attribution)
    whole = max(sum(steps), last - first) if steps else last - first
    lag = _lag(attribution, is_collective)
    return Waiting(
        span_seconds=whole / NANOSECONDS_PER_SECOND,
        busy_seconds=busy / NANOSECONDS_PER_SECOND,
        device_count=len(devices),
        collective_seconds=int(trace.kernels.duration[is_collective].sum()) / NANOSECONDS_PER_SECOND,
        copy_seconds=int(trace.transfers.duration.sum()) / NANOSECONDS_PER_SECOND,
        step_count=len(steps) or None,
        step_seconds=sorted(steps)[len(steps) // 2] / NANOSECONDS_PER_SECOND if steps else None,
        conversion_bound_seconds=exposed_nanoseconds / NANOSECONDS_PER_SECOND / (len(steps) or 1),
        launch_lag_seconds=lag,
        waits_for=_waits_for(busy / whole if whole else 1.0, lag),
    )


def waiting_in_calls(waiting: Waiting, call_seconds: float) -> Waiting:
    """Replaces the profiled time by the time of an unprofiled call, because the profiler slows the launches."""
    waits_for = _waits_for(waiting.busy_seconds / call_seconds, waiting.launch_lag_seconds)
    return msgspec.structs.replace(waiting, span_seconds=call_seconds, waits_for=waits_for)


def _step_nanoseconds(attribution: Attribution) -> list[int]:
    """The length of each step in which something was launched on the device."""
    lengths = attribution.step_nanoseconds
    ran = np.isin(np.arange(len(lengths)), attribution.step)
    return [length for length in lengths[ran].tolist() if length > 0]


def _lag(attribution: Attribution, is_collective: NDArray[np.bool_]) -> float | None:
    """
    Median seconds from launch to start of kernels with a known operation; None if there is no such kernel.

    Collectives are left out, because they wait for other devices.
    """
    trace, launch = attribution.trace, attribution.launch
    known = (launch != NONE) & (attribution.operation != NONE) & ~is_collective
    if not known.any():
        return None
    lags = trace.kernels.start[known] - trace.launches.start[launch[known]]
    return float(np.median(np.maximum(lags, 0))) / NANOSECONDS_PER_SECOND


def _waits_for(busy_share: float, lag: float | None) -> Literal["device", "host"] | None:
    if busy_share >= _MOSTLY_BUSY:
        return "device"
    finds_empty_queue = lag is not None and lag <= _SHORT_LAG_SECONDS
    return "host" if busy_share <= _HARDLY_BUSY or (busy_share <= _MOSTLY_IDLE and finds_empty_queue) else None


def exposed_nanoseconds(trace: RecordedTrace, is_asked: NDArray[np.bool_]) -> tuple[int, Column]:
    """
    Time in which only kernels of ``is_asked`` ran on a device: no other kernel, and no copy by its copy engines.

    Returns:
        The time of all these kernels together, overlaps counted once; and the time of each kernel, 0 for other kernels.
    """
    kernels = trace.kernels
    exposed = np.zeros(len(kernels), np.int64)
    total = 0
    for process, device in _devices(trace, is_asked):
        asked = (kernels.process == process) & (kernels.device == device) & is_asked
        busy = _ran_on(trace, process, device, ~is_asked)
        start, end = kernels.start[asked], kernels.start[asked] + kernels.duration[asked]
        mine = _union(start, end)
        total += int((mine[1] - mine[0] - _covered(mine[0], mine[1], *busy)).sum())
        exposed[asked] = end - start - _covered(start, end, *busy)
    return total, exposed


def _devices(trace: RecordedTrace, is_asked: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Distinct pairs of process and device of the kernels in ``is_asked``."""
    kernels = trace.kernels
    return sorted(set(zip(kernels.process[is_asked].tolist(), kernels.device[is_asked].tolist(), strict=True)))


def _ran_on(trace: RecordedTrace, process: int, device: int, is_asked: NDArray[np.bool_]) -> tuple[Column, Column]:
    """Intervals in which a kernel of ``is_asked``, or a copy by the device's copy engines, ran on a device."""
    kernels, transfers = trace.kernels, trace.transfers
    own = (kernels.process == process) & (kernels.device == device) & is_asked
    beside = (transfers.process == process) & (transfers.device == device)
    starts = np.concatenate([kernels.start[own], transfers.start[beside]])
    return _union(starts, starts + np.concatenate([kernels.duration[own], transfers.duration[beside]]))


def _union(starts: Column, ends: Column) -> tuple[Column, Column]:
    """Sorts intervals, and merges intervals that touch or overlap."""
    if not len(starts):
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    is_first = np.concatenate([[True], starts[1:] > reach[:-1]])
    first = np.flatnonzero(is_first)
    return starts[first], reach[np.concatenate([first[1:] - 1, [len(starts) - 1]])]


def _covered(starts: Column, ends: Column, busy_starts: Column, busy_ends: Column) -> Column:
    """Time of each interval that is inside the busy intervals, which are disjoint and in order."""
    if not len(busy_starts):
        return np.zeros(len(starts), np.int64)
    before = np.concatenate([[0], np.cumsum(busy_ends - busy_starts)])
    return _busy_until(ends, before, busy_starts, busy_ends) - _busy_until(starts, before, busy_starts, busy_ends)


def _busy_until(moments: Column, before: Column, busy_starts: Column, busy_ends: Column) -> Column:
    place = np.searchsorted(busy_starts, moments, side="right") - 1
    inside = np.maximum(place, 0)
    partial = np.clip(moments - busy_starts[inside], 0, busy_ends[inside] - busy_starts[inside])
    sums: Column = np.where(place >= 0, before[inside] + partial, 0)
    return sums
