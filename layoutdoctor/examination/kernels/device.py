"""
The kernel list of one profiled iteration on a GPU, with the kernels that convert a layout.

Conversions are found as in a recorded trace. The iteration's operations are also joined with the graphs they ran in,
which gives the node, module, line and value of a conversion, so that round trips can be proved on the data flow. Port
and value are named under two conditions. Sizes and launch grid must prove which tensor was converted. In the graph, an
argument must have the layout that the kernel reads, and a result the layout that the kernel writes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis import Conversion, FxNode, Graph, Kernel, KernelSummary, Lack, Layout, SourceLocation
from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.examination.graphs.buffers import same_format
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.examination.kernels.attribution import Places
from layoutdoctor.examination.kernels.conversions import Records
from layoutdoctor.examination.kernels.evidence import Evidence, find_copies
from layoutdoctor.examination.kernels.operations import HostOperation, is_backward
from layoutdoctor.examination.layouts import UNKNOWN, layout_or_unknown
from layoutdoctor.examination.where import where
from layoutdoctor.units import NANOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from layoutdoctor.examination.kernels.attribution import Attribution
    from layoutdoctor.examination.kernels.evidence import LibraryConversion
    from layoutdoctor.examination.kernels.shapes import TensorRole

_EAGER = "eager"  # the name of the graph whose nodes are the operations that really ran
_SEVERAL_RESULTS = "convolution_backward"


class GraphLayouts:
    """The layouts of the arguments and results of a graph's convolutions."""

    def __init__(self, graph: Graph) -> None:
        self._nodes = {node.name: node for node in graph.nodes}
        self._is_eager = graph.name == _EAGER
        items = (node for node in graph.nodes if base_name(node.target) == "getitem" and len(node.inputs) == 1)
        self._items = {(node.inputs[0], node.result_index): node for node in items}
        self._written: dict[str, list[Layout]] = defaultdict(list)
        self._made_for: dict[str, list[Layout]] = defaultdict(list)
        for buffer in graph.buffers:
            if buffer.is_extern and buffer.layout is not None:
                self._written[buffer.source_node or ""].append(buffer.layout)
                for origin in buffer.origins:
                    self._made_for[origin].append(buffer.layout)

    def of_argument(self, node: FxNode, index: int, operation: HostOperation) -> Layout | None:
        """The layout of an argument; None if not recorded, or if the graph's value has other or unknown sizes."""
        if index >= min(len(operation.shapes), len(operation.strides), len(node.inputs)):
            return None
        shape, stride = operation.shapes[index], operation.strides[index]
        value = layout_or_unknown(self._nodes.get(node.inputs[index]))
        if value is UNKNOWN or len(shape) != len(stride):
            return None
        known = value.shape
        if len(known) != len(shape) or any(isinstance(a, int) and a != b for a, b in zip(known, shape, strict=True)):
            return None
        return strided_layout(shape, stride)

    def of_result(self, node: FxNode, index: int) -> Layout | None:
        """The layout of a result; None if the graph does not show it."""
        holder: FxNode | None = node
        if base_name(node.target) == _SEVERAL_RESULTS:
            holder = self._items.get((node.name, index))
        if holder is None:
            return None
        if self._is_eager:
            return holder.layout
        found = self._written.get(holder.name, [])
        if not found and holder is node:  # the node's value is in another buffer, such as one in another layout
            found = self._made_for.get(node.name, [])
        return found[0] if len(found) == 1 else None


_PORTS: dict[str, dict[TensorRole, str]] = {
    "convolution": {"input": "input 0", "weight": "input 1", "output": "output 0"},
    "convolution_backward": {
        "grad_output": "input 0",
        "input": "input 1",
        "weight": "input 2",
        "grad_input": "output 0",
        "grad_weight": "output 1",
    },
}
"""Ports of a graph's convolutions by role; inner operations, which launch kernels, may order arguments differently."""


