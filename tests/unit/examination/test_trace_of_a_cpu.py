from __future__ import annotations

import pytest
from recorded_builders import Recorder

from layoutdoctor.diagnosis.layout import contiguous_stride, dense_stride
from layoutdoctor.examination.kernels.conversions import examine_recorded

IMAGE = (2, 16, 8, 9)
LAST = dense_stride(IMAGE, (0, 2, 3, 1))


@pytest.mark.parametrize(
    ("around", "strides", "count", "copied", "undecided"),
    [
        ("ProfilerStep#1", [LAST, contiguous_stride(IMAGE)], 2, ["to_channels_last"], 0),
        ("ProfilerStep#1", [contiguous_stride(IMAGE)] * 2, 2, [], 0),
        ("ProfilerStep#1", None, 2, [], 1),
        ("Torch-Compiled Region: 0/0", [LAST, contiguous_stride(IMAGE)], 0, [], 0),
    ],
    ids=["another format", "the same format", "no strides", "compiled code, whose own kernels no trace has"],
)
def test_operations_stand_for_kernels_and_a_copy_converts_if_its_strides_say_so(
    around: str, strides: list[tuple[int, ...]] | None, count: int, copied: list[str], undecided: int
) -> None:
    record = Recorder()
    with record.annotation(around), record.operation("aten::conv2d"):
        with record.operation("aten::contiguous"), record.operation("aten::clone"):
            given = {} if strides is None else {"strides": strides}
            with record.operation("aten::copy_", shapes=[IMAGE, IMAGE], **given):
                pass
        with record.operation("aten::mkldnn_convolution"), record.operation("aten::empty"):
            pass
    trace = record.trace()

    facts = examine_recorded(trace, "cpu")
    kernels = facts.kernels
    assert [conversion.direction for conversion in facts.conversions] == copied
    assert kernels.undecided_count == undecided
    assert [kernel.name for kernel in kernels.kernels] == ["aten::copy_", "aten::mkldnn_convolution"][:count]
    assert kernels.convolution_count == (count or None)
    assert examine_recorded(trace).kernels.count == 0
