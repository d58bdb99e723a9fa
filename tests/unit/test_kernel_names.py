"""What a kernel's name proves: conversions, decoys, names that a table cut, data types and convolutions."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from layoutdoctor.examination.kernels.mangled import demangled
from layoutdoctor.examination.kernels.names import (
    KERNELS,
    KernelEntry,
    dtypes_of,
    kernel_entry,
    library_of,
    looks_like_conversion,
    work_of,
)

CUDNN_9 = "void cudnn::engines_precompiled::"
ATEN = "void at::native::"
COPY = "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const"
CUDNN_9_NAME = (
    f"{CUDNN_9}nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, false, true, (cudnnKernelDataType_t)0>"
    "(cudnn::engines_precompiled::nchw2nhwc_params_t<float>, __nv_bfloat16 const*, __nv_bfloat16*)"
)
STRIDED_COPY = f"{ATEN}elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<{COPY}::{{lambda()#10}}>(int)"
STRIDED_UNROLLED = (
    f"{ATEN}unrolled_elementwise_kernel<at::native::copy_device_to_device(at::TensorIterator&, bool)::{{lambda()#2}}::"
    "operator()() const::{lambda(float)#1}, at::detail::Array<char*, 2>, OffsetCalculator<1, unsigned int>, char*>(int)"
)
CAST = (
    f"{ATEN}unrolled_elementwise_kernel<{COPY}::{{lambda(c10::Half)#1}}, at::detail::Array<char*, 2>, "
    "TrivialOffsetCalculator<1, unsigned int>, TrivialOffsetCalculator<1, unsigned int>>(int)"
)
CK_CONVOLUTION = demangled(
    "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_28GridwiseGemm"
)
CK_WEIGHT_GRADIENT = demangled(
    "_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS_47GridwiseGemm_bk0mk1"
)
OTHER_CUTLASS = demangled(
    "_ZN19cutlass_cudnn_train6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS1_11threadblock22Implicit"
)
FPROP_TO_CONTIGUOUS = (
    "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4"
)

# Real names, shortened only behind what decides: library, role, direction.
CONVERSIONS = {
    "void nchwToNhwcKernel<float, float, float, true, false, (cudnnKernelDataType_t)0>(int)": "cudnn to_channels_last",
    "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>(int)": "cudnn to_channels_last",
    CUDNN_9_NAME: "cudnn to_channels_last",
    "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, bool=0, bool=1>(int)": "cudnn to_channels_last",
    f"{CUDNN_9}nhwcToNchwKernel<float, float>(int)": "cudnn to_contiguous",
    "nhwcToNchwKernel": "cudnn to_contiguous",
    "nchwToNhwc3To4Kernel": "cudnn to_channels_last",
    "void nchwToFoldedNhwcKernel<__half, __half>(int)": "cudnn to_channels_last",
    "batched_transpose_64x32_half": "miopen other",
    "batched_transpose_256x4_half": "miopen other",
    "batched_transpose_32x32_pack_2x2_ediv_2x2_half": "miopen other",
    "batched_transpose_16x16_dword.kd": "miopen other",
    "transpose_NCHW2CNHW_V1_1D_WG_float_off64": "miopen other",
    "transpose_CNHW2NCHW_V2_2D_WG_off64": "miopen other",
    "general_4d_reorder_16x256_half_r0231": "miopen to_channels_last",
    "general_4d_reorder_1x256_dword_r0312": "miopen to_contiguous",
    "general_4d_reorder_4x256_byte_r3210": "miopen other",
    "transpose_NCHW2Vec": "miopen other",
    "conv_reorder": "onednn other",
    "gen_reorder": "onednn other",
    "void cuInt8::nchwToNhwcKernel<float>(int, int, bool, const T1 *, T1 *)": "tensorrt to_channels_last",
    "void cuInt8::nhwcToNchwKernel<float>(int, int, const T1 *, T1 *)": "tensorrt to_contiguous",
    "void cuInt8::nhwcTonchw<__half, (int)32, (int)32, (int)2>(const __half *, T1 *)": "tensorrt to_contiguous",
    "cuInt8::nchwToNchhw2": "tensorrt to_blocked",
    "void cuInt8::nchhw2ToNchw<float>(int)": "tensorrt from_blocked",
    "void CUTENSOR_NAMESPACE::permutationKernelPLC3<CUTENSOR_NAMESPACE::VectorWrite2D>(int)": "cutensor other",
    "permutationKernelPLC3": "cutensor other",
    "void cutlass::nchw_to_nhwc_kernel<cutlass::half_t>(cutlass::half_t*, int)": "cutlass to_channels_last",
    "void cutlass::nhwc_to_nchw_kernel<float>(float*, float const*, int)": "cutlass to_contiguous",
    "void nhwc_to_nchw_kernel(int, unsigned char*)": "custom to_contiguous",
    "_nchw_to_nhwc_kernel_0d1d2de": "custom to_channels_last",
}  # fmt: skip
OTHERS = {
    "void nhwcAddPaddingKernel<__nv_bfloat16, __nv_bfloat16, float, (bool)1>(int)": "cudnn padding none",
    "void cudnn::ops::nchwAddPaddingKernel<float, float>(int)": "cudnn padding none",
    "void nhwcToFoldedNhwcKernel<__half, __half>(int)": "cudnn padding none",
    "void foldedNhwcToNhwcKernel<__half, __half>(int)": "cudnn padding none",
    "generic4Channel_kernel": "cudnn padding none",
    "void cutlass::nhwc_padding_kernel<float>(int, int)": "cutlass padding none",
    "nhwc_padding_channel_3To4_kernel": "cutlass padding none",
    "void cudnn::ops::convertTensor_kernel<float, float, float, 0>(float, float const*)": "cudnn cast none",
    "SubTensorOpWithCastTensor1d": "miopen cast none",
    CAST: "aten cast none",
    f"{ATEN}vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(at::T&)>": "aten cast none",
    f"{ATEN}vectorized_elementwise_kernel<4, at::native::bfloat16tofloat32_copy_kernel_cuda(int)>": "aten cast none",
    STRIDED_COPY: "aten strided_copy other",
    STRIDED_UNROLLED: "aten strided_copy other",
    STRIDED_COPY.replace("128, 4", "(int)128, (int)4"): "aten strided_copy other",
    STRIDED_COPY.replace("elementwise_kernel<", "elementwise_kernel_manual_unroll<"): "aten strided_copy other",
    "void tensorTransformGeneric<__nv_bfloat16, __nv_bfloat16, float, true>(int)": "cudnn possible other",
    "genericTranspose_kernel": "cudnn possible other",
    "void transposeBlock_kernel<float>(int)": "cudnn possible other",
    "transposeWarp_kernel": "cudnn possible other",
    "transpose_packed_MN2NM": "miopen possible other",
    "SubTensorOpWithTransform4d": "miopen possible other",
    "void ck::kernel_elementwise_dual<ck::GridwiseElementwise<int>>(int)": "composable_kernel possible other",
    "void genericReformat::copyPackedKernel<float, __half, (bool)1>(int)": "tensorrt possible other",
    "void genericReformat::copyVectorizedKernel<double, float, __half, (bool)1>(int)": "tensorrt possible other",
    "__myl_TranReshMove_myl3_3": "tensorrt possible other",
    "triton_poi_fused_convolution_0": "inductor generated other",
    "triton__0d1d2de": "inductor generated other",
}  # fmt: skip
OF_CONVOLUTIONS = (
    FPROP_TO_CONTIGUOUS,
    "sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32",
    "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_f32_nhwckrsc_nhwc_tilesize64x64x64",
    "sm50_xmma_fprop_conv2d_c1_k1_f32f32_f32_f32_nchwkcrs_nchw_tilesize10x40x8",
    "sm80_xmma_depthwise_convolution_dgrad_tiling_f16f16_nhwckrsc_nhwc_tilesize1x8x8",
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_tf32_64x64_16x10_nhwc_align4>",
    "void cutlass::Kernel<cutlass::conv::kernel::ImplicitGemmConvolution<int>>",
    OTHER_CUTLASS,
    "volta_scudnn_128x32_sliced1x4_ldg4_relu_exp_medium_nhwc_tn_v1",
    "_5x_cudnn_ampere_fp16_scudnn_fp16_128x32_relu_small_nn_v1",
    "trt_ampere_h16816cudnn_64x128_sliced1x2_ldg8_relu_exp_stages_64x4_medium_nhwc_tn_v1",
    "ampere_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
    "void cudnn::cnn::wgrad2d_c1_k1_nhwc_kernel<__half, float, 1, 5, 5>(int)",
    "void cudnn::cnn::conv2d_grouped_direct_kernel<false, true>(int)",
    "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)",
    "void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, false, true, true>(int)",
    "void cudnn::winograd_nonfused::winogradForwardOutput4x4<float, float>(int)",
    "void cask_cudnn::computeOffsetsKernel<false, false>(cask_cudnn::ComputeOffsetsParams)",
    "void fft2d_r2c_32x32<float, false, 0u, false>(float2*)",
    "igemm_bwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8",
    "naive_conv_ab_nonpacked_fwd_ncdhw_ushort_double_ushort.kd",
    "miopenSp3AsmConv_v21_1_3_gfx9_fp32_f2x3_stride1",
    "Im2d2Col_v2",
    CK_CONVOLUTION,
    CK_WEIGHT_GRADIENT,
    "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<5, float, int>(int)",
    "void at::native::vol2col_kernel<float>(int)",
    "gen_conv",
    "conv2d_nhwc_kernel",
    "triton_tem_fused_convolution_4",
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_32x4_nhwc_align8>(int)",
    "cudnn_ampere_scudnn_128x64_nhwc_tn_v1",
    "void xmma_cudnn::gemm::kernel<xmma_cudnn::implicit_gemm::fprop::Kernel_traits<int>>",
    "void conv2d_c1_k1_nhwc_kernel_specialized<__half, __half, __half, float, float, 5, 1, 8, 3, true>(float)",
    "void convolve_common_engine_float_NHWC<float>(int)",
    "void cudnn::cnn::reduce_wgrad_nchw_helper<float, float>(void*, void const*, float, int, int)",
    "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8",
    "naive_conv_ab_nonpacked_fwd_nhwc_half_double_half",
    "cask_cudnn::computeWgradBOffsetsKernel(cask_cudnn::ComputeWgradBOffsetsParams)",
    "padFilterWeights",
    "kern_precompute_indices",
    "computeBOffsetsKernel",
    "scalePackedTensor_kernel",
    "void flip_filter<float, float>(float*, float const*, int, int, int, int)",
    "void cudnn::cnn::im2col4d_kernel<float, long>(cudnn::cnn::im2col4d_params)",
    "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(int)",
    "SubTensorOpWithScalar1d",
)
DECOYS = (
    "triton_tem_fused_mm_4",
    "cutlass_tensorop_f16_s16816gemm_f16_128x128_32x5_tn_align8",
    "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize32x32x64",
    "Cijk_Ailk_Bljk_BBS_BH_MT256x112x32_MI16x16x16x1_SN",
    "void transpose_readWrite_alignment_kernel<float2, float2, 1, false, 6, 4, 4>(cublasTransposeParams<float2>)",
    "void scal_kernel<float2, float2, 1, true, 6, 4, 4>(cublasTransposeParams<float2>)",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(cudnnTensorStruct)",
    "void cudnn::bn_fw_inf_1C11_kernel_NHWC<float>",
    "void pooling_bw_kernel_max_nchw<float>",
    "sumChannelsNCHWKernel",
    "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int, float const*)",
    "max_pool_backward_nhwc",
    "void at::native::(anonymous namespace)::upsample_nearest2d_nhwc_out_frame<float>(int)",
    "void at::native::batch_norm_backward_elemt_channels_last_kernel<4, float>(int)",
    "void at::native::batch_norm_transform_input_kernel<c10::BFloat16, float, true, int>(int)",
    "void group_norm_silu_nhwc_kernel<__half>(int)",
    "gen9_bnorm_nhwc_fwd",
    "void cuSoftMaxLayer::nchwSoftmaxAxisWSmall<float, (unsigned int)32>(int)",
    "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<uniform_and_transform>",
    "void rocprim::ROCPRIM_400400_NS::detail::trampoline_kernel<rocprim::detail::transform_config_selector<int>>",
    "void thrust::cuda_cub::core::_kernel_agent<thrust::transform>",
    "void fbgemm_gpu::permute_2D_data_kernel<true>(int)",
    "permute_pooled_embs_kernel",
    "linearize_index_kernel",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<int>(int)",
    f"{ATEN}vectorized_elementwise_kernel<4, {COPY}>(int)",
)
UNKNOWN = (
    "",
    "my_nchwToNhwcKernel",
    "nchwToNhwcKernelFancy",
    "void other::nchwToNhwcKernel<float>",
    "notbatched_transpose_16x16_half",
    "batched_transpose_16x16_halfway",
    "transpose",
    f"{ATEN}elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::CUDAFunctor_add<float> >",
    "void (anonymous namespace)::softmax_warp_forward<float>(float*)",
)


def described(name: str) -> str | None:
    found = kernel_entry(name)
    return f"{found.library} {found.role} {found.direction}" if found is not None else None


def is_role_of(cut: KernelEntry, whole: KernelEntry) -> bool:
    """Of a cut name it may be open whether its kernel convolves."""
    return cut.role == whole.role or (cut.role, whole.role) == ("decoy", "convolution")


@pytest.mark.parametrize("name", [*CONVERSIONS, *OF_CONVOLUTIONS, *OTHERS, *DECOYS])
def test_what_a_name_proves(name: str) -> None:
    found = kernel_entry(name)

    assert found is not None
    if name in (*OF_CONVOLUTIONS, *DECOYS):
        assert (found.role, found.direction) == ("decoy" if name in DECOYS else "convolution", "none")
    elif name in OTHERS:
        assert described(name) == OTHERS[name]
    else:
        assert described(name) == CONVERSIONS[name].replace(" ", " conversion ")
        assert library_of(name) == found.library


@pytest.mark.parametrize(
    ("name", "looks"),
    [
        ("fused_transpose_add_kernel", True),
        ("void my::NHWC2NCHW<float>(float*)", True),
        ("reformat_weights", True),
        ("swapDim12", True),
        ("void my::layer_norm_nhwc<float>(float*)", False),
        ("transposed_gemm", False),
        ("my_add_kernel", False),
    ],
)
def test_what_speaks_of_layouts_and_of_nothing_that_computes_may_be_a_conversion(name: str, looks: bool) -> None:
    assert kernel_entry(name) is None
    assert looks_like_conversion(name) == looks


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_name_nobody_knows_proves_nothing(name: str) -> None:
    assert kernel_entry(name) is None


def test_every_entry_is_somebodys_and_anchored() -> None:
    found = {id(kernel_entry(name)) for name in (*CONVERSIONS, *OF_CONVOLUTIONS, *OTHERS, *DECOYS)}

    assert [entry.regex for entry in KERNELS if id(entry) not in found] == []

    for entry in KERNELS:
        assert entry.regex.startswith("^")
        pattern = re.compile(entry.regex)
        assert not any(pattern.match(f"my_{name}") for name in (*CONVERSIONS, *OTHERS, *DECOYS))
        assert pattern.groups == 0  # the groups of the joined pattern are the entries


# Mangled names, with what binutils' c++filt makes of them

MANGLED = [line.split("\t") for line in (Path(__file__).parents[1] / "mangled_names.tsv").read_text().splitlines()]


@pytest.mark.parametrize(("name", "in_source"), MANGLED)
def test_a_mangled_name_is_read_up_to_its_parameters(name: str, in_source: str) -> None:
    found = demangled(name)
    assert found
    assert in_source.removeprefix("void ").startswith(found)
    for look_up in (kernel_entry, library_of, dtypes_of, work_of):
        assert look_up(found) == look_up(in_source)


@pytest.mark.parametrize(("name", "in_source"), MANGLED)
def test_a_mangled_name_cut_anywhere_has_its_own_role_or_none(name: str, in_source: str) -> None:
    whole = kernel_entry(in_source)
    for length in range(len(name)):
        found = kernel_entry(demangled(f"{name[:length]}..."))
        assert found is None or (whole is not None and is_role_of(found, whole)), name[:length]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nchwToNhwcKernel", "nchwToNhwcKernel"),
        ("_ZERO_FILL", "_ZERO_FILL"),
        ("_Z", "_Z"),
        ("_ZN", "_ZN"),
        ("_ZN5cudnn", "cudnn"),
        ("_ZN5cudnn3ops16nchwToNhw...", "cudnn::ops::nchwToNhw..."),
        ("_ZN5cudnn3ops16nchwToNhw…", "cudnn::ops::nchwToNhw…"),
        ("_Z10naive_convv.kd", "naive_conv"),
        ("_ZN1a1fI1bXsrT_E1cEEv", "a::f<b, "),  # an expression
    ],
)
def test_what_cannot_be_read_of_a_mangled_name_is_left_out(name: str, expected: str) -> None:
    assert demangled(name) == expected


# Names that a table cut


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*CONVERSIONS, *OF_CONVOLUTIONS, *OTHERS, *DECOYS])
def test_a_name_cut_anywhere_has_its_own_role_or_none(name: str) -> None:
    whole = kernel_entry(name)
    assert whole is not None

    for length in range(len(name) + 1):
        for cut in (f"{name[:length]}...", f"{name[:length]}…"):
            found = kernel_entry(cut)
            if found is not None:
                assert is_role_of(found, whole), cut
                assert found.direction in (whole.direction, "other"), cut


@pytest.mark.parametrize(
    ("beginning", "expected"),
    [
        ("void cudnn::", None),
        ("void cudnn::engines_precompiled::nchwToNhwcKernel", "cudnn conversion to_channels_last"),
        ("void cudnn::engines_precompiled::nchwToNhwcK", None),
        ("void cudnn::engines_precompiled::nchwToNhwcKernelF", None),
        ("batched_transpose_16x16_dword", "miopen conversion other"),
        ("batched_transpose_16x16_dw", None),
        ("void cuInt8::nhwcTonchw<__half, (int)32, (int)", "tensorrt conversion to_contiguous"),
        (STRIDED_COPY[:60], None),
        (STRIDED_COPY[: STRIDED_COPY.index("lambda")], "aten strided_copy other"),
        (CAST[: CAST.index("Trivial")], None),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwck", "cudnn convolution none"),
        ("triton_poi_fused_convolution_native_batch_norm_relu_thr", "inductor generated other"),
        ("tri", None),
    ],
)
def test_a_name_that_was_cut_is_matched_by_its_beginning(beginning: str, expected: str | None) -> None:
    assert described(f"{beginning}...") == expected


# What else a name says


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (CUDNN_9_NAME, ("bfloat16", "bfloat16")),
        (f"{CUDNN_9}nchwToNhwcKernel<float, __half, float, (bool)0>", ("float32", "float16")),
        ("void cudnn::ops::nhwcAddPaddingKernel<double, double>(int)", ("float64", "float64")),
        ("void genericReformat::copyVectorizedKernel<double, float, __half, (bool)1>(int)", ("float32", "float16")),
        ("void cudnn::ops::nchwToNhwcKernel<__half, __ha...", None),
        ("void cudnn::ops::nchwToNhwcKernel<Mystery, __half>", None),
        ("nchwToNhwcKernel", None),
        ("", None),
    ],
)
def test_the_template_arguments_tell_the_data_types(name: str, expected: tuple[str, str] | None) -> None:
    assert dtypes_of(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize32x32x64_s",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_execute_segment_k_off_kernel__5x_cublas",
        "Cijk_Ailk_Bljk_BBS_BH_MT256x112x32_MI16x16x16x1_SN",
        "volta_sgemm_128x64_nn",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x3_nn_align8>(int)",
        "void transpose_readWrite_alignment_kernel<float2>(cublasTransposeParams<float2>)",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>(cudnnTensorStruct)",
        "sm50_xmma_pooling_coalescedC_NHWC_kMAX_3_False_execute_kernel_trt",
        "triton_poi_fused_convolution_3",
        "",
    ],
)
def test_what_is_no_convolution_by_its_name(name: str) -> None:
    assert "convolution" not in (described(name) or "")


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("triton_poi_fused_relu_0", "inductor"),
        ("void at::native::elementwise_kernel<128, 2>", "aten"),
        ("void cutlass::Kernel2<cutlass_80_tensorop>", "cutlass"),
        ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_nhwc_align8>", "cudnn"),
        ("sm90_xmma_gemm_bf16bf16_execute_segment_k_off_kernel__5x_cublas", "cublas"),
        ("sm50_xmma_pooling_coalescedC_NHWC_kMAX_3_False_execute_kernel_trt", "tensorrt"),
        ("trt_ampere_h16816cudnn_64x128_sliced1x2_nhwc_tn_v1", "tensorrt"),
        ("volta_sgemm_128x64_nn", "cublas"),
        ("nvjet_tst_192x8_64x8_4x1_v_bz_TNT", "cublas"),
        ("void cudnn::bn_fw_inf_1C11_kernel_NHWC<float>", "cudnn"),
        ("Cijk_Ailk_Bljk_BBS_BH", "hipblaslt"),
        ("miopenSp3AsmConv_v21_1_3_gfx9_fp32_f2x3_stride1", "miopen"),
        (CK_CONVOLUTION, "composable_kernel"),
        ("void rocprim::ROCPRIM_400400_NS::detail::trampoline_kernel<at::native::X>", "rocprim"),
        ("void at_cuda_detail::cub::DeviceRadixSortKernel<int>", "cub"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "nccl"),
        ("gen_conv", "onednn"),
        ("void pytorch_flash::flash_fwd_kernel<cutlass::bfloat16_t>", "custom"),
        ("void group_norm_silu_nhwc_kernel<__half>(int)", "custom"),
        ("somebody_elses_kernel", None),
        ("", None),
    ],
)
def test_whose_kernel_it_is_as_far_as_the_name_says(name: str, library: str | None) -> None:
    assert library_of(name) == library


# Names made to be slow

HOSTILE = (
    "_ZN5cudnn" + "1a" * 50_000,
    "_ZN2at6native" + "conv_depthwise" * 10_000,
    "_Z1fI" + "i" * 100_000,
    "_Z1fI" + "N1aI" * 30_000,
    "_Z" + "Z" * 30_000,
    "_ZN1aI" + "S_S_" * 30_000,
    "_Z1fIA1_" + "A1_" * 30_000,
    "void " * 1000,
    "nchwToNhwc" * 10_000,
    "sm80_xmma_fprop" + "_nhwc" * 20_000,
    f"{ATEN}unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(" + ", " * 50_000,
    "void cudnn::" + "a" * 100_000,
)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_made_to_be_slow_is_looked_up_at_once(name: str) -> None:
    started = time.process_time()

    name = demangled(name)
    kernel_entry(name)
    kernel_entry(f"{name}...")
    for look_up in (library_of, dtypes_of):
        look_up(name)

    # A tenth of it on a slow machine; a pattern that goes back and forth needs minutes.
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("void flip_filter<float, float>(float*, float const*, int, int, int, int)", "flipping weights"),
        ("scalePackedTensor_kernel", "preparing offsets and scales"),
        (
            "cask_cudnn::computeWgradBOffsetsKernel(cask_cudnn::ComputeWgradBOffsetsParams)",
            "preparing offsets and scales",
        ),
    ],
)
def test_the_work_beside_a_convolution_is_called_what_it_is(name: str, work: str) -> None:
    assert work_of(name) == work
