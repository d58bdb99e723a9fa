"""Batch norms that read a layout which no convolution gave them: channels-last, or in no memory format at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.examination.graphs.layout_agnostic import base_name, is_layout_agnostic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from layoutdoctor.diagnosis.graph import FxNode, Graph
    from layoutdoctor.diagnosis.layout import Layout

_BATCH_NORMS = frozenset(
    """
    native_batch_norm batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit
    _native_batch_norm_legit_no_training _batch_norm_with_update
    """.split()
)
_CALL = "batch_norm"
_TURNING = frozenset({"transpose", "permute", "t", "movedim", "swapaxes"})
_VIEWS = _TURNING | frozenset(
    "view _unsafe_view reshape unsqueeze squeeze expand select slice narrow split getitem unflatten flatten".split()
)


class StridedNorm(NamedTuple):
    """A batch norm, the layout it reads, and which operation made that."""

    norm: FxNode
    layout: Layout
    dtype: str | None
    maker: FxNode
    is_turned: bool


def strided_norms(graph: Graph, *, taken_apart: bool = False) -> Iterator[StridedNorm]:
    """
    The batch norms of a contiguous model's graph whose input is not contiguous, and comes from no convolution.

    Args:
        taken_apart: Look for those that the compiler replaced by simpler operations, instead of for whole ones.
    """
    nodes = {node.name: node for node in graph.nodes}
    for norm in graph.nodes:
        if norm.op != "call_function" or norm.backward:
            continue
        reads = [nodes[name] for name in norm.inputs if name in nodes]
        if taken_apart:
            reads = [read for read in reads if norm.called == _CALL and read.called != _CALL]
        else:
            reads = reads[:1] if base_name(norm.target) in _BATCH_NORMS else []
        for read in reads:
            if read.layout is None or not _is_unusual(read.layout):
                continue
            maker, is_turned = _maker(read, nodes)
            if maker is not None and "conv" not in maker.target:
                yield StridedNorm(norm, read.layout, read.dtype, maker, is_turned)


def _is_unusual(layout: Layout) -> bool:
    """Whether a 4-D or 5-D layout is channels-last only, or in no memory format, as far as its strides are known."""
    if len(layout.shape) not in CHANNELS_LAST_BY_RANK or layout.stride is None:
        return False
    return "contiguous_format" not in layout.memory_formats and all(isinstance(size, int) for size in layout.stride)


def _maker(node: FxNode, nodes: Mapping[str, FxNode]) -> tuple[FxNode | None, bool]:
    """The operation that made a value, seen through views and operations that keep the layout, and whether turned."""
    is_turned, steps = False, 0
    here: FxNode | None = node
    while here is not None and here.op == "call_function" and steps < len(nodes):
        name = base_name(here.target)
        if name not in _VIEWS and not is_layout_agnostic(here):
            return here, is_turned
        is_turned, steps = is_turned or name in _TURNING, steps + 1
        here = nodes.get(here.inputs[0]) if here.inputs else None
    return None, is_turned
