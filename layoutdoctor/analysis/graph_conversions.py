"""
Layout conversions that a compiled graph itself proves: what Inductor's buffers move into another stride order.

Faces doctor; no torch. What a library does inside an external call is not in the graph: ``kernel_list`` has that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.analysis.primitives import conversion_direction
from layoutdoctor.records import Conversion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.layout import Layout
    from layoutdoctor.records import Buffer, FxNode, Graph, TensorKind

ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "int64": 8,
    "int32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes of one element, by torch's name of the dtype."""


def with_graph_conversions(graphs: Sequence[Graph], graph_break_count: int) -> tuple[Graph, ...]:
    """
    The graphs with their conversions filled in.

    Args:
        graphs: As captured.
        graph_break_count: Breaks of the whole model.
    """
    return tuple(
        msgspec.structs.replace(graph, conversions=graph_conversions(graph), graph_breaks=graph_break_count)
        for graph in graphs
    )


def graph_conversions(graph: Graph) -> tuple[Conversion, ...]:
    """
    The conversions of one compiled graph, one per buffer.

    A buffer counts where it holds the values of another one of the same shape in another stride order over dimensions
    larger than one. A change of shape (padding, concatenation, slicing) is a move but no conversion.

    Args:
        graph: With FX nodes and buffers.
    """
    layouts = {buffer.name: buffer.layout for buffer in graph.buffers}
    placeholders = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    layouts.update({name: node.layout for name, node in placeholders.items()})
    nodes = {node.name: node for node in graph.nodes}
    found: list[Conversion] = []
    for buffer in graph.buffers:
        for names, fused in ((buffer.moved_from, False), (buffer.converted_from, True)):
            for name in names:
                source = layouts.get(name)
                conversion = _conversion(graph, buffer, name, source, nodes, fused=fused, number=len(found))
                if conversion is not None:
                    found.append(conversion)
    return tuple(found)


def _conversion(
    graph: Graph,
    buffer: Buffer,
    source_name: str,
    source: Layout | None,
    nodes: dict[str, FxNode],
    *,
    fused: bool,
    number: int,
) -> Conversion | None:
    target = buffer.layout
    if source is None or target is None or source.shape != target.shape:
        return None
    direction = conversion_direction(source, target)
    if direction == "none":
        return None
    node = _node(buffer, nodes)
    elements, item = target.element_count, ITEM_BYTES.get(buffer.dtype or "")
    return Conversion(
        id=f"{graph.name} conversion {number}",
        owner="compiler",
        kernel=buffer.kernel,
        node=node.name if node is not None else None,
        op=node.target if node is not None else None,
        location=node.location if node is not None else None,
        module=node.module if node is not None else None,
        source=source,
        target=target,
        direction=direction,
        tensor=_kind(graph, source_name, nodes),
        seconds=None,
        bytes_moved=None if elements is None or item is None else 2 * elements * item,
        fused=fused,
        dtype=buffer.dtype,
        graph=graph.name,
    )


def _node(buffer: Buffer, nodes: dict[str, FxNode]) -> FxNode | None:
    for name in (buffer.source_node, *buffer.origins):
        node = nodes.get(name) if name is not None else None
        if node is not None and (node.location is not None or node.module is not None):
            return node
    return None


def _kind(graph: Graph, source_name: str, nodes: dict[str, FxNode]) -> TensorKind:
    node = nodes.get(source_name)
    if node is not None and node.op == "placeholder":
        return node.tensor or "unknown"
    return "gradient" if graph.direction == "backward" else "activation"
