"""
Layout conversions in the loops of a compiled graph and in copies of ATen, with the owner of each conversion and the
operations that need it.

A loop converts if it reads a whole tensor in one stride order and writes the same elements in another stride order.
Dimensions of size 1 do not count. The loop may compute as well, but not reduce. Padding, slicing and shuffling convert
nothing; nor do concatenations and casts that keep the layout. Names of kernels are not considered. Conversions inside
library calls are in the kernel list, not in the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from layoutdoctor.diagnosis import (
    Buffer,
    Conversion,
    ConversionDirection,
    ConversionRole,
    FxNode,
    Graph,
    Layout,
    TensorKind,
)
from layoutdoctor.examination.graphs.breakers import compiled_breakers, eager_breakers
from layoutdoctor.examination.graphs.buffers import Flow, densified
from layoutdoctor.examination.graphs.join import is_convolution_target
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.examination.kernels.operations import is_backward, outermost_name
from layoutdoctor.examination.kernels.primitives import conversion_direction, is_expanded, stride_order_of
from layoutdoctor.examination.kernels.shapes import COPY, layouts_of_copy
from layoutdoctor.examination.layouts import UNKNOWN, layout_or_unknown
from layoutdoctor.examination.where import Where, where
from layoutdoctor.units import sum_if_all_known
from layoutdoctor.words import item_bytes, listing

if TYPE_CHECKING:
    from layoutdoctor.examination.graphs.buffers import BufferSource
    from layoutdoctor.examination.kernels.operations import HostOperation

USER_CALLS = frozenset({"contiguous", "to", "clone", "copy_", "type", "type_as", "half", "bfloat16", "float"})
"""Methods with which a model's own code asks for a layout. ``reshape`` and similar methods ask for a shape."""

_COPIES = frozenset({"clone", "_to_copy", "convert_element_type", "copy", "copy_"})


def with_graph_conversions(graphs: Sequence[Graph], graph_break_count: int) -> tuple[Graph, ...]:
    """Adds conversions, layout breakers and the model's number of graph breaks to compiled graphs."""
    found: list[Graph] = []
    for graph in graphs:
        flow = Flow(graph)
        conversions = _conversions(flow)
        facts = {"conversions": conversions, "breakers": compiled_breakers(flow, conversions)}
        found.append(msgspec.structs.replace(graph, graph_breaks=graph_break_count, **facts))
    return tuple(found)


def _conversions(flow: Flow) -> tuple[Conversion, ...]:
    """Makes one conversion per buffer, source layout and kind of tensor; for a concatenation, one per branch."""
    gradients = _gradient_nodes(flow)
    found: list[Conversion] = []
    for buffer in flow.graph.buffers:
        if buffer.is_extern or buffer.is_reduction or buffer.is_removed or buffer.layout is None:
            continue
        known: set[tuple[Layout, TensorKind]] = set()
        for source in flow.sources(buffer):
            if source.seen is None:
                continue
            kind = _kind(flow, source.name, gradients)
            if (source.seen, kind) in known and not source.is_part:
                continue  # a value computed from several tensors of one kind and layout is written once: one conversion
            known.add((source.seen, kind))
            target = buffer.layout
            if source.is_part:
                target = msgspec.structs.replace(target, shape=source.seen.shape, memory_formats=())
            direction = layout_change(source.seen, target)
            if direction != "none":
                found.append(_conversion(flow, buffer, source, target, direction, kind, len(found)))
    return tuple(found)


def layout_change(source: Layout, target: Layout) -> ConversionDirection:
    """The change from one strided layout to another; ``none`` if the order of elements is the same or not known."""
    before, after = densified(source), densified(target)
    if set(before.memory_formats) & set(after.memory_formats):
        return "none"
    if any(is_expanded(layout) or stride_order_of(layout) is None for layout in (source, target)):
        return "none"
    return conversion_direction(before, after)


def _conversion(
    flow: Flow,
    buffer: Buffer,
    source: BufferSource,
    target: Layout,
    direction: ConversionDirection,
    kind: TensorKind,
    number: int,
) -> Conversion:
    asked = _user_node(flow, buffer, target)
    dtypes = (flow.dtype_of(source.name), buffer.dtype)
    required_by = flow.required_by(buffer.name)
    role = _role(flow, buffer, source.name, kind)
    place = where(asked or flow.node_of(buffer))
    if place.node is None:
        modules = (flow.nodes[name].module for name in required_by)
        place = Where(module=next((module for module in modules if module is not None), None))
    return Conversion(
        id=f"{flow.graph.name} conversion {number}",
        owner="compiler" if asked is None else "user",
        kernel=buffer.kernel,
        **place._asdict(),
        source=source.seen,
        target=target,
        direction=direction,
        tensor=kind,
        seconds=None,
        bytes_moved=tensor_bytes(target, *dtypes),
        fused=not flow.only_moves(buffer),
        dtype=dtypes[0],
        graph=flow.graph.name,
        target_dtype=dtypes[1] if dtypes[0] != dtypes[1] else None,
        cause=_cause(flow, buffer, asked, role, required_by, kind),
        role=role,
        required_by=required_by,
        value=buffer.name,
        source_value=source.name,
    )


