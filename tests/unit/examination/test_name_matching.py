"""Kernel names of two versions or two GPUs: what is the same kernel, and what only looks like it."""

from __future__ import annotations

from loops import for_each

from layoutdoctor.examination.changes.traces import loose_name, match_exact_names, match_kernel_names

TO_NHWC = "nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)0>(cudnn::ops::nchw2nhwc_params_t)"
COPY = (
    "void at::native::elementwise_kernel<128, {size}, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_"
    "kernel_cuda(at::TensorIteratorBase&)::{{lambda()#3}}::operator()() const::{{lambda(float)#1}}>(at::Iterator&)>"
    "(int, at::native::direct_copy)"
)


def matched(old: list[str], new: list[str]) -> dict[str, tuple[str | None, int, int]]:
    return {m.name: (m.match, len(m.old_names), len(m.new_names)) for m in match_kernel_names(old, new)}


@for_each(
    ("name", "expected"),
    [
        (f"void cudnn::ops::{TO_NHWC}", "nchwToNhwcKernel"),
        (f"void cudnn::engines_precompiled::{TO_NHWC}", "nchwToNhwcKernel"),
        (f"void {TO_NHWC}", "nchwToNhwcKernel"),
        ("triton_poi_fused_convolution_12", "triton_poi_fused_convolution"),
        ("triton_poi_fused_convolution_12d3", "triton_poi_fused_convolution"),
        ("cpp_fused_convolution_relu_3", "cpp_fused_convolution_relu"),
        ("triton_poi_fused_max_pool2d_with_indices_3", "triton_poi_fused_max_pool2d_with_indices"),
        ("volta_scudnn_128x64_relu_small_nn_v1", "scudnn_128x64_relu_small_nn_v1"),
        ("ampere_scudnn_128x64_relu_small_nn_v1", "scudnn_128x64_relu_small_nn_v1"),
        ("sm80_xmma_fprop_implicit_gemm_f32_nhwckrsc_nhwc", "xmma_fprop_implicit_gemm_f32_nhwckrsc_nhwc"),
        (COPY.format(size=2), "at::native::elementwise_kernel direct_copy_kernel_cuda"),
        (
            "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int)",
            "at::native::max_pool_forward_nchw",
        ),
        (
            "void cutlass::Kernel<cutlass_80_tensorop_s1688fprop_64x64_nhwc>(Params)",
            "cutlass::cutlass_80_tensorop_s1688fprop_64x64_nhwc",
        ),
        ("std::enable_if<!T7, void>::type internal::gemvx::kernel2d<int, float>(Params)", "internal::gemvx::kernel2d"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryF...",
            "at::native::vectorized_elementwise_kernel",
        ),
        ("batched_transpose_32x32_half", "batched_transpose_32x32_half"),
        ("triton_", "triton_"),
        ("<lambda>", "<lambda>"),
        ("", ""),
    ],
)
def test_a_loose_name_is_what_versions_and_gpus_share(name: str, expected: str) -> None:
    assert loose_name(name) == expected


def test_cudnn_8_and_9_call_the_same_conversion_by_other_names() -> None:
    names = matched([f"void cudnn::ops::{TO_NHWC}"], [f"void cudnn::engines_precompiled::{TO_NHWC}"])

    assert names == {"nchwToNhwcKernel": ("loose", 1, 1)}


def test_an_exact_match_is_not_taken_by_a_loose_one() -> None:
    nine = f"void cudnn::engines_precompiled::{TO_NHWC}"

    assert matched([nine], [f"void cudnn::ops::{TO_NHWC}", nine]) == {
        nine: ("exact", 1, 1),
        f"void cudnn::ops::{TO_NHWC}": (None, 0, 1),
    }


def test_a_generated_kernel_that_went_shifts_the_numbers_so_that_its_kind_is_matched_as_a_whole() -> None:
    old = ["triton_poi_fused_convolution_1", "triton_poi_fused_convolution_2", "triton_poi_fused_relu_3"]
    new = ["triton_poi_fused_convolution_1", "triton_poi_fused_relu_2"]

    assert matched(old, new) == {
        "triton_poi_fused_convolution": ("loose", 2, 1),
        "triton_poi_fused_relu": ("loose", 1, 1),
    }


def test_every_name_is_there_once() -> None:
    old = ["a<1>", "a<2>", "triton_poi_fused_x_1", "same"]
    new = ["a<3>", "triton_poi_fused_x_2", "same", "b"]
    matches = match_kernel_names(old, new)

    assert sorted(name for match in matches for name in match.old_names) == sorted(old)
    assert sorted(name for match in matches for name in match.new_names) == sorted(new)


def test_operations_match_by_equal_names_only() -> None:
    matches = match_exact_names(["aten::add", "aten::relu_1"], ["aten::relu_2", "aten::add"])

    assert [(m.name, m.match) for m in matches] == [
        ("aten::add", "exact"),
        ("aten::relu_1", None),
        ("aten::relu_2", None),
    ]
