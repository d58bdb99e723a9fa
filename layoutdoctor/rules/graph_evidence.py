"""
Questions that several rules ask of graphs: which nodes are convolutions, which layouts are channels-last only, which
outputs come in another layout than eager's and where that happened.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.layout import stride_order
from layoutdoctor.diagnosis.records import INCONCLUSIVE, SLOWER
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import other_cure, severity_of_gain
from layoutdoctor.rules.evidence import eager_of_same_formats
from layoutdoctor.rules.times import Times, ratio_words, speed_words
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
        Trial,
    )
    from layoutdoctor.rules.base import Rule

# aten.convolution, mkldnn._convolution_pointwise, aten._slow_conv2d_forward; not prims.convert_element_type
_CONVOLUTION = re.compile(r"(^|_)conv(olution)?(_|[123]d|$)")


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


def measured_words(times: Times) -> str:
    """The measured ratio of the ways around a veto; empty if none was measured."""
    gain = times.fastest(WAYS_AROUND)
    if gain is not None:
        return speed_words(gain, times.baseline)
    forced = times.ratio(FORCED)
    if forced is None:
        return ""
    if forced.verdict == INCONCLUSIVE:
        return f"{evidence.shown(FORCED)}: measured {ratio_words(forced)}"
    words = speed_words(forced, times.baseline)
    return f"the veto is right here: {words}" if forced.verdict == SLOWER else f"the veto costs nothing here: {words}"


def veto_finding(
    rule: Rule, diagnosis: Diagnosis, trial: Trial, decision: Decision, message: str, suggestion: str | None = None
) -> Finding:
    """A finding about a veto, at the first convolution that decided; it suggests to measure where nobody did."""
    times, deciding = Times(diagnosis), deciding_convolutions(decision)
    gain = times.fastest(WAYS_AROUND)
    against = other_cure(times, trial, lambda cure: cure.name in WAYS_AROUND) if gain is not None else None
    how = f"--configurations all measures what the veto costs ({FORCED})"
    return rule.finding(
        trial.name,
        message,
        against or suggestion or measured_words(times) or (f"on the device itself, {how}" if trial.is_static else how),
        severity=severity_of_gain(gain),
        at=deciding[0] if deciding else None,
        evidence=decision.deciding_nodes,
    )
