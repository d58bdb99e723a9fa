"""
Joins operations of the profiled iteration with the graph nodes that they ran.

Convolutions matter most, because libraries convert layouts around them. The k-th convolution that ran is joined with
the k-th convolution of the graph, if counts, operators and shapes agree. Other library calls of a compiled graph, and
other operations in eager mode, are joined by name and order.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from layoutdoctor.diagnosis import FxNode, Graph
from layoutdoctor.examination.kernels.host import moves_elements
from layoutdoctor.examination.kernels.operations import (
    GENERATED_PREFIX,
    GRAPH_CALL,
    HostOperation,
    is_backward,
    outermost_name,
)
from layoutdoctor.recording.weights import is_computed_weight
from layoutdoctor.words import distinct

_TRITON_PREFIX = "triton_"  # on a GPU, the launch of a generated kernel is an operation with the kernel's name
_CONVOLUTIONS = (
    "aten::convolution",
    "aten::convolution_backward",
    "aten::mkldnn_convolution",
    "mkldnn::_convolution_pointwise",
    "mkldnn::_convolution_pointwise_",
    "mkldnn::_convolution_transpose_pointwise",
)


def is_convolution_target(target: str) -> bool:
    """Whether an FX target, such as ``aten.convolution.default``, is a convolution, forward or backward."""
    return operation_name(target) in _CONVOLUTIONS


def join_eager(tree: Sequence[HostOperation], graph: Graph) -> str | None:
    """Joins the convolutions of an eager iteration with its graph. Returns the reason if this failed, else None."""
    return _join_sequence(tree, [node for node in graph.nodes if is_convolution_target(node.target)], graph)


def join_compiled(tree: Sequence[HostOperation], graphs: Sequence[Graph]) -> str | None:
    """
    Joins the operations of a compiled iteration with the graphs they ran in.

    Returns:
        The reason why some graphs or convolutions were not joined; None if all were joined.
    """
    calls = [entry for entry in tree if entry.name.startswith(GRAPH_CALL)]
    problems: list[str | None] = []
    for position, call in enumerate(calls):
        inside = list(_descendants(call))
        graph = _graph_of(call, inside, graphs[position] if len(calls) == len(graphs) else None, graphs)
        if graph is None:
            problems.append("a compiled graph ran that was not captured")
            continue
        call.graph = graph.name
        problems.append(_join_sequence(inside, scheduled_convolutions(graph), graph))
        _join_other_calls(inside, graph)
    return "; ".join(distinct(problems)) or None


def _descendants(entry: HostOperation) -> Iterable[HostOperation]:
    for child in entry.children:
        yield child
        yield from _descendants(child)


def _graph_of(
    call: HostOperation, inside: Sequence[HostOperation], expected: Graph | None, graphs: Sequence[Graph]
) -> Graph | None:
    """
    Finds the graph that ran in a call; None if no graph is certain.

    A range around a generated kernel names its graph. Without ranges, a graph fits if it has all Triton kernels of the
    call and as many convolutions. ``expected`` is taken if it fits, if no graph fits, or without Triton kernels. Else
    the only fitting graph is taken. If several graphs fit, the call's direction (forward or backward) must decide.
    """
    for entry in inside:
        if entry.name.startswith(GENERATED_PREFIX):
            name = entry.name.removeprefix(GENERATED_PREFIX).rsplit("::", 1)[0]
            return next((graph for graph in graphs if graph.name == name), None)
    launched = {entry.name for entry in inside if entry.name.startswith(_TRITON_PREFIX)}
    if not launched:
        return expected
    count = len(_convolutions(inside))
    fitting = [
        graph for graph in graphs if launched <= set(graph.kernel_names) and len(scheduled_convolutions(graph)) == count
    ]
    if expected is not None and (expected in fitting or not fitting):
        return expected
    if len(fitting) > 1:
        fitting = [graph for graph in fitting if (graph.direction == "backward") == is_backward(call)]
    return fitting[0] if len(fitting) == 1 else None


def scheduled_convolutions(graph: Graph) -> list[FxNode]:
    """
    The convolutions of a graph in the order in which the generated code runs them; without such code, in graph order.

    The target of each returned node is the operator that the code calls, because freezing may replace a node's target.
    """
    # Freezing replaces the operator of a matched pattern by the pattern's lowering function.
    patterns = ("functools.partial(", "<function ")
    by_name = {n.name: n for n in graph.nodes if is_convolution_target(n.target) or n.target.startswith(patterns)}
    if not any(buffer.is_extern for buffer in graph.buffers):
        return [node for node in by_name.values() if is_convolution_target(node.target)]
    found: dict[str, FxNode] = {}
    for buffer in graph.buffers:
        if not buffer.is_extern or buffer.kernel is None or "conv" not in buffer.kernel:
            continue
        # ``source_node`` may be an operation that was fused into the call; then the origins name the call's own node.
        is_own = buffer.source_node in buffer.origins
        names = (buffer.source_node, *buffer.origins) if is_own else (*buffer.origins, buffer.source_node)
        node = next((by_name[str(name)] for name in names if name in by_name), None)
        if node is not None and node.name not in found:  # a call that writes in place has several buffers
            called = buffer.kernel.removeprefix("torch.ops.")
            is_named = called == buffer.kernel or not is_convolution_target(called)
            found[node.name] = node if is_named else msgspec.structs.replace(node, target=called)
    return [node for node in found.values() if is_convolution_target(node.target)]


def _join_sequence(entries: Sequence[HostOperation], nodes: Sequence[FxNode], graph: Graph) -> str | None:
    ran = _convolutions(entries)
    if len(ran) != len(nodes):
        return (
            f"{graph.name}: {len(ran)} convolutions ran and {len(nodes)} are in the graph, "
            "so conversions are not assigned to its nodes"
        )
    shapes = {node.name: node.layout.shape for node in graph.nodes if node.layout is not None}
    for entry, node in zip(ran, nodes, strict=True):
        if entry.name != operation_name(node.target) or not _shapes_agree(entry, node, shapes):
            return f"{graph.name}: the convolutions that ran are not in the order of the graph"
    by_name = {node.name: node for node in graph.nodes}
    for entry, node in zip(ran, nodes, strict=True):
        entry.node, entry.graph = node, graph.name
        entry.has_computed_weight = is_computed_weight(node, by_name)
    return None


def _join_other_calls(inside: Sequence[HostOperation], graph: Graph) -> None:
    """Joins library calls other than convolutions, name by name, if as many ran as the generated code has."""
    by_name = {node.name: node for node in graph.nodes}
    calls: dict[str, list[FxNode | None]] = defaultdict(list)
    for buffer in graph.buffers:
        name = operation_name(str(buffer.kernel).replace("extern_kernels.", "aten."))
        if buffer.is_extern and name not in ("None", "MultiOutput", *_CONVOLUTIONS):
            names = (buffer.source_node, *buffer.origins)
            calls[name].append(next((by_name[name] for name in names if name in by_name), None))
    ran: dict[str, list[HostOperation]] = defaultdict(list)
    for entry in _recorded_entries(inside, set(calls)):
        ran[entry.name].append(entry)
    for name, entries in ran.items():
        if len(entries) == len(calls[name]):
            for entry, node in zip(entries, calls[name], strict=True):
                if entry.node is None and node is not None:
                    entry.node, entry.graph = node, graph.name


def _convolutions(entries: Sequence[HostOperation]) -> list[HostOperation]:
    """The outermost convolutions: ``aten::convolution`` calls other operators of ``_CONVOLUTIONS``."""
    return [entry for entry in entries if [one for one in entry.around() if one.name in _CONVOLUTIONS] == [entry]]


def _shapes_agree(entry: HostOperation, node: FxNode, shapes: dict[str, tuple[int | str, ...]]) -> bool:
    recorded = [tuple(shape) for shape in entry.shapes if shape]
    if entry.name.endswith("_"):  # mkldnn::_convolution_pointwise_: the first argument is the tensor it writes to
        recorded = recorded[1:]
    # A fused convolution may add a tensor: in the call it comes before the weight, in the node after the weight.
    for expected, name in zip((recorded[:1], recorded[1:3]), node.inputs[:2], strict=False):
        known = shapes.get(name)
        if known is None or not expected or not all(isinstance(size, int) for size in known):
            continue
        if known not in expected:
            return False
    return True


def align_eager(tree: Sequence[HostOperation], graph: Graph) -> Graph:
    """Joins profiled eager operations with the recorded graph and sets ``called``, the function the user called."""
    nodes = [node for node in graph.nodes if node.op == "call_function" and "getitem" not in node.target]
    wanted = {operation_name(node.target) for node in nodes}
    entries = _recorded_entries(tree, wanted)
    called: dict[str, str] = {}
    for node, entry in _matches(nodes, entries):
        if entry.node is None:
            entry.node, entry.graph = node, graph.name
        called[node.name] = outermost_name(entry).removeprefix("aten::")
    return msgspec.structs.replace(
        graph,
        nodes=tuple(
            msgspec.structs.replace(node, called=called[node.name]) if node.name in called else node
            for node in graph.nodes
        ),
    )


def operation_name(target: str) -> str:
    """The profiler's name of an operator: ``aten.clone.default`` is ``aten::clone``."""
    parts = target.removeprefix("torch.ops.").split(".")
    return "::".join(parts[:2])


