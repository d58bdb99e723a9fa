"""What a recorded run waited for: the device's busy time, steps, collectives, and what conversions cost at most."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from builders import a_measurement
from loops import for_each
from recorded_builders import GEMM, TO_NHWC, Recorder, a_recording

from layoutdoctor.examination.examine import diagnosis_of
from layoutdoctor.examination.kernels.conversions import examine_recorded
from layoutdoctor.recording.recording import Iteration
from layoutdoctor.reports.sections.view import build_remarks

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Diagnosis, Waiting

MICROSECOND = 1e-6
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def waiting_of(record: Recorder) -> Waiting:
    found = examine_recorded(record.trace()).kernels.waiting
    assert found is not None
    return found


def run(*kernels: tuple[str, int, int], stream: int = 7) -> Recorder:
    """Kernels by name, when they run in microseconds and how long."""
    record = Recorder()
    for name, start, length in kernels:
        with record.operation("aten::mm"):
            record.kernel(name, at=1000 * start, takes=1000 * length, stream=stream)
    return record


def test_busy_time_counts_what_overlaps_once_and_copies_as_well() -> None:
    record = run((GEMM, 0, 10), (GEMM, 5, 10), (GEMM, 90, 10))
    record.transfer(start=40_000, duration=20_000)
    found = waiting_of(record)
    assert found.busy_seconds == pytest.approx(45 * MICROSECOND)
    assert found.span_seconds == pytest.approx(100 * MICROSECOND)
    assert found.copy_seconds == pytest.approx(20 * MICROSECOND)
    assert (found.step_count, found.step_seconds, found.device_count) == (None, None, 1)


def test_collectives_are_told_apart_and_are_no_reason_for_a_lag() -> None:
    found = waiting_of(run((GEMM, 1, 10), (NCCL, 500, 400)))
    assert found.collective_seconds == pytest.approx(400 * MICROSECOND)
    assert found.launch_lag_seconds is not None
    assert found.launch_lag_seconds < 2 * MICROSECOND


def test_the_bound_is_what_nothing_hides_a_step() -> None:
    record = Recorder()
    for number in range(2):
        with record.annotation(f"ProfilerStep#{number}"), record.operation("aten::conv2d"):
            record.now = 1_000_000 * (number + 1)
            record.kernel(TO_NHWC, at=record.now, takes=100_000)
            record.kernel(GEMM, at=record.now + 60_000, takes=100_000, stream=8)
    found = waiting_of(record)
    assert found.step_count == 2
    assert found.step_seconds is not None
    assert found.conversion_bound_seconds == pytest.approx(60 * MICROSECOND, rel=1e-3)


def test_of_several_devices_the_busiest_is_told() -> None:
    record = run((GEMM, 0, 10))
    with record.operation("aten::mm"):
        record.kernel(GEMM, at=0, takes=30_000, device=1)
    found = waiting_of(record)
    assert found.busy_seconds == pytest.approx(30 * MICROSECOND)
    assert found.device_count == 2


@for_each(
    ("kernels", "expected"),
    [
        ([(GEMM, 0, 95), (GEMM, 98, 2)], "device"),
        ([(GEMM, 0, 10), (GEMM, 90, 10)], "host"),
        ([(GEMM, 1, 25), (GEMM, 75, 25)], "host"),
        ([(GEMM, 1000, 250), (GEMM, 1750, 250)], None),
        ([(GEMM, 0, 40), (GEMM, 60, 40)], None),
    ],
)
def test_what_the_run_waited_for_is_said_where_it_is_clear(
    kernels: list[tuple[str, int, int]], expected: str | None
) -> None:
    assert waiting_of(run(*kernels)).waits_for == expected


def test_without_kernels_nothing_is_said() -> None:
    assert examine_recorded(Recorder().trace()).kernels.waiting is None


def diagnosed_call(*, kernel_nanoseconds: int, call_seconds: float | None) -> Diagnosis:
    """A diagnosis of one iteration on a GPU, of a single kernel, and of calls in the rounds that took as long."""
    recorder = Recorder()
    with recorder.operation("aten::relu"):
        recorder.kernel(GEMM, at=1000, takes=kernel_nanoseconds)
    recording = a_recording(iterations=(Iteration(events=recorder.trace(), device="cuda"),))
    measurement = None if call_seconds is None else a_measurement(*[call_seconds] * 9)
    trial = msgspec.structs.replace(recording.trial, measurement=measurement)
    return diagnosis_of([msgspec.structs.replace(recording, trial=trial)])


@for_each(
    ("call_seconds", "expected"),
    [(100e-6, "host"), (21e-6, "device"), (30e-6, None), (None, "device")],
)
def test_a_call_of_a_diagnosis_waits_for_what_its_time_without_the_profiler_shows(
    call_seconds: float | None, expected: str | None
) -> None:
    diagnosis = diagnosed_call(kernel_nanoseconds=20_000, call_seconds=call_seconds)

    kernels = diagnosis.trials[0].kernels
    assert kernels is not None
    assert kernels.waiting is not None
    assert kernels.waiting.waits_for == expected
    assert kernels.waiting.span_seconds == pytest.approx(call_seconds or 20e-6)
    says = (
        'eager: launch-bound: the GPU waits for the processor most of a call (mode="reduce-overhead" launches faster)'
    )
    assert (says in build_remarks(diagnosis)) is (expected == "host")


def test_kernel_times_that_cannot_be_true_say_nothing_of_waiting() -> None:
    kernels = diagnosed_call(kernel_nanoseconds=20_000, call_seconds=5e-6).trials[0].kernels

    assert kernels is not None
    assert (kernels.seconds, kernels.waiting) == (None, None)
