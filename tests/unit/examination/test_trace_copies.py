from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from recorded_builders import GEMM, POINTWISE, STRIDED_COPY, Recorder

from layoutdoctor.diagnosis.layout import contiguous_stride, dense_stride
from layoutdoctor.examination.kernels.attribution import attribute
from layoutdoctor.examination.kernels.conversions import examine_recorded
from layoutdoctor.examination.kernels.evidence import Evidence, TraceCopy, find_copies

if TYPE_CHECKING:
    from collections.abc import Sequence

Shape = tuple[int, ...]

IMAGE, HEADS = (2, 16, 8, 9), (2, 12, 197, 64)
CAST_WITH_STRIDES = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::"
    "{lambda()#3}, at::detail::Array<char*, 2>, 4, OffsetCalculator<1, unsigned int>, x>(int, x)"
)
VECTORIZED_COPY = "void at::native::vectorized_elementwise_kernel<4, at::native::direct_copy_kernel_cuda(at::T&)>(int)"
XPU_COPY = "at::native::xpu::VectorizedElementwiseKernel<4, at::native::xpu::CopyScalarFunc<float>, at::detail::Array>"


def last(shape: Shape) -> Shape:
    """Strides of channels_last."""
    return dense_stride(shape, (0, *range(2, len(shape)), 1))


def copies_of(record: Recorder) -> list[TraceCopy]:
    return find_copies(Evidence(attribute(record.trace())))


def eager(
    shape: Shape,
    source: Sequence[int],
    target: Sequence[int],
    *,
    kernel: str = STRIDED_COPY,
    name: str = "aten::copy_",
) -> list[TraceCopy]:
    """What is found of one eager copy; ``aten::copy_`` lists what it writes first."""
    record = Recorder()
    with record.operation("aten::contiguous"), record.operation("aten::clone"):
        record.pointwise(name, shape, shape, strides=[tuple(target), tuple(source)], kernel=kernel)
    return copies_of(record)


def told(found: list[TraceCopy]) -> list[tuple[str, str]]:
    return [(copy.kind, copy.direction) for copy in found if copy.kind not in ("undecided", "unsettled")]


def generated(options: str) -> Recorder:
    record, name = Recorder(), "triton_poi_fused_0"
    with record.operation(name, shapes=[IMAGE, IMAGE], strides=[DENSE, last(IMAGE)], kernel_options=options):
        record.kernel(name)
    return record


@pytest.mark.parametrize(
    ("why", "kernels", "count"),
    [
        ("a copy without strides", [("aten::copy_", STRIDED_COPY, ())], 1),
        ("a copy of no operation", [(None, STRIDED_COPY, ())], 1),
        ("a name that speaks of layouts", [("my::op", "fused_nhwc_transpose", ())], 1),
        ("a copy with strides", [("aten::copy_", STRIDED_COPY, [last(IMAGE), contiguous_stride(IMAGE)])], 0),
        ("a copy of what has no memory format", [("aten::copy_", STRIDED_COPY, None)], 0),
        ("what computes", [("aten::mm", GEMM, ()), ("aten::add", POINTWISE, ())], 0),
    ],
)
def test_what_cannot_be_decided_has_a_count_and_a_time_of_its_own(
    why: str, kernels: list[tuple[str | None, str, list[Shape] | None]], count: int
) -> None:
    record = Recorder()
    for name, kernel, strides in kernels:
        if name is None:
            record.kernel(kernel)
        else:
            shape = (4, 5) if strides is None else IMAGE
            record.pointwise(name, shape, shape, strides=list(strides or ()), kernel=kernel)
    summary = examine_recorded(record.trace()).kernels
    assert summary.undecided_count == count, why
    assert (summary.undecided_seconds or 0) > 0 or not count
    assert summary.conversion_count == 0


DENSE, NARROW = contiguous_stride(IMAGE), (1, 512, 16, 16)


@pytest.mark.parametrize(
    ("why", "found", "expected"),
    [
        ("attention", eager(HEADS, dense_stride(HEADS, (0, 2, 1, 3)), contiguous_stride(HEADS)), ("permuted", "none")),
        ("three dimensions", eager((2, 3, 4), (12, 1, 3), (12, 4, 1)), ("permuted", "none")),
        ("a cast with it", eager(IMAGE, last(IMAGE), DENSE, kernel=CAST_WITH_STRIDES), ("converted", "to_contiguous")),
        (
            "a batch of one may have any stride",
            eager(NARROW, (512, 1, 8192, 512), contiguous_stride(NARROW)),
            ("converted", "to_contiguous"),
        ),
        ("the order stays", eager(IMAGE, DENSE, DENSE), None),
        ("a slice made dense", eager(IMAGE, contiguous_stride((2, 32, 8, 9)), DENSE), None),
        *(("an expanded source", eager(IMAGE, strides, DENSE), None) for strides in ((0, 0, 9, 1), (1, 0, 0, 0))),
        *(
            ("strides of sizes of one say nothing", eager(shape, contiguous_stride(shape), last(shape)), None)
            for shape in ((2, 1, 8, 9), (2, 16, 1, 1), (1, 16, 1, 1))
        ),
        ("a kernel that keeps the strides", eager(IMAGE, DENSE, last(IMAGE), kernel=VECTORIZED_COPY), None),
        *(
            (
                "the operation and its strides decide on every device",
                eager(IMAGE, DENSE, last(IMAGE), kernel=kernel),
                ("converted", "to_channels_last"),
            )
            for kernel in (XPU_COPY, "some_new_kernel")
        ),
        ("another operation", eager(IMAGE, DENSE, last(IMAGE), kernel="some_new_kernel", name="aten::add"), None),
        *(
            ("every way to write a block", copies_of(generated(options)), ("generated", "other"))
            for options in ("{'XBLOCK': 16, 'YBLOCK': 64}", "XBLOCK:16,YBLOCK:64", "YBLOCK=2")
        ),
        *(
            ("one dimension", copies_of(generated(options)), None)
            for options in ("XBLOCK=1024", "XBLOCK=32,YBLOCK=1", "XYBLOCK=32", "")
        ),
        ("another operation", eager(IMAGE, DENSE, last(IMAGE), name="aten::index"), None),
    ],
)
def test_a_copy_is_of_the_kind_that_its_operation_and_its_sizes_show(
    why: str, found: list[TraceCopy], expected: tuple[str, str] | None
) -> None:
    assert told(found) == ([expected] if expected else [])
    assert all((copy.source, copy.target) == (None, None) for copy in found if copy.direction == "other")
