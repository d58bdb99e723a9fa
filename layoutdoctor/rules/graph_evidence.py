"""
Questions that several rules ask of graphs: which nodes are convolutions, which layouts are channels-last only, which
outputs come in another layout than eager's and where that happened.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK, stride_order
from layoutdoctor.diagnosis.records import SLOWER
from layoutdoctor.examination.costs import may_hide_gain
from layoutdoctor.examination.graphs.layout_agnostic import base_name, is_layout_agnostic
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import other_cure
from layoutdoctor.rules.evidence import eager_of_same_formats
from layoutdoctor.words import joined, line_words, shape_words

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from layoutdoctor.diagnosis.layout import Layout, MemoryFormat
    from layoutdoctor.diagnosis.records import (
        Conversion,
        Convolution,
        Decision,
        Diagnosis,
        Finding,
        FxNode,
        Graph,
        LayoutBreaker,
        SourceLocation,
        Trial,
    )
    from layoutdoctor.rules.base import Rule

# aten.convolution, mkldnn._convolution_pointwise, aten._slow_conv2d_forward; not prims.convert_element_type
_CONVOLUTION = re.compile(r"(^|_)conv(olution)?(_|[123]d|$)")
_CONTIGUOUS = ("contiguous_format",)


def is_convolution(node: FxNode) -> bool:
    """Whether a node runs a convolution forward, whatever library does it."""
    name = base_name(node.target)
    return node.op == "call_function" and bool(_CONVOLUTION.search(name)) and "backward" not in name


def is_convolution_named(name: str, nodes: Mapping[str, FxNode]) -> bool:
    """The same for a node by its name; judged by the name where the node was not recorded."""
    return is_convolution(nodes[name]) if name in nodes else bool(_CONVOLUTION.search(name))


def nodes_by_name(graph: Graph) -> dict[str, FxNode]:
    """A graph's nodes by name."""
    return {node.name: node for node in graph.nodes}


def first_input(node: FxNode, nodes: Mapping[str, FxNode]) -> FxNode | None:
    """The node that makes a node's first input; None where there is none, or it was not recorded."""
    return nodes.get(node.inputs[0]) if node.inputs else None


def upstream(node: FxNode | None, nodes: Mapping[str, FxNode]) -> Iterator[FxNode]:
    """A node, what makes its first input, and so on."""
    while node is not None:
        yield node
        node = first_input(node, nodes)


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
    node = _last_that_changes(graphs[0], change) if graphs else None
    if node is None:
        return None
    return LosingOperation(node.called or base_name(node.target), node.location, node.module, is_proven=False)


def output_node(change: OutputChange) -> FxNode | None:
    """The node whose value is the output, in the only forward graph of the compiled trial; None where not recorded."""
    graphs = [graph for graph in change.trial.graphs if graph.direction != "backward"]
    names = graphs[0].output_names if len(graphs) == 1 else ()
    node = nodes_by_name(graphs[0]).get(names[change.number]) if change.number < len(names) else None
    return node if node is not None and node.layout and node.layout.shape == change.returned.shape else None


def _makes(breaker: LayoutBreaker, change: OutputChange) -> bool:
    made = set(breaker.target.memory_formats)
    return not made.isdisjoint(change.returned.memory_formats) and made.isdisjoint(change.expected.memory_formats)


def _last_that_changes(graph: Graph, change: OutputChange) -> FxNode | None:
    node, nodes = output_node(change), nodes_by_name(graph)
    values = upstream(node, nodes) if node is not None else ()
    made = next((n for n in values if n.op != "call_function" or not is_layout_agnostic(n)), None)
    return made if made is not None and made.op == "call_function" else None


FORCED = "inductor-layout-opt-forced"
WAYS_AROUND = (FORCED, "inductor-channels-last")
UNCOUNTED = "only-backward-convolutions"
"""The rule by which a backward is left out, whatever the forward was, until torch 2.15."""


def vetoed_graphs(diagnosis: Diagnosis, rules: Collection[str]) -> Iterator[tuple[Trial, Graph, Decision]]:
    """
    Graphs that Inductor was free to lay out and did not, by one of some of its rules; each of these rules once.

    Args:
        rules: Names as in ``Decision.rule``.

    Yields:
        The first trial with that rule, the main one first, with the graph and its decision. Left out: graphs of 1-D
        convolutions only, which have no format to decide about, and a backward that differs from its forward (LD206).
    """
    seen: set[str] = set()
    for trial in evidence.own_trials(diagnosis):
        if trial.configuration.layout_optimization not in ("default", "on"):
            continue
        for graph in trial.graphs:
            decision = graph.decision
            if decision is None or decision.applied is not False or decision.rule not in rules:
                continue
            is_repeated = graph.direction == "backward" and is_applied(trial, "forward")
            if decision.rule in seen or is_repeated or is_one_dimensional(decision):
                continue
            seen.add(decision.rule)
            yield trial, graph, decision


