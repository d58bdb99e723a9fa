from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_builders import GEMM, TO_NHWC, Recorder

from layoutdoctor.examination.kernels.waiting import exposed_nanoseconds

if TYPE_CHECKING:
    from layoutdoctor.recording.recording import RecordedTrace

Interval = tuple[int, int, int]  # device, start, duration

LENGTH = 200


def exposure(trace: RecordedTrace) -> tuple[int, list[int]]:
    """Of all conversions together, and of each kernel in order."""
    names = [trace.names[name] for name in trace.kernels.name.tolist()]
    total, each = exposed_nanoseconds(trace, np.array([name == TO_NHWC for name in names], bool))
    return total, each.tolist()


INTERVALS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, LENGTH - 40), st.integers(0, 40)), max_size=12)


def painted(intervals: list[Interval], device: int) -> np.ndarray:
    """Which nanoseconds of a device's timeline any of the intervals covers."""
    line = np.zeros(LENGTH, bool)
    for own, start, duration in intervals:
        if own == device:
            line[start : start + duration] = True
    return line


@pytest.mark.thorough
@given(asked=INTERVALS, others=INTERVALS, transfers=INTERVALS)
@settings(max_examples=300, deadline=None)
def test_every_nanosecond_is_judged_as_on_a_painted_timeline(
    asked: list[Interval], others: list[Interval], transfers: list[Interval]
) -> None:
    record = Recorder()
    for name, intervals in ((TO_NHWC, asked), (GEMM, others)):
        for stream, (device, start, duration) in enumerate(intervals):
            record.kernel(name, at=start, takes=duration, device=device, stream=stream)
    for device, start, duration in transfers:
        record.transfer(start=start, duration=duration, device=device)
    trace = record.trace()

    total, each = exposure(trace)

    free = [~painted([*others, *transfers], device) for device in (0, 1)]
    assert total == sum(int((painted(asked, device) & free[device]).sum()) for device in (0, 1))
    kernels = trace.kernels
    columns = zip(kernels.name, kernels.device, kernels.start, kernels.duration, strict=True)
    assert each == [
        int(free[device][start : start + duration].sum()) if trace.names[name] == TO_NHWC else 0
        for name, device, start, duration in columns
    ]
