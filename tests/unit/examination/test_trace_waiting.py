"""What a recorded run waited for: the device's busy time, steps, collectives, and what conversions cost at most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from builders import a_measurement
from recorded_builders import GEMM, Recorder, a_recording

from layoutdoctor.examination.examine import diagnosis_of
from layoutdoctor.examination.kernels.conversions import examine_recorded
from layoutdoctor.recording.recording import Iteration
from layoutdoctor.reports.sections.view import build_remarks

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.kernel import Waiting


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


@pytest.mark.parametrize(
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


def diagnosed_call(*, kernel_nanoseconds: int, call_seconds: float | None) -> Diagnosis:
    """A diagnosis of one iteration on a GPU, of a single kernel, and of calls in the rounds that took as long."""
    recorder = Recorder()
    with recorder.operation("aten::relu"):
        recorder.kernel(GEMM, at=1000, takes=kernel_nanoseconds)
    recording = a_recording(iterations=(Iteration(events=recorder.trace(), device="cuda"),))
    measurement = None if call_seconds is None else a_measurement(*[call_seconds] * 9)
    trial = msgspec.structs.replace(recording.trial, measurement=measurement)
    return diagnosis_of([msgspec.structs.replace(recording, trial=trial)])


@pytest.mark.parametrize(
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
        "eager: launch-bound: the GPU waits for the processor most of a call (torch.compile with "
        'mode="reduce-overhead" may be faster)'
    )
    assert (says in build_remarks(diagnosis)) is (expected == "host")


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({}, ' (mode="reduce-overhead" launches faster)'),
        ({"compile_arguments": {"mode": "reduce-overhead"}}, ""),
        ({"inductor_options": {"triton.cudagraphs": True}}, ""),
        ({"ahead_of_time": True}, ""),
    ],
)
def test_what_has_cuda_graphs_or_cannot_have_them_is_not_sent_there(changes: dict[str, Any], advice: str) -> None:
    diagnosis = diagnosed_call(kernel_nanoseconds=20_000, call_seconds=100e-6)
    (trial,) = diagnosis.trials
    configuration = msgspec.structs.replace(trial.configuration, backend="inductor", **changes)
    changed = msgspec.structs.replace(diagnosis, trials=(msgspec.structs.replace(trial, configuration=configuration),))

    (remark,) = (remark for remark in build_remarks(changed) if "launch-bound" in remark)
    assert remark.endswith(f"most of a call{advice}")
