"""The facts that a kernel's name gives: whether it is a conversion or a convolution, its library, its data types."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, NamedTuple

from layoutdoctor.diagnosis import ConversionDirection, Kernel
from layoutdoctor.words import DTYPES

_FALLBACK = re.compile(r"slow_conv|thnn_conv|vol2col|naive_conv")
KernelRole = Literal["conversion", "convolution", "padding", "cast", "possible", "strided_copy", "generated", "decoy"]


class KernelEntry(NamedTuple):
    """
    One kernel, or several that share one pattern.

    Attributes:
        regex: Pattern of the beginning of the name, because a table may cut off the end.
        library: The library of the kernel; ``custom`` if it is the model's own.
        role: ``conversion``: the name proves that the layout changes. ``convolution``: it is a convolution,
            or a step that only convolutions take. ``padding``: channels are padded or folded. ``cast``: only the data
            type changes. ``possible``: it may convert, but the name does not show it. ``strided_copy``: a copy in eager
            mode, whose strides decide. ``generated``: made by the compiler, so that the name does not decide.
            ``decoy``: it looks like a conversion or convolution but is something else.
        direction: The change of layout; ``other`` if the name does not show it, ``none`` if layouts stay the same.
    """

    regex: str
    library: str
    role: KernelRole
    direction: ConversionDirection


# The forms a demangled name takes: with or without its return type; numbers as 4, (int)4 (nsys) or int=4 (nvprof).
_VOID = r"^(?:void )?"
_ANONYMOUS = r"(?:\(anonymous namespace\)::|<unnamed>::|_GLOBAL__N__\w{1,80}::)?"
_IS_CUDNN = _VOID + r"(?:cudnn::(?:\w{1,40}::){0,2})?"
_ATEN = _VOID + r"at::native::" + _ANONYMOUS
_NUMBER = r"(?:\(\w+\)|\w+=)?\d+"
_COPIES = r"at::native::(?:direct_copy_kernel_cuda|copy_device_to_device)"
_STRIDED = rf"<{_NUMBER}, {_NUMBER}, at::native::gpu_kernel_impl(?:_nocast)?<at::native::direct_copy_kernel_cuda\b"
_VECTORIZED = _VOID + rf"at::native::vectorized_elementwise_kernel<{_NUMBER}, at::native::"
_UNROLLED = _VOID + rf"at::native::unrolled_elementwise_kernel<{_COPIES}\(.{{0,600}}?, "
_REORDER = r"^general_4d_reorder_\d+x\d+_(?:pack_\d+x\d+_ediv_\d+x\d+_)?(?:byte|half|dword)_r"
_IN_COMPOSABLE_KERNEL = r"(?:void )?ck::(?:\w{1,40}::|\(anonymous namespace\)::){0,3}"
_ARCHITECTURE = r"(?:maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell)"


def _cudnn(*words: str) -> str:
    """The pattern of a cuDNN kernel: with a namespace of cuDNN 8 or 9, or without a namespace (cuDNN 7)."""
    return rf"{_IS_CUDNN}(?:{'|'.join(words)})\b"


def _computing(role: KernelRole, library: str, *patterns: str) -> KernelEntry:
    return KernelEntry("|".join(patterns), library, role, "none")


# Above each entry: the facts that the name gives; where it was seen.

_CONVERSIONS = (
    # contiguous to channels_last, of activations and of weights, 3 channels padded to 4 or few channels folded on the
    # way; also a cast if its two types differ; cuDNN 7 (no namespace), 8 (cudnn::ops), 9 (cudnn::engines_precompiled);
    # recorded on V100, A100, H100; README of apex.pyprof; kernel table of HTA
    KernelEntry(_cudnn("nchwToNhwcKernel", "nchwToNhwc3To4Kernel", "nchwToFoldedNhwcKernel"),
                "cudnn", "conversion", "to_channels_last"),
    # channels_last to contiguous; also a cast if its two types differ; cuDNN 7 (no namespace), 8 (cudnn::ops), 9
    # (cudnn::engines_precompiled); recorded on V100, A100, H100
    KernelEntry(_cudnn("nhwcToNchwKernel"), "cudnn", "conversion", "to_contiguous"),
    # a layout change; its place before or after the convolution shows the direction. half is any 16-bit type; recorded
    # on MI300X; MIOpen batched_transpose_sol.cpp
    KernelEntry(r"^batched_transpose_\d+x\d+_(?:pack_\d+x\d+_ediv_\d+x\d+_)?(?:byte|half|dword)\b",
                "miopen", "conversion", "other"),
    # contiguous to or from CNHW, around a 1x1 convolution that runs as a matrix product; recorded on MI300X; MIOpen
    # MIOpenUtilKernels4
    KernelEntry(r"^transpose_(?:NCHW2CNHW|CNHW2NCHW)_V\d", "miopen", "conversion", "other"),
    # the order of the four dimensions: 0, 2, 3, 1 is contiguous to channels_last, 0, 3, 1, 2 the way back; MIOpen
    # tensor_reorder_sol.hpp (builds the name)
    KernelEntry(_REORDER + r"0231\b", "miopen", "conversion", "to_channels_last"),
    KernelEntry(_REORDER + r"0312\b", "miopen", "conversion", "to_contiguous"),
    KernelEntry(_REORDER + r"[0-3]{4}\b", "miopen", "conversion", "other"),
    # contiguous to or from groups of channels (int8); MIOpen MIOpenUtilKernels5.cl
    KernelEntry(r"^transpose_NCHW2Vec\b", "miopen", "conversion", "other"),
    # data or weights to or from the layout in which the convolution computes; oneDNN gen_convolution.cpp; torch-xpu-
    # ops pull request 1355: 8 % of ResNet-50 in channels_last
    KernelEntry(r"^conv_reorder\b", "onednn", "conversion", "other"),
    # a reorder primitive: a change of layout, often of the data type as well; oneDNN gpu/intel/reorder
    # (gen_reorder.cpp, generic_reorder.hpp, ref_reorder.hpp)
    KernelEntry(r"^(?:gen|generic|custom|simple|ref)_reorder\b", "onednn", "conversion", "other"),
    # contiguous to channels_last at the border of a layer, and back; Nsight tables of TensorRT engines (FP32, FP16)
    KernelEntry(_VOID + r"cuInt8::(?:nchwToNhwcKernel|nchwTonhwc)\b", "tensorrt", "conversion", "to_channels_last"),
    KernelEntry(_VOID + r"cuInt8::(?:nhwcToNchwKernel|nhwcTonchw)\b", "tensorrt", "conversion", "to_contiguous"),
    # contiguous to channels in groups (CHW2, CHW4), and the way back; nvprof tables of TensorRT engines (nchwToNchhw2)
    KernelEntry(_VOID + r"cuInt8::nchwTo[nN]c[hq]hw\w*", "tensorrt", "conversion", "to_blocked"),
    KernelEntry(_VOID + r"cuInt8::nc[hq]hw\d*To[nN]chw\b", "tensorrt", "conversion", "from_blocked"),
    # a permutation of dimensions, of an image or of anything else; Nsight tables of TensorRT engines: 14 % of YOLOv8
    # (permutationKernelPLC3); Nsight tables of short names leave the namespace out
    KernelEntry(_VOID + r"(?:CUTENSOR_NAMESPACE::permutationKernel|permutationKernelPLC)\w*",
                "cutensor", "conversion", "other"),
    # contiguous to channels_last, and the way back; cutlass util/device_nchw_to_nhwc.h, device_nhwc_to_nchw.h
    KernelEntry(_VOID + r"cutlass::nchw_to_nhwc_kernel", "cutlass", "conversion", "to_channels_last"),
    KernelEntry(_VOID + r"cutlass::nhwc_to_nchw_kernel", "cutlass", "conversion", "to_contiguous"),
    # likewise; hand-written kernels of CUDA and Triton in many public repositories
    KernelEntry(_VOID + r"_{0,2}nchw_to_nhwc_kernel", "custom", "conversion", "to_channels_last"),
    KernelEntry(_VOID + r"_{0,2}nhwc_to_nchw_kernel", "custom", "conversion", "to_contiguous"),
)  # fmt: skip

# The steps that only convolutions take are offsets, zero fills, Winograd and FFT transforms, im2col,
# and the sum of a split weight gradient. Matrix products are not listed, although a 1x1 convolution may run as one.
# Beside each pattern: its kernels, and where seen. A layout in a computing kernel's name is its operands' layout.
_OF_CONVOLUTIONS = (
    _computing(
        "convolution", "cutlass",
        _VOID + r"cutlass\w{0,40}?::Kernel\d?<cutlass\w{0,80}?(?:fprop|dgrad|wgrad|deconv)",  # cuDNN 8 and 9
        _VOID + r"cutlass\w{0,40}?::Kernel\d?<cutlass\w{0,40}::conv::",
        _VOID + r"cutlass_cudnn_train::Kernel<cutlass_cudnn_train::reduction::kernel::ReduceSplitK",  # its wgrad
        r"^cutlass\w{0,80}?(?:fprop|dgrad|wgrad|deconv)",
    ),
    _computing(
        "convolution", "cudnn",
        # nhwckrsc_nchw reads channels_last and writes contiguous by itself; cuDNN 8 and 9 on A100, H100; TensorRT
        r"^sm\d+_xmma_(?:fprop|dgrad|wgrad|depthwise_conv|conv)",
        _VOID + r"xmma_(?:cudnn|new)::gemm::kernel<xmma_(?:cudnn|new)::implicit_gemm::",  # cuDNN 8 on V100
        rf"^(?:trt_|_\dx_)?(?:cudnn_)?(?:infer_|train_)?{_ARCHITECTURE}_\w{{0,40}}?cudnn_",  # volta_scudnn_; V100, A100
        # convolve_common_engine in Nsight tables of XLA
        _IS_CUDNN + r"(?:(?:implicit|explicit)_convolve_|convolve(?:_|Nd_)|first_layer_(?:fwd|wgrad|dgrad)_)",
        # c1_k1_nhwc is for depthwise layers; cuDNN 8 and 9, V100
        _IS_CUDNN + r"(?:(?:conv[123N]d|[dw]grad[123N]d)_(?:c1_k1|grouped_direct|alg)|[dw]grad_(?:alg|engine))",
        _IS_CUDNN + r"reduce_wgrad_",  # sums parts of a weight gradient; V100, A100
        # prepares a convolution; public PyTorch traces
        _cudnn("im2col4d_kernel", "padFilterWeights", "kern_precompute_indices", "scalePackedTensor_kernel",
               "flip_filter", r"compute\w{0,20}OffsetsKernel"),
        _VOID + r"cudnn::winograd\w{0,20}::",  # V100, A100
        _VOID + r"cask\w{0,30}::compute\w{0,40}OffsetsKernel\b",  # for an implicit GEMM; V100, A100, H100
        _VOID + r"(?:fft[12]d_(?:r2c|c2r)_\d+|pointwise_mult_and_sum_complex\b)",  # cuDNN's FFT convolution
    ),
    _computing(
        "convolution", "miopen",
        r"^igemm_(?:fwd|bwd|wrw)_|^winograd_conv|^mlir_gen_igemm_conv",  # MI300X
        r"^naive_conv_",  # MIOpen naive_conv.cpp; rocprof tables
        r"^Im2Col|^Im[23]d2Col|^Col2Im",  # unfolds the input for a matrix product; MI300X
        r"^SubTensorOpWithScalar",  # fills the output or the workspace, mostly with zeros; MI300X
        r"^MIOpenConv|^miopen(?:Sp3Asm|GcnAsm)(?:Conv|Winograd)|^gcnAsmConv",
        r"^gridwise_convolution_|^convolution_(?:forward|backward)_",
    ),
    # MI300X; the second is its weight gradient
    _computing("convolution", "composable_kernel",
               "^" + _IN_COMPOSABLE_KERNEL + r"kernel_(?:(?:grouped_)?conv|(?:batched_)?gemm_xdlops_bwd_weight)"),
    _computing("convolution", "aten",
               _ATEN + r"(?:conv_depthwise[23]d_|vol2col_kernel|col2vol_kernel|im2col_kernel|col2im_kernel)",
               _VOID + r"spatialDepthwiseConvolution"),  # PyTorch before 1.9
    _computing("convolution", "onednn", r"^gen_conv(?:_kernel)?\b|^(?:gen9|gen12lp|xe_\w{1,5}|ref)_(?:wino_)?conv"),
    _computing("convolution", "custom", _IS_CUDNN + r"(?:conv[123N]d|[dw]grad(?:[123N]d)?)_"),
    # Inductor's templates
    _computing("convolution", "inductor", r"^triton_tem_fused_\w{0,200}?convolution|^triton_convolution[23]d"),
)  # fmt: skip

_ALMOST = (
    # adds channels of zeros (3 to 4 or 8; 128 was reported); pad the channels in the model, no layout helps; Nsight
    # tables of channels_last models, cuDNN 8 and 9
    KernelEntry(_cudnn("nhwcAddPaddingKernel", "nchwAddPaddingKernel"), "cudnn", "padding", "none"),
    # folds or unfolds few channels within channels_last; names in public post-processing of Nsight tables of cuDNN
    # training
    KernelEntry(_cudnn("nhwcToFoldedNhwcKernel", "foldedNhwcToNhwcKernel"), "cudnn", "padding", "none"),
    # pads the first layer's weights to 4 channels; cuDNN 7; README of apex.pyprof: its grid is that of the 9408
    # weights of ResNet-50's first layer
    KernelEntry(_cudnn("generic4Channel_kernel"), "cudnn", "padding", "none"),
    # adds channels of zeros; cutlass util/device_nhwc_padding.h
    KernelEntry(_VOID + r"(?:cutlass::)?nhwc_padding_(?:channel_\w{1,20}_)?kernel", "cutlass", "padding", "none"),
    # data type or scale of packed data: one size, no strides; it is often taken for a layout conversion; TensorFlow
    # profiles of cuDNN 8
    KernelEntry(_cudnn("convertTensor_kernel"), "cudnn", "cast", "none"),
    # float32 to 16 bits of a weight gradient; recorded on MI300X; MIOpen MIOpenSubTensorOpWithCastTensorKernel
    KernelEntry(r"^SubTensorOpWithCastTensor\dd", "miopen", "cast", "none"),
    # a copy, the strides decide; recorded on V100, torch 1.8
    KernelEntry(_UNROLLED + r"OffsetCalculator<", "aten", "strided_copy", "other"),
    # a cast that keeps the strides; recorded on A100, H100: 198 in a particle transformer
    KernelEntry(_UNROLLED + r"TrivialOffsetCalculator<", "aten", "cast", "none"),
    # a cast that keeps the strides; recorded in public PyTorch traces
    KernelEntry(_VECTORIZED + r"b?float\d\w{0,40}?_copy_kernel_cuda\b", "aten", "cast", "none"),
    # copy_, contiguous, clone or to; only the strides distinguish a conversion from an attention permute; recorded in
    # public PyTorch traces
    KernelEntry(_VOID + r"at::native::elementwise_kernel(?:_manual_unroll)?" + _STRIDED,
                "aten", "strided_copy", "other"),
    # cudnnTransformTensor between any two strides; recorded on H100 inside a Conv3d
    KernelEntry(_cudnn("tensorTransformGeneric"), "cudnn", "possible", "other"),
    # a transpose; the name does not show of which tensor; kernel table of HTA
    KernelEntry(_cudnn("genericTranspose_kernel", "transposeBlock_kernel", "transposeWarp_kernel"),
                "cudnn", "possible", "other"),
    # a matrix transpose for int8 convolutions as GEMM; MIOpen MIOpenUtilKernels4, gemm.cpp
    KernelEntry(r"^transpose_packed_MN2NM\b", "miopen", "possible", "other"),
    # alpha * source + beta between any two strides; MIOpen tensor.cpp (TransformTensor)
    KernelEntry(r"^SubTensorOpWithTransform\dd", "miopen", "possible", "other"),
    # contiguous to channels_last and back around some grouped convolutions; or a cast; composable_kernel
    # device_grouped_conv_fwd_multiple_abd_xdl_cshuffle_v3.hpp
    KernelEntry("^" + _IN_COMPOSABLE_KERNEL + r"kernel_(?:elementwise_dual|batched_elementwise|elementwise)<",
                "composable_kernel", "possible", "other"),
    # TensorRT's reformat: a change of layout, of data type, or a plain copy; Nsight tables of TensorRT engines
    KernelEntry(_VOID + r"genericReformat::copy(?:Packed|Vectorized)Kernel\b", "tensorrt", "possible", "other"),
    # a transpose by Myelin, fused with nothing that computes; layer names of TensorRT engines (__myl_TranReshMove)
    KernelEntry(r"^__myl_(?:Move|Resh|Cast|Slic|Conc|Repl){0,12}Tran(?:Move|Resh|Tran|Cast|Slic|Conc|Repl){0,12}_",
                "tensorrt", "possible", "other"),
    # a template: GEMM, convolution or attention; Inductor names
    _computing("decoy", "inductor", r"^triton_(?:tem|mm|bmm|addmm|convolution[23]d|flex)_"),
    # no facts: triton_poi_fused_convolution_3 is a layout copy in one graph and a bias in another; recorded on A100,
    # MI300X; the strides of the launch or the output code decide. Without unique names, torch 2.0 to 2.2 use triton_
    KernelEntry(r"^triton_(?:poi|red|per|for|spl|unk)_|^triton_(?:_|\Z)", "inductor", "generated", "other"),
)  # fmt: skip

_DECOYS = (
    _computing(
        "decoy", "cutlass",
        _VOID + r"cutlass\w{0,40}::Kernel\d?<",  # public PyTorch traces
        r"^cutlass\d?x?_",  # key_averages tables
    ),
    _computing(
        "decoy", "cudnn",
        r"^sm\d+_xmma_",  # A100, H100
        _VOID + r"xmma_(?:cudnn|new)::",  # nvprof tables of cuDNN 8 on V100
        _VOID + r"cudnn::gemm::\w+",  # V100, A100
        _IS_CUDNN + r"bn_(?:fw|bw)_\w+",  # batch norm; public PyTorch traces
        _IS_CUDNN + r"pooling_(?:fw|bw)_\w+",  # TensorFlow profiles
        _IS_CUDNN + r"sumChannelsN\w*",  # the gradient of a bias; Nsight tables
    ),
    _computing("decoy", "hipblaslt", r"^Cijk_"),  # a matrix product of hipBLASLt or rocBLAS; MI300X
    _computing(
        "decoy", "cublas",
        # a matrix transpose inside FFT convolutions (complex float2), no layout of tensors; V100, A100
        _VOID + r"transpose_readWrite_alignment_kernel\b",
        _VOID + rf"scal_kernel<(?:\w+, ){{2}}{_NUMBER}, ",  # scales a matrix (cublasTransposeParams); V100
    ),
    _computing(
        "decoy", "aten",
        # pooling and upsampling, with the layout they ran in, and others; public PyTorch traces
        _VOID + r"(?:at::native::" + _ANONYMOUS + r")?max_pool_(?:forward|backward)_n(?:chw|hwc)\b",
        _ATEN + r"(?:upsample|adaptive_average_pool|avg_pool2d|adaptive_max_pool)\w*",
        _ATEN + r"batch_norm_\w+",  # transform_input is its second half
        _ATEN + r"distribution_\w+",  # random numbers (uniform_and_transform)
        _ATEN + r"CatArrayBatchedCopy\w*",  # torch.cat
        # a copy that keeps the layout; ATen CUDALoops.cuh: the vectorized path needs equal, dense strides
        _VECTORIZED + r"direct_copy_kernel_cuda\b",
    ),
    _computing("decoy", "custom", _VOID + r"(?:\w{1,40}::){0,3}group_?norm\w*"),  # in one layout; public kernels
    _computing("decoy", "onednn", r"^(?:gen9_bnorm|nhwc_reusable)_\w+"),  # batch norm; oneDNN gpu/ocl/bnorm
    _computing("decoy", "tensorrt", _VOID + r"cuSoftMaxLayer::\w+"),  # nchwSoftmax; Nsight tables of TensorRT engines
    # scans, sorts and transforms over elements; MI300X, public PyTorch traces
    _computing("decoy", "rocprim", _VOID + r"(?:rocprim|hipcub)::"),
    _computing("decoy", "cub", _VOID + r"(?:at_cuda_detail::)?(?:cub|thrust)::"),
    # reorders embeddings; recommendation models; kernel table of HTA
    _computing("decoy", "fbgemm",
               _VOID + r"(?:fbgemm_gpu::)?(?:permute_(?:pooled_embs|indices_weights|[12]D)\w*|linearize_\w+)"),
)  # fmt: skip

KERNELS = (*_CONVERSIONS, *_OF_CONVOLUTIONS, *_ALMOST, *_DECOYS)


# A trace has a few hundred distinct names of up to a few thousand characters; a larger cache would only cost memory.
_REMEMBERED_NAMES = 4096


@lru_cache(maxsize=_REMEMBERED_NAMES)
def kernel_entry(name: str) -> KernelEntry | None:
    """The entry of ``KERNELS`` for a kernel name, which may end in an ellipsis if a table cut it; None if unknown."""
    whole = _ANY_KERNEL.match(name)
    return KERNELS[(whole.lastindex or 0) - 1] if whole is not None else None


@lru_cache(maxsize=_REMEMBERED_NAMES)
def library_of(name: str) -> str | None:
    """The library of a device kernel, by its name; None if the name does not show it."""
    found = kernel_entry(name)
    if found is not None and found.library not in _BUILT_ON:
        return found.library
    for pattern, library in _LIBRARIES:
        if pattern.match(name):
            return library
    for part, library in _LIBRARY_PARTS:
        if part in name:
            return library
    return found.library if found is not None else None


def is_fallback(kernel: Kernel) -> bool:
    """Whether a convolution runs in fallback code, which covers the cases that no faster code supports."""
    return any(map(_FALLBACK.search, (kernel.name, kernel.op or "")))


def are_of_an_engine(names: Iterable[str | None]) -> bool:
    """Whether most kernels are TensorRT's, whose layouts are chosen when the engine is built, not in PyTorch."""
    known = [library_of(name) == "tensorrt" for name in names if name is not None]
    return 2 * sum(known) > len(known)


