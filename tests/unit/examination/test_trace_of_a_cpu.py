from __future__ import annotations

import pytest
from recorded_builders import Recorder

from layoutdoctor.diagnosis.layout import contiguous_stride, dense_stride
from layoutdoctor.examination.kernels.conversions import examine_recorded

IMAGE = (2, 16, 8, 9)
LAST = dense_stride(IMAGE, (0, 2, 3, 1))


@pytest.mark.parametrize(
    ("around", "target", "count"),
    [
        ("ProfilerStep#1", LAST, 2),
        ("ProfilerStep#1", contiguous_stride(IMAGE), 0),
        ("Torch-Compiled Region: 0/0", LAST, 0),
    ],
    ids=["another format", "the same format", "compiled code, whose own kernels no trace has"],
)
def test_operations_stand_for_kernels_where_a_copy_changes_the_format(
    around: str, target: tuple[int, ...], count: int
) -> None:
    record = Recorder()
    with record.annotation(around), record.operation("aten::conv2d"):
        with record.operation("aten::contiguous"), record.operation("aten::clone"):
            strides = [target, contiguous_stride(IMAGE)]
            with record.operation("aten::copy_", shapes=[IMAGE, IMAGE], strides=strides):
                pass
        with record.operation("aten::mkldnn_convolution"), record.operation("aten::empty"):
            pass
    trace = record.trace()

    kernels = examine_recorded(trace, "cpu").kernels
    assert [kernel.name for kernel in kernels.kernels] == ["aten::copy_", "aten::mkldnn_convolution"][:count]
    assert kernels.convolution_count == (count or None)
    assert examine_recorded(trace).kernels.count == 0