def tensor_bytes(layout: Layout | None, *dtypes: str | None) -> int | None:
    """
    Bytes of a tensor, added up over the dtypes; None if its size or a dtype is not known.

    Args:
        dtypes: Names of dtypes, in any spelling. For a conversion: the dtypes that it reads and writes.
    """
    elements = None if layout is None else layout.element_count
    size = sum_if_all_known(*map(item_bytes, dtypes))
    return None if elements is None or size is None else elements * size


def _user_node(flow: Flow, buffer: Buffer, target: Layout) -> FxNode | None:
    """The model's own call that asked for the layout in which a buffer is written; None without such a call."""
    for node in flow.nodes_of(buffer):
        before, after = layout_or_unknown(_copied(node, flow.nodes)), layout_or_unknown(node)
        is_change = before.shape == after.shape and layout_change(before, after) != "none"
        is_target = after.shape == target.shape and layout_change(after, target) == "none"
        if is_user_call(node) and is_change and is_target:
            return node
    return None


def is_user_call(node: FxNode) -> bool:
    """Whether a node is a copy by a call such as ``.contiguous()``, unless code of torch is known to make the call."""
    return is_copy(node) and node.called in USER_CALLS and node.is_called_directly is not False


def is_copy(node: FxNode) -> bool:
    """Whether a node copies a tensor."""
    return base_name(node.target) in _COPIES


def _copied_position(node: FxNode) -> int:
    """The position of the tensor that a copy reads; the first input of ``copy_`` is the tensor that it writes."""
    return 1 if base_name(node.target) in ("copy", "copy_") else 0


def _copied(node: FxNode, nodes: Mapping[str, FxNode]) -> FxNode | None:
    """The input that a copy reads; for any other operation, its first input that is in the graph."""
    return next((nodes[name] for name in node.inputs[_copied_position(node) :] if name in nodes), None)


def _kind(flow: Flow, source_name: str, gradients: set[str]) -> TensorKind:
    node = flow.inputs.get(source_name)
    if node is not None:
        return node.tensor or "unknown"
    if flow.graph.direction != "backward":
        return "weight" if _is_made_of_weights(flow, source_name) else "activation"
    of_gradients = (node.name in gradients for node in flow.nodes_of(flow.buffers[source_name]))
    return "gradient" if any(of_gradients) else "activation"


def _is_made_of_weights(flow: Flow, name: str) -> bool:
    """Whether a buffer is a weight that was only cast or moved, as under autocast."""
    buffer = flow.buffers.get(name)
    if buffer is None:
        return name in flow.weights
    if buffer.is_extern or len(buffer.accesses) != 1 or buffer.is_reduction:
        return False
    return set(buffer.operations) <= {"to_dtype"} and _is_made_of_weights(flow, buffer.accesses[0].name)


def _gradient_nodes(flow: Flow) -> set[str]:
    """FX nodes of a backward graph that depend on its incoming gradients; other nodes recompute activations."""
    found = {name for name, node in flow.inputs.items() if node.tensor == "gradient"}
    for node in flow.graph.nodes:
        if any(name in found for name in node.inputs):
            found.add(node.name)
    return found


def _role(flow: Flow, buffer: Buffer, source_name: str, kind: TensorKind) -> ConversionRole | None:
    if kind == "weight":
        return None
    if buffer.is_output and (buffer.is_user_output is not False or flow.graph.direction == "backward"):
        return "exit"  # a backward graph returns gradients, which are as visible as outputs
    given = source_name in flow.inputs
    # A value that the forward saved for the backward is inside the training step, not an input of the user.
    from_outside = given and (flow.graph.direction != "backward" or kind == "gradient")
    return "entry" if from_outside else "interior"


