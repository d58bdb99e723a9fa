"""LD209: outputs of compiled code in another memory format than in eager mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from layoutdoctor.diagnosis import Diagnosis, Finding, FxNode, Layout, LayoutBreaker
from layoutdoctor.examination.graphs.conversions import tensor_bytes
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.evidence import nodes_by_name
from layoutdoctor.rules.outputs import OutputChange, output_changes
from layoutdoctor.units import format_seconds, sum_if_all_known
from layoutdoctor.words import distinct, joined, layout_words, line_words, listing, phrase, shown


def output_strides(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields one finding per eager configuration and pair of output formats: eager's and the compiled code's."""
    groups: dict[tuple[str, str, str], list[OutputChange]] = {}
    for change in output_changes(diagnosis):
        key = (change.eager.name, layout_words(change.expected), layout_words(change.returned))
        groups.setdefault(key, []).append(change)
    for (eager, expected, returned), changes in groups.items():
        first = changes[0]
        breaker = _breaker(first)
        seconds = _seconds_back(diagnosis, [change for change in changes if change.trial is first.trial])
        outputs = listing(distinct(f"output {change.number}" for change in changes))
        names = listing(distinct(shown(change.trial.name) for change in changes), 1)
        beside = phrase(" beside {} kernel time", first.trial.kernel_seconds, format_seconds)
        estimate = phrase(f", an estimated {{}}{beside}", seconds, format_seconds)
        known = f"the measured time does not include the conversion back{estimate} (pytorch #114070)"
        if "contiguous_format" not in first.expected.memory_formats:
            known = f"pytorch #197109 is a similar case{phrase('; conversion back{}', estimate)}"
        message = (
            f"{outputs}: {returned} under {names}, {expected} under {shown(eager)}, with equal values",
            phrase("lost at {}", breaker, lambda one: f"{one.op}{phrase(' ({})', one.location, line_words)}"),
            known,
        )
        yield LD209.finding(
            first.trial.name,
            joined(message),
            _convert_back(first.expected),
            severity=evidence.severity_of_cost(first.trial, seconds),
            evidence=[change.trial.name for change in changes],
            at=breaker,
        )


def _convert_back(expected: Layout) -> str:
    if "contiguous_format" in expected.memory_formats:
        return "append .contiguous() to the output and measure again before choosing such a configuration"
    if not expected.memory_formats:
        return "do not rely on the strides of the output; convert it where a layout is needed"
    wanted = expected.memory_formats[0]
    return (
        f"if the reader needs {wanted}, append .contiguous(memory_format=torch.{wanted}) to the output, and time "
        "this conversion too"
    )


def _seconds_back(diagnosis: Diagnosis, changes: Sequence[OutputChange]) -> float | None:
    """Estimates the time of converting one trial's outputs back to eager's layouts; None if not known."""
    bandwidth = diagnosis.environment.copy_bandwidth_bytes_per_second
    nodes = [(change.returned, _output_node(change)) for change in changes]
    moved = sum_if_all_known(
        *(tensor_bytes(layout, node.dtype, node.dtype) if node else None for layout, node in nodes)
    )
    return moved / bandwidth if bandwidth and moved is not None else None


def _breaker(change: OutputChange) -> LayoutBreaker | None:
    """Returns the last layout breaker whose result has the output's format; None if the graphs show none."""
    returned, expected = set(change.returned.memory_formats), set(change.expected.memory_formats)
    breakers = [
        breaker
        for graph in evidence.forward_graphs(change.trial)
        for breaker in graph.breakers
        if returned & set(breaker.target.memory_formats) and not expected & set(breaker.target.memory_formats)
    ]
    return breakers[-1] if breakers else None


def _output_node(change: OutputChange) -> FxNode | None:
    """Returns the node that makes an output; None if not recorded, or if the trial has several forward graphs."""
    graphs = evidence.forward_graphs(change.trial)
    names = graphs[0].output_names if len(graphs) == 1 else ()
    node = nodes_by_name(graphs[0]).get(names[change.number]) if change.number < len(names) else None
    return node if node is not None and node.layout and node.layout.shape == change.returned.shape else None


LD209 = Rule("LD209", "output-strides-differ-from-eager", output_strides)
