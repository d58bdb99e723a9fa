from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from recorded_builders import FORWARD, GEMM, POINTWISE, Recorder

from layoutdoctor.examination.kernels import conversions as trace_lacks
from layoutdoctor.examination.kernels.attribution import Places, attribute
from layoutdoctor.examination.kernels.conversions import describe_lacks

IMAGE = (4, 64, 28, 28)
POSSIBLE = "void tensorTransformGeneric<float, float, float, true, false, false, (cudnnKernelDataType_t)0>(x)"

NO_SHAPES = (
    "shapes were not recorded (record_shapes=True), so which tensor was converted rests on the launch grid or the "
    "order of kernels"
)
NO_STRIDES = "strides were not recorded (torch before 2.3), so eager copies between layouts cannot be told"
NO_STACK = "the Python stack was not recorded (with_stack=True), so no module and no line is named"
NO_OPERATIONS = "operations were not recorded (ProfilerActivity.CPU), so kernels belong to no operation, module or line"
WHOLE_MICROSECONDS = "times are whole microseconds, so those of short kernels are rough"


def complete(**changes: Any) -> Recorder:
    """A trace that lacks nothing."""
    record = Recorder(**changes)
    with (
        record.frame("nn.Module: Conv2d_0"),
        record.operation("aten::relu", shapes=[IMAGE], strides=[(50176, 784, 28, 1)]),
    ):
        record.kernel(POINTWISE, takes=1234)
        record.kernel(POINTWISE, takes=1000)
    return record


def lacks_of(record: Recorder, **changes: Any) -> tuple[str, ...]:
    trace = record.trace(**changes)
    attribution = attribute(trace)
    is_possible = np.array([trace.names[name] == POSSIBLE for name in trace.kernels.name.tolist()], bool)
    return tuple(describe_lacks(trace, attribution, Places(trace, attribution), is_possible))


def test_a_complete_trace_lacks_nothing() -> None:
    assert lacks_of(complete()) == ()


def test_no_kernels() -> None:
    record = Recorder()
    with record.operation("aten::relu"):
        pass

    assert lacks_of(record) == (
        "device kernels were not recorded (ProfilerActivity.CUDA), so nothing can be said of conversions",
    )


def test_no_operations() -> None:
    record = Recorder()
    record.kernel(GEMM, takes=1234)

    assert lacks_of(record) == (NO_OPERATIONS,)


def test_no_shapes() -> None:
    assert lacks_of(complete(has_shapes=False)) == (NO_SHAPES,)


def test_no_strides() -> None:
    record = Recorder()
    with record.frame("nn.Module: Conv2d_0"), record.operation("aten::relu", shapes=[IMAGE]):
        record.kernel(POINTWISE, takes=1234)

    assert lacks_of(record) == (NO_STRIDES,)


def test_operations_without_arguments_beside_others_lack_nothing() -> None:
    record = complete()
    record.pointwise("aten::add", IMAGE)
    with record.operation("triton_poi_fused_0", kernel_file="abc.py"):
        record.kernel("triton_poi_fused_0")

    assert lacks_of(record) == ()


def test_shapes_of_operations_that_ran_no_kernel_were_recorded_all_the_same() -> None:
    record = complete()
    trace = record.trace()
    assert lacks_of(record) == ()

    alone = Recorder()
    with (
        alone.frame("nn.Module: Conv2d_0"),
        alone.operation("aten::empty", shapes=[IMAGE], strides=[(50176, 784, 28, 1)]),
    ):
        pass
    alone.replay(FORWARD, POINTWISE)
    alone.kernel(GEMM, takes=1234)

    assert lacks_of(alone) == ("2 of 3 kernels were launched by graph replays, so their operations are not known",)
    assert len(trace.kernels) == 2


def test_no_stack() -> None:
    record = Recorder()
    with record.operation("aten::relu", shapes=[IMAGE], strides=[(50176, 784, 28, 1)]):
        record.kernel(POINTWISE, takes=1234)

    assert lacks_of(record) == (NO_STACK,)
    assert lacks_of(record, has_stack=True) == ()


def test_a_call_stack_of_torch_1_9_is_a_stack() -> None:
    record = Recorder()
    with record.operation("aten::relu", shapes=[IMAGE], strides=[(784, 1)], call_stack="net.py(17): forward"):
        record.kernel(POINTWISE, takes=1234)

    assert lacks_of(record) == ()


def test_kernels_without_a_launch() -> None:
    record = complete()
    record.kernel(GEMM, is_launched=False, correlation=9)

    assert lacks_of(record) == (
        "1 of 3 kernels have no launch in the trace (queued before the recording began, or not recorded), so their "
        "operations are not known",
    )


def test_without_operations_missing_launches_are_no_loss() -> None:
    record = Recorder()
    record.kernel(GEMM, is_launched=False, takes=1234)

    assert lacks_of(record) == (NO_OPERATIONS,)


@pytest.mark.parametrize(("second", "expected"), [(2000, (WHOLE_MICROSECONDS,)), (2001, ())])
def test_whole_microseconds(second: int, expected: tuple[str, ...]) -> None:
    record = Recorder()
    with record.frame("net.py(3): forward"), record.operation("aten::relu", shapes=[IMAGE], strides=[(784, 1)]):
        record.kernel(POINTWISE, takes=1000)
        record.kernel(POINTWISE, takes=second)

    assert lacks_of(record) == expected


def test_one_kernel_of_a_whole_microsecond_is_no_rule() -> None:
    record = Recorder()
    record.kernel(GEMM, takes=1000)

    assert lacks_of(record) == (NO_OPERATIONS,)


def test_kernels_whose_names_do_not_say_whether_they_convert() -> None:
    record = complete()
    with record.operation("aten::conv3d"):
        record.kernel(POSSIBLE, takes=2000)
        record.kernel(POSSIBLE, takes=3000)

    assert lacks_of(record) == ("2 kernels (5.00 us) may convert a layout, their names do not say: " + POSSIBLE[:60],)


def test_a_list_that_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_lacks, "MOST_KERNELS_LISTED", 2)
    assert lacks_of(complete()) == ()

    monkeypatch.setattr(trace_lacks, "MOST_KERNELS_LISTED", 1)

    assert lacks_of(complete()) == ("the list of single kernels ends after 1 of 2; all sums are complete",)


def test_nsight_systems_records_otherwise() -> None:
    record = Recorder()
    assert lacks_of(record, source="Nsight Systems export") == (
        "device kernels were not recorded (nsys profile --trace=cuda,nvtx), so nothing can be said of conversions",
    )

    record.kernel(GEMM, takes=1234)
    assert lacks_of(record, source="Nsight Systems export") == (
        "operations were not recorded (torch.autograd.profiler.emit_nvtx(record_shapes=True)), so kernels belong to no "
        "operation, module or line",
    )

    record.pointwise("aten::relu", IMAGE)
    assert lacks_of(record, source="Nsight Systems export") == (
        "strides were not recorded (a trace of torch.profiler holds them), so eager copies between layouts cannot be "
        "told",
        "the Python stack was not recorded (a trace of torch.profiler holds it, with_stack=True), so no module and no "
        "line is named",
    )
