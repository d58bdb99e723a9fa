"""
Questions that several rules ask of a graph: which nodes are convolutions, which layouts are channels-last only.

Faces the rules; pure functions of records.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutdoctor.analysis.layout_agnostic import base_name
from layoutdoctor.layout import CHANNELS_LAST_BY_RANK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from layoutdoctor.layout import Layout, MemoryFormat
    from layoutdoctor.records import FxNode, Graph

# aten.convolution, mkldnn._convolution_pointwise, aten._slow_conv2d_forward; not prims.convert_element_type
_CONVOLUTION = re.compile(r"(^|_)conv(olution)?(_|[123]d|$)")
_CONTIGUOUS = ("contiguous_format",)


def is_convolution(node: FxNode) -> bool:
    """
    Whether a node runs a convolution forward, whatever library does it.

    Args:
        node: A node of a graph.
    """
    name = base_name(node.target)
    return node.op == "call_function" and bool(_CONVOLUTION.search(name)) and "backward" not in name


def is_convolution_named(name: str, nodes: dict[str, FxNode]) -> bool:
    """
    The same for a node by its name; judged by the name where the node was not recorded.

    Args:
        name: As in ``Conversion.required_by``.
        nodes: The graph's nodes by name.
    """
    return is_convolution(nodes[name]) if name in nodes else bool(_CONVOLUTION.search(name))


def nodes_by_name(graph: Graph) -> dict[str, FxNode]:
    """
    A graph's nodes by name.

    Args:
        graph: Any graph.
    """
    return {node.name: node for node in graph.nodes}


def channels_last_only(layout: Layout | None) -> MemoryFormat | None:
    """
    The channels-last format of a layout that is not contiguous as well; None for any other layout.

    Args:
        layout: Any; None where not recorded.
    """
    if layout is None or "contiguous_format" in layout.memory_formats:
        return None
    return next(iter(layout.memory_formats), None)


def is_contiguous_only(layout: Layout | None) -> bool:
    """
    Whether a 4-D or 5-D layout is contiguous and not channels-last as well.

    Args:
        layout: Any; None where not recorded.
    """
    return layout is not None and len(layout.shape) in CHANNELS_LAST_BY_RANK and layout.memory_formats == _CONTIGUOUS


def is_ambiguous(layout: Layout | None) -> bool:
    """
    Whether a layout with elements satisfies contiguous_format and channels-last at once, by dimensions of size 1.

    Args:
        layout: Any; None where not recorded.
    """
    return layout is not None and len(layout.memory_formats) > 1 and 0 not in layout.shape


def weight_layouts(graphs: Iterable[Graph]) -> dict[str, Layout]:
    """
    The 4-D and 5-D parameters of graphs, by placeholder.

    Args:
        graphs: Of one trial; only the forward ones are looked at, so that none counts twice.
    """
    return {
        f"{graph.name} {node.name}": node.layout
        for graph in graphs
        if graph.direction != "backward"
        for node in graph.nodes
        if node.tensor == "weight" and node.layout is not None and len(node.layout.shape) in CHANNELS_LAST_BY_RANK
    }


def is_recorded(graph: Graph) -> bool:
    """
    Whether a graph was captured whole, so that what is not in it is not there.

    Args:
        graph: Any graph.
    """
    return bool(graph.nodes) and graph.hook_failure is None and not graph.not_understood
