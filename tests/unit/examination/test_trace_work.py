"""Of a trace whose generated kernels say little: what may convert a layout, and the work that is no conversion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from recorded_builders import FORWARD, GEMM, POINTWISE, STRIDED_COPY, TO_NHWC, Recorder

from layoutdoctor.examination.counts import of_convolutions
from layoutdoctor.examination.kernels.conversions import examine_recorded
from layoutdoctor.examination.kernels.tables import summarize_table
from layoutdoctor.recording.recording import KernelTotal, KernelTotals

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.kernel import KernelSummary

ROUNDING = "_ZN5cudnn19engines_precompiled20convertTensor_kernelIfffL21cudnnKernelDataType_t2EEEvT1_PKT_S3_PT0_m"
BATCH_NORM = (
    "_ZN5cudnn26bn_fw_inf_1C11_kernel_NCHWIffLb1ELi1EEEvT0_S1_17cudnnTensorStructPKT_S2_PS3_S2_PKS1_S8_S8_S8_S1_"
)
BIAS = "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::CUDAFunctor_add<float>>>(x)"
FILLING = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, x>(int, x)"
CONCATENATING = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 4, 128, 1>(x)"
SPLIT = "void cutlass_cudnn_train::Kernel<cutlass_cudnn_train::reduction::kernel::ReduceSplitK<int>>(x)"
TENSOR = "cudnn::ops::tensorTransformGeneric<float, float, float, true>(x)"
TILED, FLAT = (1, 4096, 1), (512, 1, 1)
FUSED = "triton_poi_fused_convolution_3"


def sums(kernels: KernelSummary, *kinds: str) -> dict[str, int]:
    return {total.name: total.count for total in kernels.totals if total.kind in kinds}


@pytest.mark.parametrize(
    ("why", "launches", "undecided", "is_open"),
    [
        ("a grid of two dimensions", [(FUSED, "", TILED)], 1, False),
        ("more blocks than a second dimension has", [("triton_poi_fused_clone_2", "", (1, 1, 2))], 1, False),
        ("names that are not unique, as of torch 2.1", [("triton__0d1d2d3de", "", TILED)], 1, False),
        ("block sizes are better than a grid", [(FUSED, "XBLOCK=64,YBLOCK=32", FLAT)], 1, False),
        ("one dimension", [(FUSED, "XBLOCK=1024", FLAT)], 0, False),
        ("few channels need one block", [(FUSED, "", FLAT)], 0, True),
        ("no grid", [(FUSED, "", None)], 0, True),
        ("a replay of two dimensions", [(FUSED, "XBLOCK=64,YBLOCK=32", FLAT), (FUSED, None, FLAT)], 2, False),
        ("a replay of one", [(FUSED, "XBLOCK=64", FLAT), (FUSED, None, FLAT)], 0, False),
        ("a replay with a grid", [(FUSED, None, TILED)], 1, False),
        ("lists of tensors", [("triton_for_fused_0", "", FLAT)], 0, False),
        *(
            ("what computes", [(name, "", TILED)], 0, False)
            for name in (
                "triton_red_fused_mean_4",
                "triton_per_fused_mean_5",
                "triton_spl_fused_cumsum_6",
                "triton_unk_fused_sum_7",
                "triton_tem_fused_convolution_4",
                "triton_mm_3",
                "triton_rope_kernel",
                "matmul_kernel",
            )
        ),
        ("somebody's own, by its name", [("triton_transpose_kernel", "", FLAT)], 1, False),
    ],
)
def test_a_generated_kernel_is_judged_by_what_was_recorded(
    why: str, launches: list[tuple[str, str | None, tuple[int, int, int] | None]], undecided: int, *, is_open: bool
) -> None:
    record = Recorder()
    for name, options, grid in launches:
        if options is None:
            record.kernel(name, is_launched=False, grid=grid)
        else:
            with record.operation(name, kernel_options=options):
                record.kernel(name, grid=grid)
    kernels = examine_recorded(record.trace()).kernels
    assert (kernels.undecided_count, kernels.conversion_count) == (undecided, 0), why
    assert any("block sizes" in lack.reason for lack in kernels.lacks) == is_open, why
    assert any("nor their launch grids" in lack.reason for lack in kernels.lacks) == (launches[0][2] is None), why


def test_without_operations_rounding_belongs_to_the_convolution_around_it() -> None:
    record = Recorder()
    for name in (TO_NHWC, ROUNDING, TO_NHWC, FORWARD, POINTWISE):
        record.kernel(name, is_launched=False)
    kernels = examine_recorded(record.trace()).kernels
    assert (kernels.convolution_count, sums(kernels, "beside")) == (4, {"rounding to TF32": 1})


def test_the_convolution_time_has_no_part_of_what_other_operations_convert() -> None:
    record = Recorder()
    record.convolution((2, 64, 8, 8), (64, 64, 3, 3), TO_NHWC, FORWARD)
    record.pointwise("aten::batch_norm", kernel=TO_NHWC)
    kernels = examine_recorded(record.trace()).kernels
    assert (kernels.conversion_count, len(of_convolutions(kernels, kernels.conversions))) == (2, 1)


def test_the_bound_includes_what_may_convert() -> None:
    record = Recorder()
    record.convolution((2, 64, 8, 8), (64, 64, 3, 3), TO_NHWC, FORWARD)
    with record.operation(FUSED):
        record.kernel(FUSED, grid=TILED, takes=5000)
    kernels = examine_recorded(record.trace()).kernels
    assert kernels.waiting is not None
    assert (kernels.conversion_seconds, kernels.undecided_seconds) == (1e-6, 5e-6)
    assert (kernels.exposed_conversion_seconds, kernels.waiting.conversion_bound_seconds) == (1e-6, 6e-6)


def test_work_beside_convolutions_and_data_that_is_moved_have_sums_of_their_own() -> None:
    record = Recorder()
    record.convolution((2, 64, 8, 8), (64, 64, 3, 3), TO_NHWC, ROUNDING, FILLING, FORWARD, SPLIT, BIAS)
    record.pointwise("aten::cat", kernel=CONCATENATING)
    record.pointwise("aten::fill_", kernel=FILLING)
    record.pointwise("aten::add", kernel=BIAS)
    record.pointwise("aten::batch_norm", kernel=BATCH_NORM)
    for name in ("Memcpy DtoD (Device -> Device)", "Memset (Device)", "Memcpy DtoH (Device -> Pageable)"):
        record.transfer(name)
    kernels = examine_recorded(record.trace()).kernels
    assert sums(kernels, "beside") == {
        "rounding to TF32": 1,
        "filling": 1,
        "adding up split sums": 1,
        "adding the bias": 1,
    }
    assert sums(kernels, "moved") == {"concatenating": 1, "filling": 2, "copying": 1}
    assert (sums(kernels, "possible"), kernels.undecided_count, kernels.count) == ({}, 0, 10)
    assert "cudnn::bn_fw_inf_1C11_kernel_NCHW<float, float, true, 1>" in {kernel.name for kernel in kernels.kernels}


def test_a_table_has_the_same_sums() -> None:
    names = (ROUNDING, FILLING, STRIDED_COPY, TENSOR, FUSED, GEMM, POINTWISE)
    rows = [KernelTotal(name, count, 1000) for count, name in enumerate(names, 2)]
    rows.append(KernelTotal(FILLING, 1, 1000, operation="aten::conv2d"))
    found = summarize_table(KernelTotals("nsys stats", rows))
    assert sums(found, "beside") == {"rounding to TF32": 2, "filling": 1}
    assert sums(found, "moved") == {"filling": 3}
    assert sums(found, "possible") == {STRIDED_COPY: 4, TENSOR: 5}
    assert (found.undecided_count, found.not_understood_count) == (9, 0)
    assert [lack.reason for lack in found.lacks[1:]] == [
        "it is not known which of 6 generated kernels (1.00 us) convert a layout, as a table has no launch grids"
    ]
