from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from recorded_builders import GEMM, POINTWISE, STRIDED_COPY, Recorder

from layoutdoctor.diagnosis.layout import contiguous_stride, dense_stride, strided_layout
from layoutdoctor.examination.kernels.attribution import attribute
from layoutdoctor.examination.kernels.convolutions import classify
from layoutdoctor.examination.kernels.copies import TraceCopy, copied_layouts, find_copies, format_change

if TYPE_CHECKING:
    from collections.abc import Sequence

Shape = tuple[int, ...]

IMAGE, VOLUME, HEADS = (2, 16, 8, 9), (2, 16, 4, 8, 9), (2, 12, 197, 64)
CAST_WITH_STRIDES = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::"
    "{lambda()#3}, at::detail::Array<char*, 2>, 4, OffsetCalculator<1, unsigned int>, x>(int, x)"
)


def last(shape: Shape) -> Shape:
    """Strides of channels_last."""
    return dense_stride(shape, (0, *range(2, len(shape)), 1))


def copies_of(record: Recorder) -> list[TraceCopy]:
    trace = record.trace()
    return find_copies(trace, attribute(trace), classify(trace))


def eager(
    shape: Shape,
    source: Sequence[int],
    target: Sequence[int],
    *,
    kernel: str = STRIDED_COPY,
    name: str = "aten::copy_",
    from_shape: Shape | None = None,
) -> list[TraceCopy]:
    """What is found of one eager copy; ``aten::copy_`` lists what it writes first."""
    record = Recorder()
    with record.operation("aten::contiguous"), record.operation("aten::clone"):
        shapes = [shape, shape if from_shape is None else from_shape]
        record.pointwise(name, *shapes, strides=[tuple(target), tuple(source)], kernel=kernel)
    return copies_of(record)


def told(found: list[TraceCopy]) -> list[tuple[str, str]]:
    return [(copy.kind, copy.direction) for copy in found]


@pytest.mark.parametrize("shape", [IMAGE, VOLUME])
def test_a_copy_between_memory_formats_is_a_conversion(shape: Shape) -> None:
    there = eager(shape, contiguous_stride(shape), last(shape))
    back = eager(shape, last(shape), contiguous_stride(shape))

    assert told(there) == [("converted", "to_channels_last")]
    assert told(back) == [("converted", "to_contiguous")]
    assert there[0].source == strided_layout(shape, contiguous_stride(shape))
    assert there[0].target == strided_layout(shape, last(shape))


def test_a_permuted_attention_is_no_change_between_memory_formats() -> None:
    heads_inside = dense_stride(HEADS, (0, 2, 1, 3))

    assert told(eager(HEADS, heads_inside, contiguous_stride(HEADS))) == [("permuted", "none")]


def test_every_kernel_of_one_copy_is_listed() -> None:
    record = Recorder()
    strides = [last(IMAGE), contiguous_stride(IMAGE)]
    with record.operation("aten::copy_", shapes=[IMAGE, IMAGE], strides=strides):
        record.kernel(STRIDED_COPY)
        record.kernel(STRIDED_COPY)

    assert [(copy.row, copy.direction) for copy in copies_of(record)] == [
        (0, "to_channels_last"),
        (1, "to_channels_last"),
    ]


def test_between_layouts_that_share_a_format_nothing_changes() -> None:
    both = strided_layout((2, 16, 1, 1), (16, 1, 1, 1))

    assert format_change(both, strided_layout((2, 16, 1, 1), (16, 1, 16, 16))) == "none"


def test_a_permutation_of_three_dimensions_is_none_either() -> None:
    assert told(eager((2, 3, 4), (12, 1, 3), (12, 4, 1))) == [("permuted", "none")]


def test_a_cast_that_changes_the_strides_is_a_conversion() -> None:
    assert told(eager(IMAGE, last(IMAGE), contiguous_stride(IMAGE), kernel=CAST_WITH_STRIDES)) == [
        ("converted", "to_contiguous")
    ]


def test_a_copy_that_keeps_the_order_of_strides_is_none() -> None:
    assert eager(IMAGE, contiguous_stride(IMAGE), contiguous_stride(IMAGE)) == []


def test_a_slice_made_dense_keeps_the_order_of_strides() -> None:
    assert eager(IMAGE, contiguous_stride((2, 32, 8, 9)), contiguous_stride(IMAGE)) == []


def test_an_expanded_source_is_no_conversion() -> None:
    assert eager(IMAGE, (0, 0, 9, 1), contiguous_stride(IMAGE)) == []
    assert eager(IMAGE, (1, 0, 0, 0), contiguous_stride(IMAGE)) == []


@pytest.mark.parametrize("shape", [(2, 1, 8, 9), (2, 16, 1, 1), (1, 16, 1, 1)])
def test_strides_of_dimensions_of_size_one_say_nothing(shape: Shape) -> None:
    assert eager(shape, contiguous_stride(shape), last(shape)) == []


