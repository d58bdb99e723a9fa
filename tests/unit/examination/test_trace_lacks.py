from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from recorded_builders import FORWARD, GEMM, POINTWISE, Recorder

from layoutdoctor.examination.kernels.conversions import examine_recorded

IMAGE = (4, 64, 28, 28)
POSSIBLE = "void tensorTransformGeneric<float, float, float, true, false, false, (cudnnKernelDataType_t)0>(x)"

NO_KERNELS = "device kernels were not recorded (ProfilerActivity.CUDA), so nothing can be said of conversions"
NO_SHAPES = (
    "shapes were not recorded (record_shapes=True), so only launch grids or the order of kernels show which "
    "tensor was converted"
)
NO_STRIDES = "strides were not recorded (torch before 2.3), so conversions by eager copies are not known"
NO_STACK = "the Python stack was not recorded (with_stack=True), so no module and no line is named"
NO_OPERATIONS = "operations were not recorded (ProfilerActivity.CPU), so kernels belong to no operation, module or line"


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
    return tuple(lack.reason for lack in examine_recorded(record.trace(**changes)).kernels.lacks)


def one_kernel() -> Recorder:
    record = Recorder()
    record.kernel(GEMM, takes=1234)
    return record


def relu(*takes: int, frame: str | None = "net.py(3): forward", has_strides: bool = True, **fields: Any) -> Recorder:
    """Kernels of one operation of these lengths."""
    record = Recorder()
    fields |= {"strides": [(784, 1)]} if has_strides else {}
    with record.frame(frame) if frame else nullcontext(), record.operation("aten::relu", shapes=[IMAGE], **fields):
        for one in takes or (1234,):
            record.kernel(POINTWISE, takes=one)
    return record


def no_kernels() -> Recorder:
    record = Recorder()
    with record.operation("aten::relu"):
        pass
    return record


def replays() -> Recorder:
    """Shapes of an operation that ran no kernel were recorded all the same."""
    record = Recorder()
    with (
        record.frame("nn.Module: Conv2d_0"),
        record.operation("aten::empty", shapes=[IMAGE], strides=[(50176, 784, 28, 1)]),
    ):
        pass
    record.replay(FORWARD, POINTWISE)
    record.kernel(GEMM, takes=1234)
    return record


def unlaunched() -> Recorder:
    record = complete()
    record.kernel(GEMM, is_launched=False, correlation=9)
    return record


def possible() -> Recorder:
    """Kernels that may convert a layout have sums of their own."""
    record = complete()
    with record.operation("aten::conv3d"):
        record.kernel(POSSIBLE, takes=2000)
    return record


def generated(grid: tuple[int, int, int] | None) -> Recorder:
    record = complete()
    with record.operation("triton_poi_fused_0"):
        record.kernel("triton_poi_fused_0", grid=grid, takes=2000)
    return record


def launches_alone() -> Recorder:
    """A run whose kernels the profiler did not get."""
    record = complete()
    del record.rows["kernels"]
    return record


EMIT_NVTX = "torch.autograd.profiler.emit_nvtx(record_shapes=True)"
BY_NSIGHT = {"source": "nsys_export"}


@pytest.mark.parametrize(
    ("record", "changes", "lacks"),
    [
        (complete(), {}, ()),
        (no_kernels(), {}, (NO_KERNELS,)),
        (launches_alone(), {}, ("2 kernels were launched, and none was recorded",)),
        (one_kernel(), {}, (NO_OPERATIONS,)),
        (complete(has_shapes=False), {}, (NO_SHAPES,)),
        (relu(has_strides=False), {}, (NO_STRIDES,)),
        (relu(frame=None), {}, (NO_STACK,)),
        (relu(frame=None, call_stack="net.py(17): forward"), {}, ()),  # as torch 1.9 wrote it
        (replays(), {}, ("2 of 3 kernels were launched by graph replays, so their operations are not known",)),
        (
            unlaunched(),
            {},
            (
                "1 of 3 kernels have no launch in the trace (queued before the recording began, or not recorded), so "
                "their operations are not known",
            ),
        ),
        (possible(), {}, ()),
        *(
            (
                generated(grid),
                {},
                (f"the block sizes of 1 generated kernel (2.00 us) were not recorded, {why}",),
            )
            for grid, why in (
                ((64, 1, 1), "and a conversion of few channels has the same launch grid as other kernels"),
                (None, "nor their launch grids, so it is not known which of them convert"),
            )
        ),
        (Recorder(), BY_NSIGHT, (NO_KERNELS.replace("ProfilerActivity.CUDA", "nsys profile --trace=cuda,nvtx"),)),
        (one_kernel(), BY_NSIGHT, (NO_OPERATIONS.replace("ProfilerActivity.CPU", EMIT_NVTX),)),
        (
            relu(frame=None, has_strides=False),
            BY_NSIGHT,
            (
                NO_STRIDES.replace("torch before 2.3", "a trace of torch.profiler holds them"),
                NO_STACK.replace("with_stack=True", "a trace of torch.profiler holds it, with_stack=True"),
            ),
        ),
    ],
)
def test_a_trace_names_what_it_lacks(record: Recorder, changes: dict[str, Any], lacks: tuple[str, ...]) -> None:
    assert lacks_of(record, **changes) == lacks