def summarize_device(
    attribution: Attribution, tree: Sequence[HostOperation], graphs: Sequence[Graph], lacks: Sequence[Lack]
) -> KernelSummary:
    """The kernel list of an iteration on a GPU."""
    by_row = {entry.row: entry for entry in tree}
    not_known = HostOperation("", 0.0, 0.0, "")
    # The operation that launched each kernel.
    entries = [by_row.get(row, not_known) for row in attribution.operation.tolist()]
    evidence = Evidence(attribution)
    starts = attribution.trace.kernels.start
    origin = int(starts[0]) if len(starts) else 0
    # Conversions in generated code and in eager copies are found with the graphs.
    copies = [copy for copy in find_copies(evidence) if copy.kind == "undecided"]
    records = Records(evidence, _GraphPlaces(attribution, entries), copies, origin=origin)
    layouts = {graph.name: GraphLayouts(graph) for graph in graphs}
    conversions = [
        _with_port(_with_node(records.library(number, item), entries[item.row]), item, entries[item.row], layouts)
        for number, item in enumerate(evidence.conversions)
    ]
    padded = [_with_node(records.padded(number, row), entries[row]) for number, row in enumerate(records.padding)]
    summary = records.summary(conversions, padded)
    return msgspec.structs.replace(
        summary,
        # A long kernel list is cut.
        kernels=tuple(_kernel(kernel, entry) for kernel, entry in zip(summary.kernels, entries, strict=False)),
        sources=("profiler",),
        lacks=(*lacks, *summary.lacks),
    )


def device_seconds(attribution: Attribution) -> dict[int | None, float]:
    """Time of the kernels that each operation launched itself, by the operation's row."""
    seconds: dict[int | None, float] = {}
    columns = (attribution.operation.tolist(), attribution.trace.kernels.duration.tolist())
    for operation, duration in zip(*columns, strict=True):
        seconds[operation] = seconds.get(operation, 0.0) + duration / NANOSECONDS_PER_SECOND
    return seconds


class _GraphPlaces(Places):
    """The places of kernels, from the nodes that their operations ran; no recorded stack is needed."""

    def __init__(self, attribution: Attribution, entries: Sequence[HostOperation]) -> None:
        super().__init__(attribution)
        self.has_frames = True
        self._places = [where(entry.joined().node) for entry in entries]

    def modules(self, rows: Sequence[int]) -> list[str | None]:
        return [self._places[row].module for row in rows]

    def locations(self, rows: Sequence[int]) -> list[SourceLocation | None]:
        return [self._places[row].location for row in rows]


def _kernel(kernel: Kernel, entry: HostOperation) -> Kernel:
    return msgspec.structs.replace(
        kernel,
        op=kernel.op if kernel.library != "inductor" else None,  # its operation has the name of the kernel
        backward=is_backward(entry),
        node=where(entry.joined().node).node,
        graph=entry.home(),
    )


def _with_node(conversion: Conversion, entry: HostOperation) -> Conversion:
    """Adds to a conversion the node that it ran for; the converted tensor of this node is added by ``_with_port``."""
    plain = msgspec.structs.replace(conversion, port=None, source_value=None)
    node = entry.joined().node
    if node is None:
        return plain
    return msgspec.structs.replace(
        plain,
        node=node.name,
        graph=entry.joined().graph,
        cause=conversion.cause or f"{entry.name} runs in a format of its own",
        required_by=(node.name,),
    )


def _with_port(
    conversion: Conversion,
    found: LibraryConversion,
    entry: HostOperation,
    graphs: Mapping[str, GraphLayouts],
) -> Conversion:
    """Adds port and value to a conversion, if sizes prove the tensor and it has the same layout in the graph."""
    node = entry.joined().node
    if node is None or found.confidence != "shapes":
        return conversion
    port = _PORTS.get(base_name(node.target), {}).get(found.tensor.role)
    if port is None:
        return conversion
    side, number = port.split()
    index, is_read, graph = int(number), side == "input", graphs[str(entry.joined().graph)]
    if is_read:
        known, own = graph.of_argument(node, index, entry.joined()), conversion.source
    else:
        known = graph.of_result(node, index)
        own = conversion.target if found.is_result else conversion.source  # else the result's buffer, not yet written
    if known is None or own is None or known.shape != own.shape or not same_format(known, own):
        return conversion
    value = node.inputs[index] if is_read else None
    return msgspec.structs.replace(conversion, port=port, source_value=value)
