"""
Which outputs of compiled configurations come in another layout than eager's, and where that happened.

Faces the rules; pure functions of records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.analysis.layout_agnostic import base_name, is_layout_agnostic
from layoutdoctor.layout import stride_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.layout import Layout
    from layoutdoctor.records import Diagnosis, FxNode, Graph, LayoutBreaker, SourceLocation, Trial


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
class Place:
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
    """
    Outputs with equal values whose bytes lie in another order than eager's on the same formats.

    Args:
        diagnosis: Any diagnosis.
    """
    for trial in diagnosis.trials:
        equivalence, eager = trial.equivalence, eager_of_same_formats(diagnosis, trial)
        if eager is None or eager.equivalence is None or equivalence is None or equivalence.status != "equal":
            continue
        pairs = zip(eager.equivalence.output_layouts, equivalence.output_layouts, strict=False)
        for number, (expected, returned) in enumerate(pairs):
            if is_other_order(expected, returned):
                yield OutputChange(trial, eager, number, expected, returned)


def eager_of_same_formats(diagnosis: Diagnosis, trial: Trial) -> Trial | None:
    """
    The eager trial with the same formats of model and input as a compiled one.

    Args:
        diagnosis: Any diagnosis.
        trial: Any trial.

    Returns:
        None for an eager trial, and where there is no such eager one.
    """
    wanted = (trial.configuration.model_format, trial.configuration.input_format)
    if trial.configuration.backend != "inductor":
        return None
    return next(
        (
            other
            for other in diagnosis.trials
            if other.configuration.backend == "eager"
            and (other.configuration.model_format, other.configuration.input_format) == wanted
        ),
        None,
    )


def is_other_order(first: Layout, second: Layout) -> bool:
    """
    Whether two layouts of one shape need bytes to move from one to the other; False where that is not certain.

    Args:
        first: A strided layout.
        second: Another one.
    """
    if first.shape != second.shape or first.stride is None or second.stride is None:
        return False
    if first.memory_formats and second.memory_formats:
        return set(first.memory_formats).isdisjoint(second.memory_formats)
    orders = stride_order(first.shape, first.stride), stride_order(second.shape, second.stride)
    return None not in orders and orders[0] != orders[1]


def lost_at(change: OutputChange) -> Place | None:
    """
    The operation at which an output's format changed: the last breaker that made it, else the last operation before
    the output that does not keep the layout it is given.

    Args:
        change: What changed.
    """
    graphs = [graph for graph in change.trial.graphs if graph.direction != "backward"]
    breakers = [breaker for graph in graphs for breaker in graph.breakers if _makes(breaker, change)]
    if breakers:
        return Place(breakers[-1].op, breakers[-1].location, breakers[-1].module, is_proven=True)
    node = _last_that_changes(graphs[0], change) if len(graphs) == 1 else None
    if node is None:
        return None
    return Place(node.called or base_name(node.target), node.location, node.module, is_proven=False)


def _makes(breaker: LayoutBreaker, change: OutputChange) -> bool:
    made = set(breaker.target.memory_formats)
    return not made.isdisjoint(change.returned.memory_formats) and made.isdisjoint(change.expected.memory_formats)


def _last_that_changes(graph: Graph, change: OutputChange) -> FxNode | None:
    nodes = {node.name: node for node in graph.nodes}
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
