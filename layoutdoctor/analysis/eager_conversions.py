"""
Layout conversions of an eager iteration: copies whose source and destination differ in stride order.

Every copy that ATen makes ends in ``aten::copy_``, whose arguments' sizes and strides the profiler records. A copy
that only casts, broadcasts, slices or moves between devices at equal stride order is no conversion. Faces doctor; no
torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.analysis.breakers import eager_breakers
from layoutdoctor.analysis.graph_conversions import is_copy, is_user_call, layout_change, tensor_bytes
from layoutdoctor.analysis.join import is_convolution
from layoutdoctor.analysis.kernel_list import is_backward, outermost_name
from layoutdoctor.layout import strided_layout
from layoutdoctor.records import Conversion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutdoctor.analysis.kernel_list import HostOperation
    from layoutdoctor.layout import Layout
    from layoutdoctor.records import ConversionRole, FxNode, Graph, TensorKind

_COPY = "aten::copy_"


def with_eager_conversions(
    graph: Graph,
    tree: Sequence[HostOperation],
    library_conversions: Sequence[Conversion],
    device_seconds: Mapping[int, float] | None = None,
) -> Graph:
    """
    The eager graph with its conversions and layout breakers.

    Args:
        graph: The recorded operations, aligned with the profiled ones.
        tree: The profiled operations, joined to its nodes.
        library_conversions: What the libraries converted inside their operations, joined likewise.
        device_seconds: On a GPU: time of the kernels that each operation launched, by its external id.
    """
    nodes = {node.name: node for node in graph.nodes}
    found: list[Conversion] = []
    for entry in tree:
        if entry.name != _COPY:
            continue
        conversion = _conversion(entry, graph, nodes, len(found), device_seconds)
        if conversion is not None:
            found.append(conversion)
    breakers = eager_breakers(graph, (*found, *library_conversions))
    return msgspec.structs.replace(graph, conversions=tuple(found), breakers=breakers)


def with_copies_in_calls(graph: Graph, tree: Sequence[HostOperation], device_seconds: Mapping[int, float]) -> Graph:
    """
    A compiled graph with the copies that ATen makes on a GPU inside the convolutions it calls.

    As where a gradient comes in another memory format than the convolution runs in: no kernel of the compiler's, and
    none of the library's.

    Args:
        graph: With its own conversions.
        tree: The profiled operations, joined to its nodes.
        device_seconds: Time of the kernels that each operation launched, by its external id.
    """
    is_backward_graph = graph.direction == "backward"
    nodes = {node.name: msgspec.structs.replace(node, backward=is_backward_graph) for node in graph.nodes}
    found: list[Conversion] = []
    for entry in tree:
        joined = entry.joined() if entry.name == _COPY else None
        if joined is None or joined.graph != graph.name:
            continue
        conversion = _conversion(entry, graph, nodes, len(found), device_seconds)
        if conversion is not None:
            # What it converts is known by the node's port; it is no buffer.
            own = {"id": f"{graph.name} copy {len(found)}", "value": None, "source_value": None}
            found.append(msgspec.structs.replace(conversion, **own))
    return msgspec.structs.replace(graph, conversions=(*graph.conversions, *found))


def _conversion(
    entry: HostOperation,
    graph: Graph,
    nodes: dict[str, FxNode],
    number: int,
    device_seconds: Mapping[int, float] | None,
) -> Conversion | None:
    layouts = _copied_layouts(entry)
    if layouts is None:
        return None
    source, target = layouts
    direction = layout_change(source, target)
    if direction == "none":
        return None
    joined = entry.joined()
    # By name: the graph's own nodes know what the model called, those of the join do not.
    node = nodes.get(joined.node.name) if joined is not None and joined.node is not None else None
    port, kind = _port_and_kind(node, nodes, source, target) if node is not None else (None, "unknown")
    asked = node is not None and is_user_call(node) and node.is_called_directly is True
    dtypes = _dtypes(node, nodes)
    seconds = _seconds(entry, device_seconds)
    return Conversion(
        id=f"{graph.name} conversion {number}",
        owner="user" if asked else "framework",
        kernel=entry.name,
        node=node.name if node is not None else None,
        op=outermost_name(entry),
        location=node.location if node is not None else None,
        module=node.module if node is not None else None,
        source=source,
        target=target,
        direction=direction,
        tensor=kind,
        seconds=seconds,
        bytes_moved=tensor_bytes(target, *dtypes),
        start_seconds=None,
        dtype=dtypes[0],
        target_dtype=dtypes[1] if dtypes[1] != dtypes[0] else None,
        graph=graph.name if node is not None else None,
        port=port,
        cause=_cause(entry, node, asked=asked),
        role=_role(graph, node, nodes, kind),
        required_by=(node.name,) if node is not None and is_convolution(node.target) else (),
        value=node.name if node is not None else None,
        source_value=_source_value(node, port),
        seconds_source=None if seconds is None else "measured",
    )


def _copied_layouts(entry: HostOperation) -> tuple[Layout, Layout] | None:
    """Layouts of what is copied and of where to; None where they are not both recorded, or of different sizes."""
    shapes, strides = entry.operation.shapes, entry.operation.strides
    if len(shapes) < 2 or len(strides) < 2 or shapes[0] != shapes[1] or len(shapes[0]) < 2:
        return None
    if len(strides[0]) != len(shapes[0]) or len(strides[1]) != len(shapes[1]):
        return None
    return strided_layout(shapes[1], strides[1]), strided_layout(shapes[0], strides[0])


def _seconds(entry: HostOperation, device_seconds: Mapping[int, float] | None) -> float | None:
    if device_seconds is None:
        return entry.operation.seconds
    return device_seconds.get(entry.operation.external_id) if entry.operation.external_id is not None else None


def _port(node: FxNode, nodes: dict[str, FxNode], source: Layout, target: Layout) -> str | None:
    """Which tensor of an operation other than a convolution was copied: a copy's own result, an argument, a result."""
    if is_copy(node):
        return "output 0"
    for position, name in enumerate(node.inputs):
        if name in nodes and _fits(nodes[name].layout, source):
            return f"input {position}"
    return "output 0" if _fits(node.layout, target) else None