@lru_cache(maxsize=_REMEMBERED_NAMES)
def dtypes_of(name: str) -> tuple[str, str] | None:
    """
    Data types before and after a conversion, a padding or a cast, from its template arguments.

    Returns:
        The two types, as torch names them (``float16``); None if the name does not give both.
    """
    found = _TEMPLATE_TYPES.match(name)
    if found is None:
        return None
    before, after = DTYPES.get(found["before"].strip()), DTYPES.get(found["after"].strip())
    return (before, after) if before and after else None


@lru_cache(maxsize=_REMEMBERED_NAMES)
def work_of(name: str) -> str | None:
    """Words for the work of a kernel or device copy that is neither convolution nor conversion; None if not known."""
    entry = kernel_entry(name)
    named = next((work for work, pattern in _WORK if pattern.search(name)), None)
    return named or (_WORK_OF_ROLES.get(entry.role) if entry is not None else None)


@lru_cache(maxsize=_REMEMBERED_NAMES)
def looks_like_conversion(name: str) -> bool:
    """Whether a name that no entry matches contains a word for layouts and no word for computing."""
    return _LAYOUT_WORDS.search(name) is not None and _COMPUTING_WORDS.search(name) is None


# One search for all entries: the number of the matching group is the position of its entry, from 1.
_ANY_KERNEL = re.compile("|".join(f"({entry.regex})" for entry in KERNELS))

