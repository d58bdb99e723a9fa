"""Several profiled iterations, each disturbed somewhere else: every operation counts with the least it took."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from recorded_builders import LOGGED_SECONDS, Recorder, a_recording, logged

from layoutdoctor.examination.examine import examine
from layoutdoctor.examination.kernels.least import least_times, ran_the_same
from layoutdoctor.recording.onednn import read_onednn_log
from layoutdoctor.recording.recording import Iteration

if TYPE_CHECKING:
    from layoutdoctor.recording.recording import Recording

QUIET, LATE = 40_000, 4_000_000


def on_a_cpu(convolution: int = QUIET, relu: int = QUIET, reorder: float = 0.01, *more: str) -> Iteration:
    """A convolution with a copy in it and a reorder in its log, and a relu; host times in nanoseconds."""
    recorder = Recorder()
    with recorder.operation("aten::mkldnn_convolution"):
        recorder.now += convolution
        with recorder.operation("aten::copy_"):
            recorder.now += QUIET
    for name in ("aten::relu", *more):
        with recorder.operation(name):
            recorder.now += relu
    log = read_onednn_log(logged("reorder", "2x8x4x4", at=0.001, takes=reorder, src="abcd", dst="aBcd16b"))
    events = recorder.trace(base_nanoseconds=round(LOGGED_SECONDS * 1e9))
    return Iteration(events=events, device="cpu", log=log)


def seconds_of(*iterations: Iteration) -> dict[str, float]:
    found = least_times(iterations)
    assert found.doubt is None
    return {entry.name: entry.self_seconds() for entry in found.tree}


def test_each_operation_and_primitive_has_its_least_time() -> None:
    quiet = on_a_cpu()
    disturbed = [on_a_cpu(convolution=LATE), on_a_cpu(relu=LATE), on_a_cpu(reorder=4.1)]
    found = least_times(disturbed)

    assert seconds_of(*disturbed) == seconds_of(quiet)
    assert seconds_of(disturbed[0]) != seconds_of(quiet)  # one alone is as it was recorded
    assert [entry.seconds() for entry in found.tree] == [entry.seconds() for entry in least_times([quiet]).tree]
    assert found.iteration.log is not None
    assert [primitive.seconds for primitive in found.iteration.log.primitives] == [0.01e-3]


def test_one_that_ran_something_else_is_left_out() -> None:
    fast = on_a_cpu(1, 1, 0.001, "aten::add")

    assert seconds_of(on_a_cpu(relu=LATE), fast, on_a_cpu(convolution=LATE)) == seconds_of(on_a_cpu())


def test_which_compile_of_its_process_a_code_was_is_no_other_operation() -> None:
    def of(compiled: str, key: str, *more: str) -> list[Iteration]:
        names = (f"Torch-Compiled Region: {compiled}", f"## Call CompiledFxGraph {key} ##", *more)
        return [on_a_cpu(QUIET, QUIET, 0.01, *names)]

    assert ran_the_same(of("1/0", "fabc"), of("0/0", "fdef"))
    assert not ran_the_same(of("1/0", "fabc"), of("1/0", "fabc", "aten::add"))


def changed(*iterations: Iteration) -> Recording:
    return a_recording(iterations=iterations)


def test_where_no_two_agree_there_are_counts_and_bytes_and_no_times() -> None:
    first, second = a_recording().iterations
    assert second.log is not None
    log = dataclasses.replace(second.log, primitives=second.log.primitives * 2)
    alone, facts = examine(changed(first)), examine(changed(first, msgspec.structs.replace(second, log=log)))

    assert facts.notes == (
        "2 profiled iterations ran different operations: no times of kernels are told, counts and bytes hold",
    )
    assert alone.kernels is not None
    assert facts.kernels is not None
    assert (facts.kernels.count, facts.kernels.conversion_count) == (
        alone.kernels.count,
        alone.kernels.conversion_count,
    )
    assert {facts.kernels.seconds, facts.kernels.conversion_seconds, facts.kernels.share} == {None}
    assert {kernel.seconds for kernel in facts.kernels.kernels} == {None}
    ours, theirs = ([*f.graphs[0].conversions, *f.kernels.conversions] for f in (facts, alone) if f.kernels is not None)
    assert [c.bytes_moved for c in ours] == [c.bytes_moved for c in theirs]
    assert {c.seconds for c in ours} == {c.bandwidth_share for c in ours} == {None}
    assert None not in {c.seconds for c in theirs}


def on_a_gpu(*kernels: tuple[str, int, int]) -> Iteration:
    """Kernels with stream and nanoseconds."""
    recorder = Recorder()
    with recorder.operation("aten::relu"):
        for name, stream, nanoseconds in kernels:
            recorder.kernel(name, stream=stream, takes=nanoseconds)
    return Iteration(events=recorder.trace(), device="cuda")


@pytest.mark.parametrize(
    "second",
    [(("a", 7, 30), ("b", 7, 900), ("c", 9, 50)), (("c", 9, 50), ("a", 7, 30), ("b", 7, 900))],
    ids=["in the same order", "streams in another order"],
)
def test_on_a_gpu_kernels_are_aligned_stream_by_stream(second: Any) -> None:
    found = least_times([on_a_gpu(("a", 7, 800), ("b", 7, 40), ("c", 9, 70)), on_a_gpu(*second)])
    events = found.iteration.events
    took = {events.names[n]: d for n, d in zip(events.kernels.name, events.kernels.duration.tolist(), strict=True)}

    assert found.doubt is None
    assert took == {"a": 30, "b": 40, "c": 50}


def test_on_a_gpu_iterations_whose_kernels_were_lost_say_nothing() -> None:
    found = least_times([on_a_gpu(), on_a_gpu(("a", 7, 80)), on_a_gpu(("a", 7, 60)), on_a_gpu()])

    assert found.doubt is None
    assert found.iteration.events.kernels.duration.tolist() == [60]
