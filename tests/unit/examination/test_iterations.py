"""Each operation, primitive and kernel counts with its least time; other work does not count."""

from __future__ import annotations

import pytest
from recorded_builders import FORWARD, POINTWISE, Recorder, logged

from layoutdoctor.examination.kernels.host import operation_tree
from layoutdoctor.examination.kernels.iterations import take_least_times, with_least_times
from layoutdoctor.recording.onednn import read_onednn_log
from layoutdoctor.recording.recording import Iteration


def on_the_host(*operations: tuple[str, int], backward: str = "aten::mul") -> Iteration:
    """Operations by name and microseconds, the second within the first, and one of autograd's thread."""
    recorder = Recorder()
    (outer, outer_takes), (inner, inner_takes), *others = operations
    with recorder.operation(outer):
        recorder.now += 1000 * outer_takes
        with recorder.operation(inner):
            recorder.now += 1000 * inner_takes
    for name, takes in others:
        with recorder.operation(name):
            recorder.now += 1000 * takes
    recorder.on_thread("autograd")
    with recorder.operation(backward):
        recorder.now += 5000
    return Iteration(events=recorder.trace(), device="cpu")


def test_operations_have_the_least_of_their_times() -> None:
    convolution, pooling, add = "aten::convolution", "aten::empty", "aten::add"
    first = on_the_host((convolution, 50), (pooling, 9), (add, 30))
    second = on_the_host((convolution, 60), (pooling, 2), (add, 20))
    other = on_the_host((convolution, 1), (pooling, 1), ("aten::sub", 1))
    of_another_thread = on_the_host((convolution, 1), (pooling, 1), (add, 1), backward="aten::div")
    tree = operation_tree(first.events)

    take_least_times(tree, [second, other, of_another_thread])

    found = {entry.name: entry.seconds * 1e6 for entry in tree}
    assert found == pytest.approx({convolution: 59, pooling: 2, add: 20, "aten::mul": 5}, abs=0.1)
    assert next(entry for entry in tree if entry.name == convolution).self_seconds * 1e6 == pytest.approx(57, abs=0.1)


def with_log(*milliseconds: float, problem: str = "4x32x8x8") -> Iteration:
    lines = [logged("reorder", problem, "undef", takes=one, src="abcd", dst="aBcd16b") for one in milliseconds]
    return Iteration(events=Recorder().trace(), device="cpu", log=read_onednn_log("\n".join(lines)))


def test_primitives_of_the_same_problems_have_the_least_of_their_times() -> None:
    first = with_log(0.3, 0.2)
    found = with_least_times(first, [with_log(0.1, 0.4), with_log(0.01, 0.01, problem="1x32x8x8"), with_log(0.01)])
    assert found.log is not None
    assert [one.seconds for one in found.log.primitives] == pytest.approx([1e-4, 2e-4])
    assert first.log is not None
    assert [one.seconds for one in first.log.primitives] == pytest.approx([3e-4, 2e-4])  # as it was recorded


def on_a_gpu(*kernels: tuple[str, int]) -> Iteration:
    recorder = Recorder()
    for name, takes in kernels:
        recorder.kernel(name, takes=takes)
    return Iteration(events=recorder.trace(), device="cuda")


def test_kernels_of_a_gpu_have_the_least_of_their_times() -> None:
    first = on_a_gpu((FORWARD, 500), (POINTWISE, 40))
    found = with_least_times(first, [on_a_gpu((FORWARD, 600), (POINTWISE, 30)), on_a_gpu((POINTWISE, 1), (FORWARD, 1))])
    assert found.events.kernels.duration.tolist() == [500, 30]
    assert found.events.kernels.start.tolist() == first.events.kernels.start.tolist()
