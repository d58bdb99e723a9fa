"""
Operations that accept any layout and keep it, so that no conversion is needed between two of them.

The lists are short on purpose. An operation that is in no list ends a region: a missing operation can hide a redundant
pair, but never causes a wrong pair. Names are from ATen and the ``prims`` that Inductor's decompositions use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from layoutdoctor.diagnosis import FxNode, Graph, Layout
from layoutdoctor.diagnosis.graph import base_name as base_name
from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.examination.layouts import layout_or_unknown

POINTWISE = frozenset(
    """
    abs acos add addcdiv addcmul asin atan bitwise_and bitwise_not bitwise_or ceil celu clamp clamp_max
    clamp_min convert_element_type copysign cos cosh div elu elu_backward eq erf erfc exp exp2 expm1 floor fma
    fmod ge gelu gelu_backward gt hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh
    hardtanh_backward le leaky_relu leaky_relu_backward lerp log log1p log2 logical_and
    logical_not logical_or lt maximum minimum mish mish_backward mul native_dropout ne neg pow reciprocal relu
    relu6 remainder round rsqrt rsub sgn sigmoid sigmoid_backward sign silu silu_backward sin sinh softplus
    softplus_backward sqrt square sub tan tanh tanh_backward threshold threshold_backward trunc where xlogy
    """.split()
)
"""Operations that compute an element from elements at the same index; torch keeps the operands' stride order."""

PER_CHANNEL = frozenset(
    """
    _adaptive_avg_pool2d _low_memory_max_pool2d_with_offsets
    _low_memory_max_pool_with_offsets _native_batch_norm_legit_no_training _upsample_bicubic2d_aa
    _upsample_bilinear2d_aa _upsample_nearest_exact2d _upsample_nearest_exact3d adaptive_avg_pool2d
    adaptive_max_pool2d avg_pool2d constant_pad_nd max_pool2d
    max_pool2d_with_indices max_pool3d max_pool3d_with_indices reflection_pad2d reflection_pad3d
    replication_pad2d replication_pad3d upsample_bicubic2d upsample_bilinear2d upsample_nearest2d
    upsample_nearest3d upsample_trilinear3d
    """.split()
)
"""
Pooling, padding, resampling and inference batch norm, which treat each channel alone, in either memory format.

``avg_pool3d`` and the adaptive 3-D poolings are left out: they return ``contiguous_format`` for an input in any format
(torch 2.13 on a CPU), so no channels-last region goes through them.
"""

_BATCH_NORMS = frozenset({"native_batch_norm", "batch_norm", "cudnn_batch_norm", "miopen_batch_norm"})
ALIASES = frozenset({"detach", "alias", "getitem", "lift_fresh_copy"})
"""Operations that return their input, an item of it, or an equal copy of it."""

REDUCTIONS = frozenset({"mean", "sum", "amax", "amin", "var", "var_mean", "std", "any", "all", "max", "min", "norm"})
"""Operations that read a value in any layout and return a new, smaller value."""


CONTIGUOUS_NORMS = frozenset(
    {"aten::group_norm", "aten::native_group_norm", "aiter::_groupnorm_run", "aiter::_groupnorm"}
)
"""
Names, in a trace, of group norms that make their input contiguous on a GPU. If conversions around such a norm are
removed, the norm makes copies instead, unless it is replaced as well.

Source:
    ``aten/src/ATen/native/group_norm.cpp`` (before pytorch's pull request 191945), pytorch issue 111824;
    ``aiter/ops/groupnorm.py``.
"""


def is_layout_agnostic(node: FxNode) -> bool:
    """Whether an operation accepts any layout and keeps it; a batch norm only if its statistics are fixed."""
    name = base_name(node.target)
    if name in _BATCH_NORMS:
        return node.uses_running_statistics is True
    return name in POINTWISE or name in PER_CHANNEL or name in ALIASES


def convolves(target: str) -> bool:
    """Whether an operation convolves, forward or backward, in any library; casts (``convert_``) and reorders do not."""
    name = base_name(target)
    return "conv" in name and "convert" not in name and "reorder" not in name


def reads_any_layout(node: FxNode) -> bool:
    """Whether an operation reads its input in any layout and returns another value, such as a sum or a size."""
    name = base_name(node.target)
    return name in REDUCTIONS or name.startswith("sym_") or name in ("is_same_size", "size", "stride", "numel")


_EVERY_BATCH_NORM = _BATCH_NORMS | {
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "_batch_norm_with_update",
}
_CALL = "batch_norm"
TURNING = frozenset({"transpose", "permute", "t", "movedim", "swapaxes"})
VIEWS = TURNING | frozenset(
    "view _unsafe_view reshape unsqueeze squeeze expand select slice narrow split getitem unflatten flatten".split()
)


class StridedNorm(NamedTuple):
    """A batch norm, its input's layout and dtype, the operation that made the input, and whether a view permuted it."""

    norm: FxNode
    layout: Layout
    dtype: str | None
    maker: FxNode
    is_turned: bool


def strided_norms(graph: Graph, *, taken_apart: bool = False) -> Iterator[StridedNorm]:
    """
    Finds the forward batch norms whose input is not contiguous, although the model is contiguous.

    Inputs that a convolution made are left out.

    Args:
        taken_apart: True to look for batch norms decomposed into simpler operations, False for whole batch norms.
    """
    nodes = {node.name: node for node in graph.nodes}
    for norm in graph.nodes:
        if norm.op != "call_function" or norm.backward:
            continue
        reads = [nodes[name] for name in norm.inputs if name in nodes]
        if taken_apart:
            reads = [read for read in reads if norm.called == _CALL and read.called != _CALL]
        else:
            reads = reads[:1] if base_name(norm.target) in _EVERY_BATCH_NORM else []
        for read in reads:
            layout = layout_or_unknown(read)
            is_known = all(isinstance(step, int) for step in layout.stride or ("unknown",))
            is_image = len(layout.shape) in CHANNELS_LAST_BY_RANK
            if is_image and is_known and "contiguous_format" not in layout.memory_formats:
                maker, is_turned = _maker(read, nodes)
                if maker is not None and "conv" not in maker.target:
                    yield StridedNorm(norm, layout, read.dtype, maker, is_turned)


def _maker(node: FxNode, nodes: Mapping[str, FxNode]) -> tuple[FxNode | None, bool]:
    """The operation above views and layout-agnostic operations (None for an input), and whether a view permutes."""
    is_turned, steps = False, 0
    here: FxNode | None = node
    while here is not None and here.op == "call_function" and steps < len(nodes):
        name = base_name(here.target)
        if name not in VIEWS and not is_layout_agnostic(here):
            return here, is_turned
        is_turned, steps = is_turned or name in TURNING, steps + 1
        here = nodes.get(here.inputs[0]) if here.inputs else None
    return None, is_turned
