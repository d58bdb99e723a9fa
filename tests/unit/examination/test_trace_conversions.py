from __future__ import annotations

import math
import time

import pytest
from builders import channels_last, contiguous
from recorded_builders import (
    FORWARD,
    MIOPEN_FORWARD,
    POINTWISE,
    STRIDED_COPY,
    TO_NCHW,
    TO_NHWC,
    TRANSPOSE,
    Recorder,
)

from layoutdoctor.diagnosis.layout import contiguous_stride, dense_stride
from layoutdoctor.diagnosis.subject import SourceLocation
from layoutdoctor.examination.kernels.conversions import TraceFacts, examine_recorded
from layoutdoctor.examination.kernels.shapes import cudnn_grid

IMAGE, WEIGHT, SQUARE = (4, 64, 28, 28), (96, 64, 3, 3), (64, 64, 3, 3)
ALL = (TO_NHWC, TO_NHWC, FORWARD, TO_NCHW)
CAST = "void cudnn::ops::nchwToNhwcKernel<float, __half, float, false, true, (cudnnKernelDataType_t)0>(x)"
PADDING = "void cudnn::ops::nhwcAddPaddingKernel<__half, __half, float, true>(x)"
IN = "to_channels_last"


def facts(record: Recorder) -> TraceFacts:
    return examine_recorded(record.trace())


def test_a_conversion_that_casts_moves_the_bytes_of_both_types_and_padding_converts_nothing() -> None:
    record = Recorder()
    with record.operation("aten::conv2d", shapes=[IMAGE, WEIGHT]):
        record.kernel(CAST, grid=cudnn_grid(IMAGE))
        record.kernel(PADDING)
        record.kernel(FORWARD)

    kernels = facts(record).kernels

    assert [c.direction for c in kernels.conversions] == [IN, "none"]
    assert (kernels.conversion_count, kernels.conversions[0].bytes_moved) == (1, (4 + 2) * math.prod(IMAGE))


def test_a_round_trip_is_the_sum_of_its_conversions_and_names_what_is_between() -> None:
    record = Recorder()
    with record.frame("net.py(7): forward"):
        record.convolution(IMAGE, SQUARE, *ALL)
        record.pointwise("aten::relu", IMAGE)
        with record.frame("net.py(9): head"), record.frame("nn.Module: Conv2d_1"):
            record.convolution(IMAGE, SQUARE, *ALL)

    found = facts(record)

    (pair,) = found.pairs
    assert (pair.kind, pair.evidence, pair.first, pair.second) == ("through", "kernels", "conversion 2", "conversion 3")
    assert (pair.between, pair.tensor_shape, pair.confidence) == (("aten::relu",), IMAGE, "shapes")
    assert pair.seconds == pytest.approx(2e-6)
    assert pair.exposed_seconds == pytest.approx(2e-6)
    assert pair.bytes_moved == 2 * 4 * math.prod(IMAGE)
    assert (pair.location, pair.module) == (SourceLocation(file="net.py", line=9), "Conv2d_1")
    assert pair.proof == (
        "by their operations' arguments, both tensors have the same sizes, and only operations that work in either "
        "format ran between; another tensor of these sizes is possible"
    )

    record = Recorder()
    for name in (TRANSPOSE, MIOPEN_FORWARD, TRANSPOSE, POINTWISE) * 2:
        record.kernel(name, is_launched=False)

    (pair,) = facts(record).pairs

    assert (pair.between, pair.bytes_moved) == (("at::native::vectorized_elementwise_kernel",), None)
    assert pair.proof == (
        "only operations that work in either format ran between; sizes were not recorded, so another value cannot be "
        "excluded"
    )


def copy(record: Recorder, *around: str, shape: tuple[int, ...] = IMAGE, order: tuple[int, ...] = (0, 2, 3, 1)) -> None:
    """A copy from contiguous to that order of dimensions, within operations."""
    names = list(around)
    if names:
        with record.operation(names.pop(0)):
            copy(record, *names, shape=shape, order=order)
        return
    strides = [dense_stride(shape, order), contiguous_stride(shape)]
    record.pointwise("aten::copy_", shape, shape, strides=strides, kernel=STRIDED_COPY)


def test_a_copy_is_the_users_the_frameworks_or_the_compilers_and_a_permutation_is_told_apart() -> None:
    record = Recorder()
    copy(record, "aten::contiguous", "aten::clone")

    (found,) = facts(record).conversions

    assert (found.id, found.owner, found.op, found.direction) == ("copy 0", "user", "aten::contiguous", IN)
    assert (found.source, found.target, found.confidence) == (contiguous(IMAGE), channels_last(IMAGE), "shapes")
    assert (found.graph, found.cause, found.exposed_seconds) == ("recorded", None, pytest.approx(1e-6))

    record = Recorder()
    copy(record, "aten::group_norm", "aten::contiguous")

    (found,) = facts(record).conversions

    assert (found.owner, found.op) == ("framework", "aten::group_norm")

    record = Recorder()
    copy(record, "aten::contiguous", shape=(2, 12, 197, 64), order=(0, 2, 1, 3))

    (found,) = facts(record).conversions

    assert (found.direction, found.exposed_seconds) == ("none", None)
    assert found.cause == "permutes dimensions, which is no change between memory formats"

    record = Recorder()
    name = "triton_poi_fused_convolution_0"
    with record.operation(name, kernel_options="XBLOCK=32,YBLOCK=32"):
        record.kernel(name)

    (found,) = facts(record).conversions

    assert (found.owner, found.direction, found.source, found.confidence) == ("compiler", "other", None, None)
    assert found.cause == "the generated kernel runs in two dimensions, as a layout conversion usually does"


def test_a_trace_without_operations_takes_no_longer_than_its_length() -> None:
    record = Recorder()
    for _ in range(15_000):
        for name in (TO_NHWC, FORWARD, TO_NCHW):
            record.kernel(name)
    trace = record.trace()

    begin = time.process_time()
    kernels = examine_recorded(trace).kernels

    assert kernels.conversion_count == 30_000
    assert time.process_time() - begin < 6
