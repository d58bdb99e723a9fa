"""Each operation, primitive and kernel counts with the median of its shares of a call; other work does not count."""

from __future__ import annotations

import msgspec
import pytest
from recorded_builders import FORWARD, POINTWISE, Recorder, logged

from layoutdoctor.examination.kernels.iterations import Shares
from layoutdoctor.examination.kernels.operations import operation_tree
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


def test_operations_that_were_not_timed_with_a_call_have_the_least_of_their_times() -> None:
    convolution, pooling, add = "aten::convolution", "aten::empty", "aten::add"
    first = on_the_host((convolution, 50), (pooling, 9), (add, 30))
    second = on_the_host((convolution, 60), (pooling, 2), (add, 20))
    other = on_the_host((convolution, 1), (pooling, 1), ("aten::sub", 1))
    of_another_thread = on_the_host((convolution, 1), (pooling, 1), (add, 1), backward="aten::div")
    tree = operation_tree(first.events)

    Shares([first, second, other, of_another_thread], None).set_times(tree)

    found = {entry.name: entry.seconds * 1e6 for entry in tree}
    assert found == pytest.approx({convolution: 59, pooling: 2, add: 20, "aten::mul": 5}, abs=0.1)
    assert next(entry for entry in tree if entry.name == convolution).self_seconds * 1e6 == pytest.approx(57, abs=0.1)


def with_log(*milliseconds: float, problem: str = "4x32x8x8") -> Iteration:
    lines = [logged("reorder", problem, "undef", takes=one, src="abcd", dst="aBcd16b") for one in milliseconds]
    return Iteration(events=Recorder().trace(), device="cpu", log=read_onednn_log("\n".join(lines)))


def test_primitives_of_the_same_problems_have_the_least_of_their_times() -> None:
    first = with_log(0.3, 0.2)
    others = [with_log(0.1, 0.4), with_log(0.2, 0.3), with_log(0.01, 0.01, problem="1x32x8x8"), with_log(0.01)]
    log = Shares([first, *others], None).of_primitives()
    assert log is not None
    assert [one.seconds for one in log.primitives] == pytest.approx([1e-4, 2e-4])
    assert first.log is not None
    assert [one.seconds for one in first.log.primitives] == pytest.approx([3e-4, 2e-4])  # as it was recorded


def on_a_gpu(*kernels: tuple[str, int]) -> Iteration:
    recorder = Recorder()
    for name, takes in kernels:
        recorder.kernel(name, takes=takes)
    return Iteration(events=recorder.trace(), device="cuda")


def test_kernels_of_a_gpu_have_the_least_of_their_times() -> None:
    first = on_a_gpu((FORWARD, 500), (POINTWISE, 40))
    others = [on_a_gpu((FORWARD, 600), (POINTWISE, 30)), on_a_gpu((POINTWISE, 1), (FORWARD, 1))]
    found = Shares([first, *others], None).of_kernels()
    assert found.kernels.duration.tolist() == [500, 30]
    assert found.kernels.start.tolist() == first.events.kernels.start.tolist()


def timed(iteration: Iteration, call_seconds: float, profiled_seconds: float) -> Iteration:
    return msgspec.structs.replace(iteration, call_seconds=call_seconds, profiled_seconds=profiled_seconds)


def test_times_are_shares_of_the_call_however_fast_the_machine_was_in_each_iteration() -> None:
    first, slow = on_the_host(("aten::add", 50), ("aten::empty", 0)), on_the_host(("aten::add", 95), ("aten::empty", 0))
    shares = Shares([timed(first, 100e-6, 100e-6), timed(slow, 200e-6, 200e-6)], 1e-3)
    tree = operation_tree(first.events)

    shares.set_times(tree)

    # 50 and 5 of 100 us in the fast iteration, 95 and 5 of 200 us in the slow one, of a call of 1 ms.
    found = {entry.name: entry.seconds for entry in tree}
    assert found["aten::add"] == pytest.approx((0.5 + 0.475) / 2 * 1e-3, rel=1e-3)
    assert shares.between_seconds == pytest.approx((0.45 + 0.5) / 2 * 1e-3, rel=1e-3)


def test_the_profilers_own_time_is_left_out_as_far_as_its_events_explain_it_and_nothing_exceeds_the_call() -> None:
    iteration = on_the_host(("aten::add", 50), ("aten::empty", 0))  # three events: at most 30 us are the profiler's

    def add_of(call_seconds: float, profiled_seconds: float) -> float:
        tree = operation_tree(iteration.events)
        Shares([timed(iteration, call_seconds, profiled_seconds)], 1e-3).set_times(tree)
        return next(entry.seconds for entry in tree if entry.name == "aten::add")

    # A third of it goes to the operation within this one.
    assert add_of(100e-6, 120e-6) == pytest.approx((50 - 20 / 3) / 100 * 1e-3, rel=1e-3)
    assert add_of(100e-6, 1030e-6) == pytest.approx(40 / 1000 * 1e-3, rel=1e-3)  # disturbed, all of it alike
    assert add_of(20e-6, 56e-6) == pytest.approx(40 / 45 * 1e-3, rel=1e-3)  # it works for 45 us, so the call did


def test_what_disturbs_some_iterations_is_not_the_profilers_own_time() -> None:
    """A DenseNet in training: profiled calls took 1.22 to 1.77 times as long, with 2 us for each of 941 events."""
    iteration = on_the_host(("aten::add", 60), ("aten::empty", 0))
    profiled = (109e-6, 112e-6, 130e-6, 130e-6)
    tree = operation_tree(iteration.events)

    shares = Shares([timed(iteration, 100e-6, seconds) for seconds in profiled], 1e-3)
    shares.set_times(tree)

    # Three events took 12 us, so add works for 56 us, and all operations for 61 us, of 97, 100, 118 and 118 us.
    add = next(entry.seconds for entry in tree if entry.name == "aten::add")
    assert add == pytest.approx((56 / 100 + 56 / 118) / 2 * 1e-3, rel=1e-3)
    assert shares.between_seconds == pytest.approx((39 / 100 + 57 / 118) / 2 * 1e-3, rel=1e-3)


def test_an_iteration_on_a_gpu_is_compared_with_the_call_beside_it() -> None:
    shares = Shares([timed(on_a_gpu((FORWARD, 500), (POINTWISE, 40)), 1e-6, 5e-6)], 2e-6)
    assert shares.of_kernels().kernels.duration.tolist() == [1000, 80]