def _cause(
    flow: Flow,
    buffer: Buffer,
    asked: FxNode | None,
    role: ConversionRole | None,
    required_by: Sequence[str],
    kind: TensorKind,
) -> str:
    if asked is not None:
        return f"the model's own .{asked.called}() asks for it"
    if role == "exit" and flow.graph.direction == "backward":
        return "a gradient is returned in the strides of its parameter or input"
    if role == "exit":
        return "the caller is given the strides that eager returns (keep_output_stride)"
    if required_by:
        how = ", on each call" if kind == "weight" else ""
        calls = (flow.nodes[name] for name in required_by)
        names = [
            f"{'convolution' if is_convolution_target(n.target) else n.target} {n.module or n.name}" for n in calls
        ]
        return f"required by {listing(names, 3)}{how}"
    if buffer.is_output:
        return "saved for the backward in these strides"
    if buffer.alias_of is not None or flow.is_concatenation(buffer):
        return "Inductor writes the whole concatenation in this layout"
    node = flow.node_of(buffer)
    return f"Inductor's own choice for {base_name(node.target) if node is not None else 'this buffer'}"


def with_eager_conversions(
    graph: Graph,
    tree: Sequence[HostOperation],
    library_conversions: Sequence[Conversion],
    seconds: Mapping[int | None, float],
) -> Graph:
    """
    Adds conversions and layout breakers to the graph of an eager iteration.

    Args:
        seconds: Time of each operation, by its row; on a GPU, the time of the kernels that it launched.
    """
    flow = Flow(graph)
    found: list[Conversion] = []
    for entry in tree:
        conversion = _eager_conversion(entry, graph, flow.nodes, f"{graph.name} conversion {len(found)}", seconds)
        if conversion is not None:
            found.append(conversion)
    breakers = eager_breakers(flow, (*found, *library_conversions))
    return msgspec.structs.replace(graph, conversions=tuple(found), breakers=breakers)


def with_copies_around(
    graphs: Sequence[Graph], tree: Sequence[HostOperation], seconds: Mapping[int | None, float]
) -> tuple[Graph, ...]:
    """
    Adds to compiled graphs the conversions in copies of ATen, which are no kernels of Inductor or a library.

    Some copies run inside a graph's library calls, for example if a convolution runs in another memory format than its
    weight. Copies outside of all graphs are listed with the last graph: autograd copies gradients into the strides of
    their parameters, and the model makes copies after a graph break.

    Args:
        seconds: Time of each operation, by its row; on a GPU, the time of the kernels that it launched.
    """
    if not graphs:
        return ()
    nodes = {
        graph.name: {n.name: msgspec.structs.replace(n, backward=graph.direction == "backward") for n in graph.nodes}
        for graph in graphs
    }
    by_name = {graph.name: graph for graph in graphs}
    found: dict[str, list[Conversion]] = {graph.name: [] for graph in graphs}
    for entry in tree:
        name = entry.home()
        graph = by_name.get(name or graphs[-1].name)
        if graph is None or (name and entry.joined().node is None):  # it ran in a graph, but its node is not known
            continue
        id_ = f"{graph.name} copy {len(found[graph.name])}"
        conversion = _eager_conversion(entry, graph, nodes[graph.name], id_, seconds)
        if conversion is not None:
            # The copied tensor is no buffer; the node's port says which tensor it is.
            own: dict[str, Any] = {"value": None, "source_value": None}
            if conversion.port in (None, "output 0"):  # the buffer may have another layout than its node
                own |= {"port": None, "tensor": "unknown"}
            conversion = msgspec.structs.replace(conversion, **own)
            # Autograd copies a gradient if its parameter has other strides.
            is_gradient = any(one.name.endswith("AccumulateGrad") for one in entry.around())
            found[graph.name].append(_of_parameter(conversion, graphs) if is_gradient else conversion)
    return tuple(
        msgspec.structs.replace(graph, conversions=(*graph.conversions, *found[graph.name])) for graph in graphs
    )


def _of_parameter(conversion: Conversion, graphs: Iterable[Graph]) -> Conversion:
    """Marks a conversion as a gradient's; sets line and module if exactly one result of the backward graphs fits."""
    returned = [
        node
        for graph in graphs
        if graph.direction == "backward"
        for node in graph.nodes
        if node.name in graph.output_names and _fits(node, conversion.source)
    ]
    dtypes = {node.dtype for node in returned}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    place = where(returned[0] if len(returned) == 1 else None)
    return msgspec.structs.replace(
        conversion,
        tensor="gradient",
        dtype=dtype,
        bytes_moved=tensor_bytes(conversion.target, dtype, dtype),
        location=place.location,
        module=place.module,
        cause="autograd gives a gradient the strides of its parameter",
        purpose="gradient_strides",
    )