def test_a_batch_of_one_may_have_any_stride() -> None:
    shape = (1, 512, 16, 16)

    assert told(eager(shape, (512, 1, 8192, 512), contiguous_stride(shape))) == [("converted", "to_contiguous")]


def test_a_broadcast_copy_is_not_understood() -> None:
    assert eager(IMAGE, (1,), contiguous_stride(IMAGE), from_shape=(9,)) == []


@pytest.mark.parametrize("kernel", [POINTWISE, GEMM])
def test_a_kernel_that_does_not_copy_with_strides_is_none(kernel: str) -> None:
    assert eager(IMAGE, contiguous_stride(IMAGE), last(IMAGE), kernel=kernel) == []


def test_another_operation_than_a_copy_is_none() -> None:
    assert eager(IMAGE, contiguous_stride(IMAGE), last(IMAGE), name="aten::index") == []


def test_without_strides_nothing_is_said() -> None:
    record = Recorder()
    record.pointwise("aten::copy_", IMAGE, IMAGE, kernel=STRIDED_COPY)
    record.kernel(STRIDED_COPY)

    assert copies_of(record) == []


@pytest.mark.parametrize("strides", [[last(IMAGE)], [last(IMAGE), (1,)], [(), ()]])
def test_strides_that_are_not_those_of_the_sizes_say_nothing(strides: list[Shape]) -> None:
    record = Recorder()
    record.pointwise("aten::copy_", IMAGE, IMAGE, strides=strides, kernel=STRIDED_COPY)
    trace = record.trace()

    assert copied_layouts(trace, 0) is None
    assert copies_of(record) == []


def generated(shapes: list[Shape], strides: list[Shape], options: str, name: str = "triton_poi_fused_0") -> Recorder:
    record = Recorder()
    with record.operation(name, shapes=shapes, strides=strides, kernel_file="ab.py", kernel_options=options):
        record.kernel(name)
    return record


def test_a_generated_copy_between_memory_formats_has_a_direction() -> None:
    shapes, strides = [IMAGE, IMAGE, (), ()], [contiguous_stride(IMAGE), last(IMAGE), (), ()]

    found = copies_of(generated(shapes, strides, "XBLOCK=32,YBLOCK=32,num_warps=4"))

    assert told(found) == [("generated", "to_channels_last")]
    assert found[0].source == strided_layout(IMAGE, contiguous_stride(IMAGE))


@pytest.mark.parametrize("options", ["{'XBLOCK': 16, 'YBLOCK': 64}", "XBLOCK:16,YBLOCK:64", "YBLOCK=2"])
def test_every_way_to_write_a_block_is_read(options: str) -> None:
    assert told(copies_of(generated([], [], options))) == [("generated", "other")]


@pytest.mark.parametrize("options", ["XBLOCK=1024", "XBLOCK=32,YBLOCK=1", "XYBLOCK=32", ""])
def test_a_generated_kernel_of_one_dimension_is_none(options: str) -> None:
    shapes, strides = [IMAGE, IMAGE], [contiguous_stride(IMAGE), last(IMAGE)]

    assert copies_of(generated(shapes, strides, options)) == []


@pytest.mark.parametrize(
    ("shapes", "strides"),
    [
        ([IMAGE, IMAGE], [contiguous_stride(IMAGE), contiguous_stride(IMAGE)]),
        ([IMAGE], [last(IMAGE)]),
        ([IMAGE, (2, 16, 72, 1)], [last(IMAGE), contiguous_stride((2, 16, 72, 1))]),
        ([(2, 16), (2, 16)], [(16, 1), (1, 2)]),
    ],
)
def test_a_generated_kernel_whose_layouts_do_not_tell_has_no_direction(
    shapes: list[Shape], strides: list[Shape]
) -> None:
    found = copies_of(generated(shapes, strides, "YBLOCK=32"))

    assert told(found) == [("generated", "other")]
    assert (found[0].source, found[0].target) == (None, None)


def test_a_generated_kernel_of_no_recorded_launch_is_none() -> None:
    record = Recorder()
    record.kernel("triton_poi_fused_0")
    with record.operation("triton_poi_fused_1"):
        record.kernel("triton_poi_fused_1")

    assert copies_of(record) == []


def test_a_template_is_no_generated_copy() -> None:
    assert copies_of(generated([], [], "YBLOCK=32", name="triton_tem_fused_mm_0")) == []


def test_a_change_to_or_from_no_named_format_has_no_direction() -> None:
    strange = strided_layout(IMAGE, dense_stride(IMAGE, (3, 0, 1, 2)))

    assert format_change(strange, strided_layout(IMAGE, last(IMAGE))) == "none"
    assert format_change(strided_layout(IMAGE, last(IMAGE)), strange) == "none"