_MOVING = r"^triton_poi_fused_(?:_?(?:{})_)+\d+\Z"  # Inductor's names list operations; these only move data
_WORK = tuple(
    (work, re.compile(pattern))
    for work, pattern in {
        "rounding to TF32": _cudnn("convertTensor_kernel") + r"<float, ?float\b",  # A100; cuDNN 8 and 9
        "adding the bias": r"\bCUDAFunctor_add<",  # V100, A100, H100, MI300X
        "transposing for a matrix product": r"transpose_readWrite_alignment_kernel",  # V100, for an FFT
        "adding up split sums": r"splitKreduce|ReduceSplitK|reduce_wgrad_nchw_helper",  # V100, A100
        "preparing offsets and scales": r"compute\w{0,20}OffsetsKernel|kern_precompute_indices"
        "|scalePackedTensor_kernel",
        "flipping weights": "flip_filter",  # V100, A100; for the gradient of a convolution's input
        "padding": "padFilterWeights|" + _MOVING.format("constant_pad_nd"),
        "filling": r"FillFunctor|uninitialized_fill|^Memset\b|SubTensorOpWithScalar|"
        + _MOVING.format("fill|zeros|zeros_like|full|full_like|zero|new_zeros|ones"),
        "concatenating": "CatArrayBatchedCopy|" + _MOVING.format("cat|stack"),
        "copying": r"direct_copy_kernel_cuda|^Memcpy DtoD\b|"
        + _MOVING.format("clone|copy|unsafe_view|view|slice|select|expand|repeat|index_put|slice_scatter"),
    }.items()
)
_WORK_OF_ROLES: dict[KernelRole, str] = {"cast": "casts", "padding": "padding", "strided_copy": "copying"}
OF_CONVOLUTIONS_ALONE = frozenset({"rounding to TF32", "preparing offsets and scales", "flipping weights"})
MOVES = frozenset({"padding", "filling", "concatenating", "copying"})
"""Work that moves or writes data and computes nothing."""
GENERATED_POINTWISE = re.compile(r"triton_(?:(?:poi|for)?_|\Z)")
"""
Matches generated kernels that may convert a layout. A reduction (``red``, ``per``, or ``unk`` if cooperative) or a scan
(``spl``) is excluded: it computes, although its launch grid may have a second dimension.
"""