def _port_and_kind(
    node: FxNode, nodes: dict[str, FxNode], source: Layout, target: Layout
) -> tuple[str | None, TensorKind]:
    """Which tensor of an operation was copied, and of what kind it is; None and ``unknown`` where several fit."""
    inputs = [nodes[name] for name in node.inputs if name in nodes]
    if not is_convolution(node.target):
        made_of = inputs[0] if inputs else None
        kind: TensorKind = "weight" if made_of is not None and made_of.tensor == "weight" else "activation"
        return _port(node, nodes, source, target), "gradient" if node.backward and kind == "activation" else kind
    fitting = [
        position for position, name in enumerate(node.inputs) if name in nodes and _fits(nodes[name].layout, source)
    ]
    if not fitting and _fits(node.layout, target):
        return "output 0", "gradient" if node.backward else "activation"
    if not fitting and node.backward:
        return None, "gradient"  # a gradient that it returns, put into another layout
    if len(fitting) != 1:
        return None, "unknown"
    position = fitting[0]
    if nodes[node.inputs[position]].tensor == "weight":
        return f"input {position}", "weight"
    return f"input {position}", "gradient" if node.backward and position == 0 else "activation"


def _fits(layout: Layout | None, source: Layout) -> bool:
    return layout is not None and layout.shape == source.shape and layout.stride == source.stride


def _source_value(node: FxNode | None, port: str | None) -> str | None:
    if node is None or port is None:
        return None
    position = int(port.split()[1]) if port.startswith("input") else 0
    if port.startswith("output") and not is_copy(node):
        return None
    return node.inputs[position] if position < len(node.inputs) else None


def _dtypes(node: FxNode | None, nodes: dict[str, FxNode]) -> tuple[str | None, str | None]:
    if node is None:
        return None, None
    before = next((nodes[name].dtype for name in node.inputs if name in nodes), None)
    after = node.dtype if not is_convolution(node.target) else before
    return before, after


def _cause(entry: HostOperation, node: FxNode | None, *, asked: bool) -> str:
    if asked and node is not None:
        return f"the model's own .{node.called}() asks for it"
    op = outermost_name(entry)
    if node is not None and is_convolution(node.target):
        return f"{op} wants its tensors in one memory format, that of input or weight"
    what = "the backward of " if is_backward(entry) else ""
    return f"made inside {what}{op}"


def _role(graph: Graph, node: FxNode | None, nodes: dict[str, FxNode], kind: TensorKind) -> ConversionRole | None:
    if node is None or kind == "weight":
        return None
    if node.name in graph.output_names and not is_convolution(node.target):
        return "exit"
    first = nodes.get(node.inputs[0]) if node.inputs else None
    return "entry" if first is not None and first.op == "placeholder" and not node.backward else "interior"
