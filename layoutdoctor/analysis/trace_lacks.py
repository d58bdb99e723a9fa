"""
What a recorded trace lacks, and what that cost: every sentence that a report has to say instead of a finding.

Faces ``trace_conversions``; no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutdoctor.analysis.trace_sums import MOST_KERNELS_LISTED
from layoutdoctor.traces.recorded import NONE
from layoutdoctor.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from layoutdoctor.analysis.trace_attribution import Attribution
    from layoutdoctor.analysis.trace_places import Places
    from layoutdoctor.traces.recorded import RecordedTrace

_NANOSECONDS_PER_MICROSECOND = 1000
_SECONDS_PER_NANOSECOND = 1e-9
_NAME_LENGTH = 60


def describe_lacks(
    trace: RecordedTrace, attribution: Attribution, places: Places, is_possible: NDArray[np.bool_]
) -> tuple[str, ...]:
    """
    What the trace lacks, as sentences that a report can list.

    Args:
        trace: Any recorded trace.
        attribution: Its attribution.
        places: Its places.
        is_possible: Of each kernel, whether it may convert a layout though its name does not say so.
    """
    if not len(trace.kernels):
        return ("device kernels were not recorded (ProfilerActivity.CUDA), so nothing can be said of conversions",)
    return tuple(_sentences(trace, attribution, places, is_possible))


def _sentences(
    trace: RecordedTrace, attribution: Attribution, places: Places, is_possible: NDArray[np.bool_]
) -> Iterator[str]:
    count = len(trace.kernels)
    if not len(trace.operations):
        yield "operations were not recorded (ProfilerActivity.CPU), so kernels belong to no operation, module or line"
    else:
        yield from _about_operations(trace, attribution, places)
    if attribution.replayed_count:
        yield (
            f"{attribution.replayed_count} of {count} kernels were launched by graph replays, "
            "so their operations are not known"
        )
    if attribution.unlaunched_count and len(trace.operations):
        yield (
            f"{attribution.unlaunched_count} of {count} kernels have no launch in the trace (queued before the "
            "recording began, or not recorded), so their operations are not known"
        )
    if count > 1 and not (trace.kernels.duration % _NANOSECONDS_PER_MICROSECOND).any():
        yield "times are whole microseconds, so those of short kernels are rough"
    if is_possible.any():
        name = trace.names[int(trace.kernels.name[is_possible][0])]
        seconds = int(trace.kernels.duration[is_possible].sum()) * _SECONDS_PER_NANOSECOND
        yield (
            f"{int(is_possible.sum())} kernels ({format_seconds(seconds)}) may convert a layout, their names do not "
            f"say: {name[:_NAME_LENGTH]}"
        )
    if count > MOST_KERNELS_LISTED:
        yield f"the list of single kernels ends after {MOST_KERNELS_LISTED} of {count}; all sums are complete"


def _about_operations(trace: RecordedTrace, attribution: Attribution, places: Places) -> Iterator[str]:
    used = attribution.operation[attribution.operation != NONE]
    arguments = trace.operations.arguments[used]
    recorded = np.array([bool(a.shapes) for a in trace.arguments] or [False])
    strided = np.array([bool(a.strides) for a in trace.arguments] or [False])
    has_shapes = bool(recorded[arguments[arguments != NONE]].any())
    if not has_shapes:
        yield (
            "shapes were not recorded (record_shapes=True), so which tensor was converted rests on the launch grid "
            "or the order of kernels"
        )
    elif not strided[arguments[arguments != NONE]].any():
        yield "strides were not recorded (torch before 2.3), so eager copies between layouts cannot be told"
    if not places.has_frames:
        yield "the Python stack was not recorded (with_stack=True), so no module and no line is named"