_LAYOUT_WORDS = re.compile(r"nchw|nhwc|ncdhw|ndhwc|transpos|permut|reformat|layout|swapdim", re.IGNORECASE)
_COMPUTING_WORDS = re.compile(
    r"conv|gemm|matmul|fprop|dgrad|wgrad|norm|pool|softmax|att(?:ention|n)|fmha|upsample|interpolat|resize|reduc|sort|"
    r"embed|index|scatter|gather|quant|rope|rotary|memset",
    re.IGNORECASE,
)

# Other libraries build on code of these libraries; another part of the name may show which library it is.
_BUILT_ON = ("cutlass", "cudnn", "custom")
_LIBRARIES = tuple(
    (re.compile(pattern), library)
    for pattern, library in (
        (r"triton_", "inductor"),
        (r"nccl", "nccl"),  # RCCL keeps the names
        (r"(?:void )?(?:genericReformat|cask_trt|cu(?:Int8|Eltwise|(?:Slice|Resize|SoftMax)Layer))::", "tensorrt"),
        (r"trt_|generatedNativePointwise|__myl_", "tensorrt"),
        (r"(?:void )?(?:CUTENSOR_NAMESPACE|cutensor\w{0,40})::", "cutensor"),
        (r"Cijk_", "hipblaslt"),
        (r"nvjet_|gemv|(?:cutlass_\d+_)?" + _ARCHITECTURE + r"_\w{0,20}gemm_", "cublas"),
        (r"miopen|MIOpen|gcnAsm|SubTensorOpWith", "miopen"),
        (r"(?:void )?ck(?:_tile)?::", "composable_kernel"),
        (r"(?:void )?(?:rocprim|hipcub)::", "rocprim"),
        (r"(?:void )?(?:at_cuda_detail::)?(?:cub|thrust)::", "cub"),
        (r"(?:gen9|gen12lp|xe_\w{1,5})_", "onednn"),
        (r"(?:void )?(?:\w{0,20}flash\w{0,20}|vllm|tensorrt_llm|aiter|flashinfer|moe)::", "custom"),
    )
)
_LIBRARY_PARTS = (
    ("cudnn", "cudnn"),
    ("_execute_kernel_trt", "tensorrt"),
    ("at::native", "aten"),
    ("cublas", "cublas"),
    ("cutlass", "cutlass"),
)

