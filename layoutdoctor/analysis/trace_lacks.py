"""
What a recorded trace lacks, and what that cost: every sentence that a report has to say instead of a finding.

Faces ``trace_conversions``; no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.analysis.trace_sums import MOST_KERNELS_LISTED
from layoutdoctor.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from layoutdoctor.analysis.trace_attribution import Attribution
    from layoutdoctor.analysis.trace_places import Places
    from layoutdoctor.traces.recorded import RecordedTrace

_NANOSECONDS_PER_MICROSECOND = 1000
_SECONDS_PER_NANOSECOND = 1e-9
_NAME_LENGTH = 60


@dataclass(frozen=True)
class _Recording:
    """How to record each part of a trace, or why it is not there."""

    kernels: str = "ProfilerActivity.CUDA"
    operations: str = "ProfilerActivity.CPU"
    strides: str = "torch before 2.3"
    stack: str = "with_stack=True"


_BY_TORCH = _Recording()
_BY_NSIGHT = _Recording(
    kernels="nsys profile --trace=cuda,nvtx",
    operations="torch.autograd.profiler.emit_nvtx(record_shapes=True)",
    strides="a trace of torch.profiler holds them",
    stack="a trace of torch.profiler holds it, with_stack=True",
)


def _how_to_record(trace: RecordedTrace) -> _Recording:
    return _BY_NSIGHT if trace.source.startswith("Nsight") else _BY_TORCH


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
        how = _how_to_record(trace).kernels
        return (f"device kernels were not recorded ({how}), so nothing can be said of conversions",)
    return tuple(_sentences(trace, attribution, places, is_possible))


def _sentences(
    trace: RecordedTrace, attribution: Attribution, places: Places, is_possible: NDArray[np.bool_]
) -> Iterator[str]:
    count = len(trace.kernels)
    if not len(trace.operations):
        how = _how_to_record(trace).operations
        yield f"operations were not recorded ({how}), so kernels belong to no operation, module or line"
    else:
        yield from _about_operations(trace, places)
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


def _about_operations(trace: RecordedTrace, places: Places) -> Iterator[str]:
    if not any(recorded.shapes for recorded in trace.arguments):
        yield (
            "shapes were not recorded (record_shapes=True), so which tensor was converted rests on the launch grid "
            "or the order of kernels"
        )
    elif not any(recorded.strides for recorded in trace.arguments):
        how = _how_to_record(trace).strides
        yield f"strides were not recorded ({how}), so eager copies between layouts cannot be told"
    if not places.has_frames:
        how = _how_to_record(trace).stack
        yield f"the Python stack was not recorded ({how}), so no module and no line is named"
