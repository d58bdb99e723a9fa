"""
Kernels whose name proves that they convert a layout, as data with the evidence beside each.

Anchored patterns only: a name that merely contains ``nhwc`` proves nothing. Faces ``analysis``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layoutdoctor.records import ConversionDirection


@dataclass(frozen=True)
class ConversionKernel:
    """
    A known conversion kernel.

    Attributes:
        pattern: Matches the whole name, from its start.
        library: Whose kernel it is.
        direction: What it does to the layout; ``other`` where the name does not say.
        evidence: Where it was seen.
    """

    pattern: re.Pattern[str]
    library: str
    direction: ConversionDirection
    evidence: str


_CUDNN = r"^(?:void )?(?:cudnn::(?:ops|engines_precompiled)::)?"

CONVERSION_KERNELS = (
    ConversionKernel(
        re.compile(_CUDNN + r"nchwToNhwcKernel\b"),
        "cudnn",
        "to_channels_last",
        "cuDNN 7 (unqualified), 8 (cudnn::ops), 9 (cudnn::engines_precompiled); recorded on V100, A100, H100",
    ),
    ConversionKernel(
        re.compile(_CUDNN + r"nhwcToNchwKernel\b"),
        "cudnn",
        "to_contiguous",
        "cuDNN 7 (unqualified), 8 (cudnn::ops), 9 (cudnn::engines_precompiled); recorded on V100, A100, H100",
    ),
    ConversionKernel(
        re.compile(r"^batched_transpose_\d+x\d+_(?:pack_\d+x\d+_ediv_\d+x\d+_)?(?:byte|half|dword)\b"),
        "miopen",
        "other",
        "MIOpen; recorded on MI300X, direction only from the position around the convolution",
    ),
    ConversionKernel(
        re.compile(r"^transpose_(?:NCHW2CNHW|CNHW2NCHW)_V\d"),
        "miopen",
        "other",
        "MIOpen's path for 1x1 convolutions; recorded on MI300X",
    ),
)


def conversion_kernel(name: str) -> ConversionKernel | None:
    """
    The dictionary entry for a kernel name; None where the name proves no conversion.

    Args:
        name: As in a trace or profile.
    """
    return next((entry for entry in CONVERSION_KERNELS if entry.pattern.match(name)), None)


def library_of(name: str) -> str | None:
    """
    Whose kernel a device kernel is, as far as its name says.

    Args:
        name: As in a trace or profile.
    """
    known = conversion_kernel(name)
    if known is not None:
        return known.library
    if name.startswith("triton_"):
        return "inductor"
    for part, library in (("cudnn", "cudnn"), ("at::native", "aten"), ("cutlass", "cutlass"), ("cublas", "cublas")):
        if part in name:
            return library
    return None