_TYPE = r"[\w: ]{1,40}"
_TEMPLATE_TYPES = re.compile(
    r"^(?:void )?(?:(?:cudnn::(?:\w{1,40}::)?)?"
    r"(?:\w{0,40}(?:[nN]hwc|[nN]chw)\w{0,40}Kernel|tensorTransformGeneric|convertTensor_kernel)"
    rf"|genericReformat::copy(?:PackedKernel|VectorizedKernel(?=<double,)))<(?:(?<=VectorizedKernel<)double, )?"
    rf"(?P<before>{_TYPE}),(?P<after>{_TYPE})[,>]"
)


_HELPER = "SubTensorOp"


class KernelClass(NamedTuple):
    """
    The facts that a kernel's name gives.

    Attributes:
        is_main: Whether it runs for a convolution and is no helper.
        is_helper: Whether it is a ``SubTensorOp`` kernel of MIOpen, such as a fill or a cast, or a cast of cuDNN.
    """

    is_conversion: bool = False
    is_main: bool = False
    is_helper: bool = False
    direction: ConversionDirection = "none"
    library: str = ""
    role: str = ""


def kernel_class(name: str) -> KernelClass:
    """The facts that a kernel's name gives."""
    entry, is_helper = kernel_entry(name), name.startswith(_HELPER)
    if entry is None:
        return KernelClass(is_helper=is_helper, role="possible" if looks_like_conversion(name) else "")
    return KernelClass(
        is_conversion=entry.role == "conversion",
        is_main=entry.role == "convolution" and not is_helper,
        is_helper=is_helper or (entry.library, entry.role) == ("cudnn", "cast"),
        direction=entry.direction,
        library=entry.library,
        role=entry.role,
    )
