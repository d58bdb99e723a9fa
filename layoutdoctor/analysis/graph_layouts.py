"""
Which layout an argument or a result of a convolution really had when its graph ran.

The layouts of a compiled graph's nodes are those it was traced with; Inductor may have chosen others. What it chose
stands in its buffers, and what an operation was given in the profile. Faces ``device_kernels``; no torch.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from layoutdoctor.analysis.layout_agnostic import base_name
from layoutdoctor.layout import strided_layout

if TYPE_CHECKING:
    from layoutdoctor.layout import Layout
    from layoutdoctor.recording.operations import Operation
    from layoutdoctor.records import FxNode, Graph

_EAGER = "eager"  # the name of the graph whose nodes are the operations that really ran
_SEVERAL_RESULTS = "convolution_backward"


class GraphLayouts:
    """
    The layouts that tensors of a graph's convolutions had.

    Args:
        graph: With nodes; a compiled one with buffers as well.
    """

    def __init__(self, graph: Graph) -> None:
        self._nodes = {node.name: node for node in graph.nodes}
        self._is_eager = graph.name == _EAGER
        self._items = {(node.inputs[0], node.result_index): node for node in graph.nodes if _is_item(node)}
        self._written: dict[str, list[Layout]] = defaultdict(list)
        self._made_for: dict[str, list[Layout]] = defaultdict(list)
        for buffer in graph.buffers:
            if buffer.is_extern and buffer.layout is not None:
                self._written[buffer.source_node or ""].append(buffer.layout)
                for origin in buffer.origins:
                    self._made_for[origin].append(buffer.layout)

    def of_argument(self, node: FxNode, index: int, operation: Operation) -> Layout | None:
        """
        The layout of an argument; None where it was not recorded, or has other sizes than the graph's value.

        Args:
            node: A convolution, forward or backward.
            index: Which argument.
            operation: What ran it, as profiled.
        """
        if index >= min(len(operation.shapes), len(operation.strides), len(node.inputs)):
            return None
        shape, stride = operation.shapes[index], operation.strides[index]
        value = self._nodes.get(node.inputs[index])
        if value is None or value.layout is None or len(shape) != len(stride):
            return None
        known = value.layout.shape
        if len(known) != len(shape) or any(isinstance(a, int) and a != b for a, b in zip(known, shape, strict=True)):
            return None
        return strided_layout(shape, stride)

    def of_result(self, node: FxNode, index: int) -> Layout | None:
        """
        The layout of a result; None where the graph does not say what it was.

        Args:
            node: A convolution, forward or backward.
            index: Which result.
        """
        holder: FxNode | None = node
        if base_name(node.target) == _SEVERAL_RESULTS:
            holder = self._items.get((node.name, index))
        if holder is None:
            return None
        if self._is_eager:
            return holder.layout
        found = self._written.get(holder.name, [])
        if not found and holder is node:  # another buffer holds the node's value, as one in another layout does
            found = self._made_for.get(node.name, [])
        return found[0] if len(found) == 1 else None


def _is_item(node: FxNode) -> bool:
    return base_name(node.target) == "getitem" and len(node.inputs) == 1
