from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_builders import GEMM, TO_NHWC, Recorder

from layoutdoctor.examination.kernels.conversions import exposed_nanoseconds

if TYPE_CHECKING:
    from layoutdoctor.recording.recording import RecordedTrace

Interval = tuple[int, int, int]  # device, start, duration

LENGTH = 200


def exposure(trace: RecordedTrace) -> tuple[int, list[int]]:
    """Of all conversions together, and of each kernel in order."""
    names = [trace.names[name] for name in trace.kernels.name.tolist()]
    total, each = exposed_nanoseconds(trace, np.array([name == TO_NHWC for name in names], bool))
    return total, each.tolist()


def test_a_kernel_that_runs_alone_is_exposed_whole() -> None:
    record = Recorder()
    record.kernel(TO_NHWC, at=100, takes=50)
    record.kernel(GEMM, at=150, takes=50)

    assert exposure(record.trace()) == (50, [50, 0])


def test_what_runs_beside_on_another_stream_hides_its_time() -> None:
    record = Recorder()
    record.kernel(TO_NHWC, at=100, takes=50)
    record.kernel(GEMM, at=120, takes=10, stream=8)
    record.kernel(GEMM, at=140, takes=100, stream=8)

    assert exposure(record.trace()) == (30, [30, 0, 0])


def test_another_device_or_process_hides_nothing() -> None:
    record = Recorder()
    record.kernel(TO_NHWC, at=100, takes=50)
    record.kernel(GEMM, at=100, takes=50, device=1)
    record.kernel(GEMM, at=100, takes=50, process=1)

    assert exposure(record.trace()) == (50, [50, 0, 0])


def test_a_copy_by_the_devices_own_engine_hides_time() -> None:
    record = Recorder()
    record.kernel(TO_NHWC, at=100, takes=50)
    record.transfer(start=90, duration=20)
    record.transfer(start=120, duration=20, device=1)

    assert exposure(record.trace()) == (40, [40])


def test_two_conversions_at_once_are_counted_once_together_and_whole_each() -> None:
    record = Recorder()
    record.kernel(TO_NHWC, at=100, takes=50)
    record.kernel(TO_NHWC, at=120, takes=50, stream=8)

    assert exposure(record.trace()) == (70, [50, 50])


def test_a_conversion_within_another_kernel_is_hidden() -> None:
    record = Recorder()
    record.kernel(GEMM, at=0, takes=1000)
    record.kernel(TO_NHWC, at=100, takes=50, stream=8)

    assert exposure(record.trace()) == (0, [0, 0])


def test_a_kernel_within_a_conversion_leaves_its_two_ends() -> None:
    record = Recorder()
    record.kernel(TO_NHWC, at=100, takes=50)
    record.kernel(GEMM, at=120, takes=10, stream=8)

    assert exposure(record.trace())[0] == 40


def test_no_kernels_and_no_conversions_have_no_time() -> None:
    record = Recorder()

    assert exposure(record.trace()) == (0, [])

    record.kernel(GEMM)

    assert exposure(record.trace()) == (0, [0])


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