def _eager_conversion(
    entry: HostOperation,
    graph: Graph,
    nodes: Mapping[str, FxNode],
    id_: str,
    seconds: Mapping[int | None, float],
) -> Conversion | None:
    if entry.name != COPY or (layouts := layouts_of_copy(entry.shapes, entry.strides)) is None:
        return None
    direction = layout_change(*layouts)
    if direction == "none":
        return None
    # Looked up by name: ``called`` is set on the graph's nodes, not on the nodes that the join put into operations.
    node = nodes.get(str(where(entry.joined().node).node))
    op = outermost_name(entry)
    took = seconds.get(entry.row)
    conversion = Conversion(
        id=id_,
        owner="framework",
        kernel=entry.name,
        **where(node, op)._asdict(),
        source=layouts[0],
        target=layouts[1],
        direction=direction,
        tensor="unknown",
        seconds=took,
        bytes_moved=None,
        cause=f"made inside {'the backward of ' if is_backward(entry) else ''}{op}",
        seconds_source=None if took is None else "measured",
    )
    return conversion if node is None else _with_tensor(conversion, graph, node, nodes, *layouts)


def _with_tensor(
    conversion: Conversion, graph: Graph, node: FxNode, nodes: Mapping[str, FxNode], source: Layout, target: Layout
) -> Conversion:
    """Adds to a copy the facts that follow from its node: the copied tensor, the owner, and the cause of the copy."""
    port, kind = _port_and_kind(node, nodes, source, target)
    copied = _copied(node, nodes)
    dtype = None if copied is None else copied.dtype
    target_dtype, facts = node.dtype, dict[str, Any]()
    if is_convolution_target(node.target):
        cause = f"{conversion.op} wants its tensors in one memory format, that of input or weight"
        target_dtype, facts = dtype, {"required_by": (node.name,), "cause": cause}
    if is_user_call(node) and node.is_called_directly is True:
        facts |= {"owner": "user", "cause": f"the model's own .{node.called}() asks for it"}
    return msgspec.structs.replace(
        conversion,
        tensor=kind,
        bytes_moved=tensor_bytes(target, dtype, target_dtype),
        dtype=dtype,
        target_dtype=None if target_dtype == dtype else target_dtype,
        graph=graph.name,
        port=port,
        role=_eager_role(graph, node, nodes, kind),
        value=node.name,
        source_value=_source_value(node, port),
        **facts,
    )


def _port_and_kind(
    node: FxNode, nodes: Mapping[str, FxNode], source: Layout, target: Layout
) -> tuple[str | None, TensorKind]:
    """The copied tensor's port (``input 0``; None if uncertain) and its kind (``unknown`` if uncertain)."""
    fitting = [position for position, name in enumerate(node.inputs) if _fits(nodes.get(name), source)]
    is_result = not fitting and _fits(node, target)
    made_here: TensorKind = "gradient" if node.backward else "activation"
    read = [nodes[name] for name in node.inputs if name in nodes]
    if not is_convolution_target(node.target):
        ports = ["output 0"] if is_copy(node) or is_result else [f"input {position}" for position in fitting]
        copied = _copied(node, nodes)
        kind = "weight" if copied is not None and copied.tensor == "weight" else made_here
        return next(iter(ports), None), kind
    of_its_sizes = {each.tensor for each in read if layout_or_unknown(each).shape == source.shape}
    if not fitting and node.backward and of_its_sizes == {"weight"}:
        return "output 1", "gradient"
    if is_result:
        return "output 0", made_here
    if not fitting and node.backward:
        return None, "gradient"  # a gradient that the convolution returns, converted into another layout
    if len(fitting) != 1:
        return None, "unknown"
    position = fitting[0]
    if nodes[node.inputs[position]].tensor == "weight":
        return f"input {position}", "weight"
    return f"input {position}", "gradient" if node.backward and position == 0 else "activation"


def _fits(node: FxNode | None, layout: Layout | None) -> bool:
    """Whether a node's value is known to have these sizes and strides."""
    own = layout_or_unknown(node)
    return layout is not None and own is not UNKNOWN and (own.shape, own.stride) == (layout.shape, layout.stride)


def _source_value(node: FxNode, port: str | None) -> str | None:
    """Name of the copied value: the input that ``port`` names, or the input that a copy reads; None if not known."""
    side, _, number = (port or "").partition(" ")
    position = int(number) if side == "input" else _copied_position(node)
    is_known = side == "input" or (side == "output" and is_copy(node))
    return node.inputs[position] if is_known and position < len(node.inputs) else None


def _eager_role(graph: Graph, node: FxNode, nodes: Mapping[str, FxNode], kind: TensorKind) -> ConversionRole | None:
    if kind == "weight":
        return None
    if node.name in graph.output_names and not is_convolution_target(node.target):
        return "exit"
    is_given = any(nodes[name].op == "placeholder" for name in node.inputs[:1] if name in nodes)
    return "entry" if is_given and not node.backward else "interior"
