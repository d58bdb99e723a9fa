"""
How long kernels of a recorded trace ran with nothing else running on their device: what the run waited for.

Faces ``trace_conversions``; no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutdoctor.traces.recorded import Column, RecordedTrace


def exposed_nanoseconds(trace: RecordedTrace, is_asked: NDArray[np.bool_]) -> tuple[int, Column]:
    """
    Time in which none but the asked kernels ran on their device, copies by the device's own engines included.

    Args:
        trace: Any recorded trace.
        is_asked: Of each kernel, whether it is one of those asked about.

    Returns:
        The time of all of them together, overlaps counted once; and that of each kernel alone, 0 for those not asked.
    """
    kernels, transfers = trace.kernels, trace.transfers
    exposed = np.zeros(len(kernels), np.int64)
    total = 0
    places = np.stack([kernels.process, kernels.device]) if len(kernels) else np.zeros((2, 0), np.int64)
    for process, device in sorted(set(map(tuple, places[:, is_asked].T.tolist()))):
        own = (kernels.process == process) & (kernels.device == device)
        beside = (transfers.process == process) & (transfers.device == device)
        asked, others = own & is_asked, own & ~is_asked
        starts = np.concatenate([kernels.start[others], transfers.start[beside]])
        ends = starts + np.concatenate([kernels.duration[others], transfers.duration[beside]])
        busy = _union(starts, ends)
        mine = _union(kernels.start[asked], kernels.start[asked] + kernels.duration[asked])
        total += int((mine[1] - mine[0] - _covered(mine[0], mine[1], *busy)).sum())
        start, end = kernels.start[asked], kernels.start[asked] + kernels.duration[asked]
        exposed[asked] = end - start - _covered(start, end, *busy)
    return total, exposed


def _union(starts: Column, ends: Column) -> tuple[Column, Column]:
    """Intervals merged where they touch, in order."""
    if not len(starts):
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    is_first = np.concatenate([[True], starts[1:] > reach[:-1]])
    first = np.flatnonzero(is_first)
    return starts[first], reach[np.concatenate([first[1:] - 1, [len(starts) - 1]])]


def _covered(starts: Column, ends: Column, busy_starts: Column, busy_ends: Column) -> Column:
    """How much of each interval lies within disjoint intervals that are in order."""
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