def is_applied(trial: Trial, direction: str) -> bool:
    """Whether layout optimization was applied in a graph with convolutions of that direction."""
    cards = (graph.decision for graph in trial.graphs if graph.direction == direction)
    return any(card is not None and bool(card.applied and card.convolution_count) for card in cards)


def is_one_dimensional(decision: Decision) -> bool:
    """Whether all convolutions of a graph are 1-D, as far as was recorded, and there is one."""
    return bool(decision.convolutions) and all(convolution.rank == 1 for convolution in decision.convolutions)


def leaves_layouts_to_inductor(trial: Trial) -> bool:
    """Whether a configuration keeps the caller's model format and lets Inductor decide about layouts."""
    configuration = trial.configuration
    return (
        configuration.layout_optimization in ("default", "on", "forced")
        and configuration.model_format == "preserve"
        and not configuration.freezes
    )


def leaves_out_backward(graphs: Iterable[Graph]) -> bool:
    """Whether layout optimization is on in a forward, and the convolutions of its backward were not counted."""
    decided = [(graph.direction, graph.decision) for graph in graphs if graph.decision is not None]
    is_on = any(decision.applied for direction, decision in decided if direction == "forward")
    return is_on and any(decision.rule == UNCOUNTED for _, decision in decided)


def deciding_convolutions(decision: Decision) -> list[Convolution]:
    """The convolutions that made the rule decide as it did."""
    return [convolution for convolution in decision.convolutions if convolution.node in decision.deciding_nodes]


def channels_words(convolution: Convolution) -> str | None:
    """A convolution's channels and kernel: ``"192 -> 64, 3x3"``; None where not recorded."""
    shape, groups = convolution.weight_shape, convolution.groups or 1
    if shape is None or len(shape) < 3 or convolution.is_transposed is None or not isinstance(shape[1], int):
        return None
    second = shape[1] * groups
    given, made = (shape[0], second) if convolution.is_transposed else (second, shape[0])
    return f"{given} -> {made}, {shape_words(shape[2:])}"


def convolution_words(convolution: Convolution) -> str:
    """A convolution by name, with what is known of it: ``"d2.0 (192 -> 64, 3x3; model.py:9, weight 64x192x3x3)"``."""
    facts = [line_words(convolution.location)] if convolution.location is not None else []
    if convolution.weight_shape is not None:
        facts.append(f"weight {shape_words(convolution.weight_shape)}")
    if convolution.groups is not None and convolution.groups != 1:
        facts.append(f"{convolution.groups} groups")
    channels = channels_words(convolution)
    known = joined((channels, ", ".join(facts)))
    name = convolution.module or convolution.node
    return f"{name} ({known})" if known else name


def measured_words(diagnosis: Diagnosis) -> str:
    """What was measured of the ways around a veto; empty where nothing was."""
    if diagnosis.comparison is None:
        return ""
    gain = evidence.fastest_of(diagnosis, WAYS_AROUND)
    if gain is not None:
        return evidence.speed_words(gain, diagnosis.comparison.baseline)
    forced = evidence.ratio_of(diagnosis, FORCED)
    if forced is None:
        return ""
    words = evidence.speed_words(forced, diagnosis.comparison.baseline)
    if may_hide_gain(forced):
        return f"the times are too noisy to tell what the veto costs: {words}"
    return f"the veto is right here: {words}" if forced.verdict == SLOWER else f"the veto costs nothing here: {words}"


def how_to_measure(trial: Trial) -> str:
    """How to find out what a veto costs where that was not measured."""
    advice = f"--configurations all measures what the veto costs ({FORCED})"
    return f"on the device itself, {advice}" if trial.is_static else advice


def veto_finding(
    rule: Rule, diagnosis: Diagnosis, trial: Trial, decision: Decision, message: str, suggestion: str | None = None
) -> Finding:
    """A finding about a veto, at the first convolution that decided; it suggests to measure where nobody did."""
    deciding, gain = deciding_convolutions(decision), evidence.fastest_of(diagnosis, WAYS_AROUND)
    against = other_cure(diagnosis, trial, lambda cure: cure.name in WAYS_AROUND) if gain is not None else None
    return rule.finding(
        trial.name,
        message,
        against or suggestion or measured_words(diagnosis) or how_to_measure(trial),
        severity=evidence.severity_of_gain(gain),
        at=deciding[0] if deciding else None,
        evidence=decision.deciding_nodes,
    )
