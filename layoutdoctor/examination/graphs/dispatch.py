"""
Operations that torch runs in another memory format than their input lies in, for the strides of size-1 dimensions.

``Tensor.is_contiguous(memory_format=...)`` leaves those strides out, the choice of a kernel does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from layoutdoctor.examination.graphs.layout_agnostic import base_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.layout import Layout, MemoryFormat
    from layoutdoctor.diagnosis.records import FxNode, Graph

FOLLOWING_2D = frozenset(
    """
    _adaptive_avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d avg_pool2d cat channel_shuffle constant_pad_nd
    convolution max_pool2d_with_indices native_channel_shuffle native_group_norm pixel_shuffle pixel_unshuffle
    reflection_pad2d replication_pad2d upsample_bicubic2d upsample_bilinear2d upsample_nearest2d
    """.split()
)
FOLLOWING_3D = frozenset(
    "cat constant_pad_nd max_pool3d_with_indices native_group_norm upsample_nearest3d upsample_trilinear3d".split()
)
"""They lay out their result by the format that their input is dispatched by (tried on a CPU, torch 2.13)."""

_FOLLOWING = {4: FOLLOWING_2D, 5: FOLLOWING_3D}
_CONTIGUOUS: MemoryFormat = "contiguous_format"


class Misread(NamedTuple):
    """An operation, and the value that it takes for another format than the one in which it lies."""

    node: FxNode
    source: FxNode


def read_as_contiguous(graph: Graph) -> Iterator[Misread]:
    """Operations of the forward that are given channels-last and, by its strides alone, return contiguous."""
    for node, source, given, returned in _following(graph):
        is_misread = _is_channels_last(given) and given.dispatched == _CONTIGUOUS
        if is_misread and returned.memory_formats == (_CONTIGUOUS,):
            yield Misread(node, source)


def read_as_channels_last(graph: Graph) -> Iterator[Misread]:
    """Operations of the forward that are given contiguous and, by its strides alone, return channels-last."""
    nodes = {node.name: node for node in graph.nodes}
    for node, source, given, returned in _following(graph):
        others = [nodes[name].layout for name in node.inputs[1:] if name in nodes]
        is_asked = any(other is not None and other.dispatched not in (None, _CONTIGUOUS) for other in others)
        is_misread = _CONTIGUOUS in given.memory_formats and given.dispatched not in (None, _CONTIGUOUS)
        if is_misread and not is_asked and _is_channels_last(returned):
            yield Misread(node, source)


def _is_channels_last(layout: Layout) -> bool:
    return bool(layout.memory_formats) and _CONTIGUOUS not in layout.memory_formats


def _following(graph: Graph) -> Iterator[tuple[FxNode, FxNode, Layout, Layout]]:
    nodes = {node.name: node for node in graph.nodes}
    for node in graph.nodes:
        source = nodes.get(node.inputs[0]) if node.inputs else None
        if node.backward or source is None or source.layout is None or node.layout is None:
            continue
        rank = len(source.layout.shape)
        if base_name(node.target) in _FOLLOWING.get(rank, ()) and len(node.layout.shape) == rank:
            yield node, source, source.layout, node.layout
