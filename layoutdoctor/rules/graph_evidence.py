"""
Questions that several rules ask of graphs: which nodes are convolutions, which layouts are channels-last only, which
outputs come in another layout than eager's and where that happened.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.analysis.layout_agnostic import base_name, is_layout_agnostic
from layoutdoctor.layout import CHANNELS_LAST_BY_RANK, stride_order
from layoutdoctor.rules.evidence import eager_of_same_formats

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from layoutdoctor.layout import Layout, MemoryFormat
    from layoutdoctor.records import Conversion, Diagnosis, FxNode, Graph, LayoutBreaker, SourceLocation, Trial

# aten.convolution, mkldnn._convolution_pointwise, aten._slow_conv2d_forward; not prims.convert_element_type
_CONVOLUTION = re.compile(r"(^|_)conv(olution)?(_|[123]d|$)")
_CONTIGUOUS = ("contiguous_format",)


def is_convolution(node: FxNode) -> bool:
    """Whether a node runs a convolution forward, whatever library does it."""
    name = base_name(node.target)
    return node.op == "call_function" and bool(_CONVOLUTION.search(name)) and "backward" not in name


def is_convolution_named(name: str, nodes: dict[str, FxNode]) -> bool:
    """The same for a node by its name; judged by the name where the node was not recorded."""
    return is_convolution(nodes[name]) if name in nodes else bool(_CONVOLUTION.search(name))


def nodes_by_name(graph: Graph) -> dict[str, FxNode]:
    """A graph's nodes by name."""
    return {node.name: node for node in graph.nodes}


def channels_last_only(layout: Layout | None) -> MemoryFormat | None:
    """The channels-last format of a layout that is not contiguous as well; None for any other layout."""
    if layout is None or "contiguous_format" in layout.memory_formats:
        return None
    return next(iter(layout.memory_formats), None)


def is_call_out_of_channels_last(conversion: Conversion) -> bool:
    """Whether the model's own code asked for a copy that leaves channels-last: what LD501 tells, and LD108 does not."""
    is_asked = conversion.owner == "user" and conversion.direction != "to_channels_last"
    return is_asked and channels_last_only(conversion.source) is not None


def is_contiguous_only(layout: Layout | None) -> bool:
    """Whether a 4-D or 5-D layout is contiguous and not channels-last as well."""
    return layout is not None and len(layout.shape) in CHANNELS_LAST_BY_RANK and layout.memory_formats == _CONTIGUOUS


def is_ambiguous(layout: Layout | None) -> bool:
    """Whether a layout with elements satisfies contiguous_format and channels-last at once, by dimensions of size 1."""
    return layout is not None and len(layout.memory_formats) > 1 and 0 not in layout.shape


def weight_layouts(graphs: Iterable[Graph]) -> dict[str, Layout]:
    """The 4-D and 5-D parameters of a trial's forward graphs, by placeholder."""
    return {
        f"{graph.name} {node.name}": node.layout
        for graph in graphs
        if graph.direction != "backward"
        for node in graph.nodes
        if node.tensor == "weight" and node.layout is not None and len(node.layout.shape) in CHANNELS_LAST_BY_RANK
    }


def is_recorded(graph: Graph) -> bool:
    """Whether a graph was captured whole, so that what is not in it is not there."""
    return bool(graph.nodes) and graph.hook_failure is None and not graph.not_understood


@dataclass(frozen=True)
class OutputChange:
    """
    One output that a compiled configuration returns in another layout than eager does.

    Attributes:
        trial: The compiled one.
        eager: The eager one with the same formats of model and input.
        number: Which output, from 0.
        expected: Eager's layout.
        returned: The compiled configuration's.
    """

    trial: Trial
    eager: Trial
    number: int
    expected: Layout
    returned: Layout


@dataclass(frozen=True)
class LosingOperation:
    """
    An operation as a person calls it, and where it stands.

    Attributes:
        is_proven: Whether the graph proves that the layout changes there; else it is the last that could.
    """

    op: str
    location: SourceLocation | None
    module: str | None
    is_proven: bool


def output_changes(diagnosis: Diagnosis) -> Iterator[OutputChange]:
    """Outputs with equal values whose bytes lie in another order than eager's on the same formats."""
    for trial in diagnosis.trials:
        equivalence, eager = trial.equivalence, eager_of_same_formats(diagnosis, trial)
        if eager is None or eager.equivalence is None or equivalence is None or equivalence.status != "equal":
            continue
        pairs = zip(eager.equivalence.output_layouts, equivalence.output_layouts, strict=False)
        for number, (expected, returned) in enumerate(pairs):
            if is_other_order(expected, returned):
                yield OutputChange(trial, eager, number, expected, returned)


def is_other_order(first: Layout, second: Layout) -> bool:
    """Whether bytes must move between two strided layouts of one shape; False where that is not certain."""
    if first.shape != second.shape or first.stride is None or second.stride is None:
        return False
    if first.memory_formats and second.memory_formats:
        return set(first.memory_formats).isdisjoint(second.memory_formats)
    orders = stride_order(first.shape, first.stride), stride_order(second.shape, second.stride)
    return None not in orders and orders[0] != orders[1]


def lost_at(change: OutputChange) -> LosingOperation | None:
    """
    The operation at which an output's format changed: the last breaker that made it, else the last operation before
    the output that does not keep the layout it is given.
    """
    graphs = [graph for graph in change.trial.graphs if graph.direction != "backward"]
    breakers = [breaker for graph in graphs for breaker in graph.breakers if _makes(breaker, change)]
    if breakers:
        return LosingOperation(breakers[-1].op, breakers[-1].location, breakers[-1].module, is_proven=True)
    node = _last_that_changes(graphs[0], change) if len(graphs) == 1 else None
    if node is None:
        return None
    return LosingOperation(node.called or base_name(node.target), node.location, node.module, is_proven=False)


def _makes(breaker: LayoutBreaker, change: OutputChange) -> bool:
    made = set(breaker.target.memory_formats)
    return not made.isdisjoint(change.returned.memory_formats) and made.isdisjoint(change.expected.memory_formats)


def _last_that_changes(graph: Graph, change: OutputChange) -> FxNode | None:
    nodes = nodes_by_name(graph)
    if change.number >= len(graph.output_names):
        return None
    node = nodes.get(graph.output_names[change.number])
    if node is None or node.layout is None or node.layout.shape != change.returned.shape:
        return None
    seen: set[str] = set()
    while node is not None and node.op == "call_function" and node.name not in seen:
        if not is_layout_agnostic(node):
            return node
        seen.add(node.name)
        node = nodes.get(node.inputs[0]) if node.inputs else None
    return None