def _recorded_entries(tree: Sequence[HostOperation], wanted: set[str]) -> list[HostOperation]:
    """The outermost operations with these names, in order, as a dispatch mode would have recorded them."""
    found: list[HostOperation] = []
    covered: set[int] = set()
    for entry in tree:  # parents come before their children
        if entry.parent is not None and id(entry.parent) in covered:
            covered.add(id(entry))
        elif entry.name in wanted:
            covered.add(id(entry))
            found.append(entry)
    return found


def _matches(nodes: Sequence[FxNode], entries: Sequence[HostOperation]) -> list[tuple[FxNode, HostOperation]]:
    """
    Pairs nodes and operations of the same name, in order.

    Operations that move elements are aligned first, by the names that both sides have. Other operations, such as
    ``aten::detach``, are then aligned between these pairs, so that they cannot shift the pairs.
    """
    names, ran = [operation_name(node.target) for node in nodes], [entry.name for entry in entries]
    certain = {name for name in {*names} & {*ran} if moves_elements(name)}
    ours, theirs = ([place for place, name in enumerate(side) if name in certain] for side in (names, ran))
    found = [(ours[i], theirs[k]) for i, k in _aligned([names[i] for i in ours], [ran[k] for k in theirs])]
    for (one, other), (end, last) in pairwise(((-1, -1), *found, (len(names), len(ran)))):
        between = _aligned(names[one + 1 : end], ran[other + 1 : last])
        found += [(one + 1 + i, other + 1 + k) for i, k in between]
    return [(nodes[i], entries[k]) for i, k in found]


def _aligned(names: Sequence[str], others: Sequence[str]) -> list[tuple[int, int]]:
    if names == others:  # the usual case; the matcher's time grows with the square of the length
        return [(place, place) for place in range(len(names))]
    blocks = difflib.SequenceMatcher(None, names, others, autojunk=False).get_matching_blocks()
    return [(block.a + offset, block.b + offset) for block in blocks for offset in range(block.size)]
