from __future__ import annotations

import pytest

from layoutdoctor.kernel_names import CONVERSION_KERNELS, conversion_kernel, library_of


@pytest.mark.parametrize(
    ("name", "library", "direction"),
    [
        ("void nchwToNhwcKernel<float, float, float, true, false>(int)", "cudnn", "to_channels_last"),
        ("void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>(int)", "cudnn", "to_channels_last"),
        ("void cudnn::engines_precompiled::nhwcToNchwKernel<float, float>(int)", "cudnn", "to_contiguous"),
        ("nhwcToNchwKernel", "cudnn", "to_contiguous"),
        ("batched_transpose_64x32_half", "miopen", "other"),
        ("batched_transpose_32x32_pack_2x2_ediv_2x2_half", "miopen", "other"),
        ("batched_transpose_16x16_dword.kd", "miopen", "other"),
        ("transpose_NCHW2CNHW_V1_2D_WG512_float", "miopen", "other"),
        ("transpose_CNHW2NCHW_V2_3D_WG256_float", "miopen", "other"),
    ],
)
def test_a_name_that_proves_a_conversion(name: str, library: str, direction: str) -> None:
    known = conversion_kernel(name)

    assert known is not None
    assert (known.library, known.direction) == (library, direction)
    assert library_of(name) == library


@pytest.mark.parametrize(
    "name",
    [
        "sm80_xmma_fprop_implicit_gemm_f16f16_nhwckrsc_nhwc_tilesize128x128x32",
        "void cudnn::bn_fw_inf_1C11_kernel_NHWC<float>",
        "void cudnn::ops::nhwcAddPaddingKernel<float>",
        "void cudnn::ops::convertTensor_kernel<float, float>",
        "void transpose_readWrite_alignment_kernel<float2, cublasTransposeParams<float2>>",
        "max_pool_forward_nchw",
        "my_nchwToNhwcKernel",
        "nchwToNhwcKernelFancy",
        "triton_poi_fused_convolution_0",
        "SubTensorOpWithScalar4d",
        "igemm_fwd_gtcx3_nhwc_fp16",
        "transpose_packed_MN2NM",
        "",
    ],
)
def test_a_name_that_only_sounds_like_one_proves_nothing(name: str) -> None:
    assert conversion_kernel(name) is None


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("triton_poi_fused_relu_0", "inductor"),
        ("void at::native::elementwise_kernel<128, 2>", "aten"),
        ("void cutlass::Kernel2<cutlass_80_tensorop>", "cutlass"),
        ("cublasLt_splitK", "cublas"),
        ("void cudnn::bn_fw_inf_1C11_kernel_NHWC<float>", "cudnn"),
        ("somebody_elses_kernel", None),
    ],
)
def test_whose_kernel_it_is_as_far_as_the_name_says(name: str, library: str | None) -> None:
    assert library_of(name) == library


def test_every_entry_is_anchored_and_has_its_evidence() -> None:
    assert all(entry.pattern.pattern.startswith("^") and entry.evidence for entry in CONVERSION_KERNELS)
