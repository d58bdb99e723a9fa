"""
What a kernel is, as far as its name says: a layout conversion, a convolution, whose it is, between which data types.

The names themselves stand in ``kernel_dictionary``; here they are looked up, whole or cut. Faces ``analysis``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from layoutdoctor.kernel_dictionary import ARCHITECTURE, IN_COMPOSABLE_KERNEL, KERNELS, KernelEntry, Role
from layoutdoctor.words import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "CONVERSION_KERNELS",
    "KERNELS",
    "KernelEntry",
    "KernelMatch",
    "Role",
    "conversion_kernel",
    "dtypes_of",
    "is_convolution_kernel",
    "kernel_entry",
    "library_of",
    "output_layout_of",
]

# A trace has some hundred distinct names of up to some thousand characters; remembering more would only cost memory.
_REMEMBERED_NAMES = 4096

CONVERSION_KERNELS = tuple(entry for entry in KERNELS if entry.role == "conversion")


@dataclass(frozen=True)
class KernelMatch:
    """
    What the dictionary says of a name.

    Attributes:
        entry: The entry.
        is_certain: The name was whole; False where it was cut and this is how it can go on.
    """

    entry: KernelEntry
    is_certain: bool


@lru_cache(maxsize=_REMEMBERED_NAMES)
def kernel_entry(name: str, *, is_cut: bool = False) -> KernelMatch | None:
    """
    The dictionary entry for a kernel name.

    Args:
        name: As in a trace, a profile or a table; demangled or mangled.
        is_cut: The table cut names at its column's edge. A name that ends in an ellipsis is always taken as cut.

    Returns:
        None where the dictionary knows nothing, or where a cut name can go on to entries that say different things.
    """
    beginning = name.rstrip().removesuffix("…").removesuffix("...").rstrip()
    if not is_cut and beginning == name.rstrip():
        whole = _ANY_KERNEL.match(name)
        return KernelMatch(KERNELS[(whole.lastindex or 0) - 1], is_certain=True) if whole is not None else None
    entry = _agreed(tuple(_completions(beginning)))
    return KernelMatch(entry, is_certain=False) if entry is not None else None


def conversion_kernel(name: str) -> KernelEntry | None:
    """
    The dictionary entry of a layout conversion; None where the name, taken as whole, proves none.

    Args:
        name: As in a trace or profile.
    """
    found = kernel_entry(name)
    return found.entry if found is not None and found.is_certain and found.entry.role == "conversion" else None


@lru_cache(maxsize=_REMEMBERED_NAMES)
def library_of(name: str) -> str | None:
    """
    Whose kernel a device kernel is, as far as its name says.

    Args:
        name: As in a trace or profile.
    """
    found = kernel_entry(name)
    if found is not None and found.entry.library not in _BUILT_ON:
        return found.entry.library
    for pattern, library in _LIBRARIES:
        if pattern.match(name):
            return library
    for part, library in _LIBRARY_PARTS:
        if part in name:
            return library
    return found.entry.library if found is not None else None


@lru_cache(maxsize=_REMEMBERED_NAMES)
def dtypes_of(name: str) -> tuple[str, str] | None:
    """
    Between which data types a conversion, a padding or a cast runs, from its template arguments.

    Args:
        name: As in a trace or profile.

    Returns:
        Before and after, as torch names them (``float16``); None where the name does not give both.
    """
    demangled = _TEMPLATE_TYPES.match(name)
    if demangled is not None:
        before, after = DTYPES.get(demangled["before"].strip()), DTYPES.get(demangled["after"].strip())
    else:
        mangled = _MANGLED_TYPES.match(name)
        if mangled is None:
            return None
        before = DTYPES[mangled["before"]]
        after = DTYPES.get(mangled["after"], before)  # S_, S2_: the same type again
    return (before, after) if before is not None and after is not None else None


@lru_cache(maxsize=_REMEMBERED_NAMES)
def is_convolution_kernel(name: str) -> bool:
    """
    Whether a kernel belongs to the computation of a convolution, by its name; for tables that name no operation.

    Counts the convolution itself and the steps that only convolutions take: offsets, zero fills, Winograd and FFT
    transforms, im2col, the sum of a split weight gradient. Not its conversions, paddings and casts, which have roles of
    their own, and no matrix product, though a 1x1 convolution may run as one: its name does not tell.

    Args:
        name: As in a trace, a profile or a table; what is left of a cut name is enough.
    """
    return _CONVOLUTION.match(name) is not None


@lru_cache(maxsize=_REMEMBERED_NAMES)
def output_layout_of(name: str) -> Literal["contiguous", "channels_last"] | None:
    """
    The layout a convolution kernel writes, by its name.

    Args:
        name: As in a trace or profile.

    Returns:
        For a weight gradient the layout of the weights. None where the name does not say, or is no convolution's.
    """
    if not is_convolution_kernel(name):
        return None
    operands = _XMMA_OPERANDS.match(name)
    if operands is not None:
        is_last = operands["filter"] == "krsc" if operands["kind"] == "wgrad" else operands["output"] == "nhwc"
        return "channels_last" if is_last else "contiguous"
    word = _LAYOUT_WORD.match(name)
    if word is None:
        return None
    return "channels_last" if word["layout"].lower() in ("nhwc", "ndhwc") else "contiguous"


def _completions(beginning: str) -> Iterator[KernelEntry]:
    """
    Every entry a cut name can go on to, in the dictionary's order.

    An entry counts where an end of one of its endings makes the name match: the witness that it can go on so. Endings
    begin where the name first tells the kernel, so what comes before must be there. Nothing after an entry that matches
    already can count, since the first entry that matches a whole name is its own.
    """
    for entry in KERNELS:
        matches = entry.pattern.match(beginning) is not None
        if matches or any(
            entry.pattern.match(beginning + ending[start:]) is not None
            for ending in entry.endings
            for start in range(len(ending))
        ):
            yield entry
        if matches:
            return


def _agreed(candidates: tuple[KernelEntry, ...]) -> KernelEntry | None:
    """The entry all candidates agree with: the same role, and one direction, or the one that leaves it open."""
    if len({entry.role for entry in candidates}) != 1:
        return None
    if len({entry.direction for entry in candidates}) == 1:
        return candidates[0]
    return next((entry for entry in candidates if entry.direction == "other"), None)


# One search instead of one per entry: the group that matched is the entry.
_ANY_KERNEL = re.compile("|".join(f"({entry.pattern.pattern})" for entry in KERNELS))

_IN_CUDNN = r"(?:void )?(?:cudnn::(?:\w{1,40}::){0,2})?"

# Each line ends with where such names were seen.
_CONVOLUTION = re.compile(
    "^(?:"
    + "|".join(
        (
            r"sm\d+_xmma_(?:fprop|dgrad|wgrad|depthwise_conv|conv)",  # cuDNN 8 and 9 on A100, H100; TensorRT
            r"(?:void )?xmma_(?:cudnn|new)::gemm::kernel<xmma_(?:cudnn|new)::implicit_gemm::",  # cuDNN 8 on V100
            rf"(?:trt_|_\dx_)?(?:cudnn_)?(?:infer_|train_)?{ARCHITECTURE}_\w{{0,40}}?cudnn_",  # volta_scudnn_
            r"(?:void )?cutlass\w{0,40}?::Kernel\d?<cutlass\w{0,80}?(?:fprop|dgrad|wgrad|deconv)",  # cuDNN 8 and 9
            r"(?:void )?cutlass\w{0,40}?::Kernel\d?<cutlass\w{0,40}::conv::",
            r"(?:void )?cutlass_cudnn_train::Kernel<cutlass_cudnn_train::reduction::kernel::ReduceSplitK",  # its wgrad
            r"cutlass\w{0,80}?(?:fprop|dgrad|wgrad|deconv)",
            r"_ZN\d+cutlass\w{0,40}6KernelINS_4conv6kernel",  # A100, mangled
            _IN_CUDNN + r"(?:(?:implicit|explicit)_convolve_|convolve(?:_|Nd_)|first_layer_(?:fwd|wgrad|dgrad)_)",
            _IN_CUDNN + r"(?:conv[123N]d|[dw]grad[123N]d)_\w*",  # c1_k1_nhwc, grouped_direct
            _IN_CUDNN + r"(?:dgrad_|wgrad_|reduce_wgrad_)\w*",
            _IN_CUDNN + r"(?:im2col4d_kernel|padFilterWeights|kern_precompute_indices|scalePackedTensor_kernel)\b",
            _IN_CUDNN + r"(?:flip_filter|compute\w{0,20}OffsetsKernel)\b",
            r"(?:void )?cudnn::winograd\w{0,20}::",
            r"(?:void )?cask\w{0,30}::compute\w{0,40}OffsetsKernel\b",
            r"(?:void )?(?:fft[12]d_(?:r2c|c2r)_\d+|pointwise_mult_and_sum_complex\b)",  # cuDNN's FFT convolution
            r"_ZN5cudnn\d+\w{0,40}?(?:convolve|dgrad|wgrad|grouped_direct)|_Z\d+(?:implicit|explicit)_convolve_",
            r"igemm_(?:fwd|bwd|wrw)_|naive_conv_|winograd_conv|mlir_gen_igemm_conv",  # MIOpen
            r"(?:Im2Col|Im[23]d2Col|Col2Im|SubTensorOpWithScalar)|MIOpenConv|miopen(?:Sp3Asm|GcnAsm)(?:Conv|Winograd)|gcnAsmConv",
            r"gridwise_convolution_|convolution_(?:forward|backward)_",
            IN_COMPOSABLE_KERNEL + r"kernel_(?:grouped_)?conv",
            IN_COMPOSABLE_KERNEL
            + r"kernel_(?:batched_)?gemm_xdlops_bwd_weight",  # MI300X: composable_kernel's weight gradient
            r"(?:void )?at::native::(?:\(anonymous namespace\)::|<unnamed>::)?"
            r"(?:conv_depthwise[23]d_|vol2col_kernel|col2vol_kernel|im2col_kernel|col2im_kernel)",
            r"_ZN2at6native\w{0,120}?conv_depthwise[23]d_",
            r"(?:void )?spatialDepthwiseConvolution",  # PyTorch before 1.9
            r"gen_conv(?:_kernel)?\b|(?:gen9|gen12lp|xe_\w{1,5}|ref)_(?:wino_)?conv",  # oneDNN
            r"triton_tem_fused_\w{0,200}?convolution|triton_convolution[23]d",  # Inductor's templates
        )
    )
    + ")"
)
# Activations, filter and output, as in nhwckrsc_nchw: reads channels_last, writes contiguous.
_XMMA_OPERANDS = re.compile(
    r"^sm\d+_xmma_(?P<kind>[a-z]+)\w{0,200}?_(?:nhwc|nchw)(?P<filter>krsc|kcrs)_(?P<output>nhwc|nchw)(?:_|\Z)"
)
_LAYOUT_WORD = re.compile(r"^[\w:<> ]{0,200}?_(?P<layout>nhwc|ndhwc|nchw|ncdhw|NHWC|NCHW)(?:_|\b)")

# Entries of these libraries stand for code that others build on; the name may say more exactly whose it is.
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
        (r"nvjet_|gemv|(?:cutlass_\d+_)?" + ARCHITECTURE + r"_\w{0,20}gemm_", "cublas"),
        (r"miopen|MIOpen|gcnAsm|igemm_(?:fwd|bwd|wrw)_|naive_conv_|Im[23]d2Col|Col2Im|SubTensorOpWith", "miopen"),
        (r"_ZN2ck|(?:void )?ck(?:_tile)?::", "composable_kernel"),
        (r"(?:void )?(?:rocprim|hipcub)::", "rocprim"),
        (r"(?:void )?(?:at_cuda_detail::)?(?:cub|thrust)::", "cub"),
        (r"gen_conv|(?:gen9|gen12lp|xe_\w{1,5})_", "onednn"),
        (r"(?:void )?(?:\w{0,20}flash\w{0,20}|vllm|tensorrt_llm|aiter|flashinfer|moe)::|_ZN5aiter", "custom"),
        (r"_ZN2at6native", "aten"),
        (r"(?:void )?fft[12]d_(?:r2c|c2r)_\d+", "cudnn"),
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
_MANGLED_TYPES = re.compile(
    r"^_Z(?:N5cudnn(?:\d+[a-z_]{1,40})?)?\d+(?:nchwToNhwc|nhwcToNchw|nhwcAddPadding|nchwAddPadding)KernelI"
    r"(?P<before>6__half|13__nv_bfloat16|[fdahi])(?P<after>6__half|13__nv_bfloat16|[fdahi]|S\d?_)"
)
