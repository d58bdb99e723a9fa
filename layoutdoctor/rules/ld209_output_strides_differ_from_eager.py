"""
A compiled model returns another memory format than the model itself does.

What it finds:
    Outputs of a compiled configuration with the right values that share no memory format with eager's, for the same
    format of model and input; the operation at which the format was lost, where the records tell. One finding per
    change, with all configurations that show it.

Why it costs:
    Whoever reads the output pays for a conversion, or runs another kernel; code that calls ``view`` on it may fail. And
    a configuration that returns channels-last where eager returns contiguous looks faster by the conversion it leaves
    to its caller. A warning where that conversion, at the device's measured copy bandwidth, takes at least 2 % of the
    kernel time, which is told; else a note.

Example:
    ``channel_shuffle`` in a channels_last ShuffleNet: eager returns channels_last, Inductor contiguous. Or a frozen
    model, which returns what its last packed convolution made.

What to do:
    Convert the output where it is needed, ``.contiguous(memory_format=torch.channels_last)``, and time the model with
    that conversion in it before choosing such a configuration.

When it is fine:
    Strides that differ in dimensions of size 1 only are the same bytes: no finding. Otherwise, where the reader of the
    output takes any layout, as a reduction does.

Source:
    pytorch/pytorch issues #197109 (channel_shuffle) and #114070 (differing output strides should be no silent error).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.examination.graphs.conversions import tensor_bytes
from layoutdoctor.examination.graphs.layout_agnostic import base_name, is_layout_agnostic
from layoutdoctor.examination.graphs.regions import known_sum
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.graph_evidence import OutputChange, nodes_by_name, output_changes, upstream
from layoutdoctor.units import format_seconds
from layoutdoctor.words import distinct, layout_words, line_words, listing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.records import Diagnosis, Finding, FxNode, Graph, LayoutBreaker, SourceLocation, Trial


@dataclass(frozen=True)
class _LosingOperation:
    """
    An operation as a person calls it, and where it stands.

    Attributes:
        is_proven: Whether the graph proves that the layout changes there; else it is the last that could.
    """

    op: str
    location: SourceLocation | None
    module: str | None
    is_proven: bool


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per pair of formats, and per eager configuration that has the first of them."""
    groups: dict[tuple[str, str, str], list[OutputChange]] = {}
    for change in output_changes(diagnosis):
        key = (change.eager.name, layout_words(change.expected), layout_words(change.returned))
        groups.setdefault(key, []).append(change)
    for (eager, expected, returned), changes in groups.items():
        place, trial = _lost_at(changes[0]), changes[0].trial
        seconds = _seconds_back(diagnosis, [change for change in changes if change.trial is trial])
        yield RULE.finding(
            trial.name,
            _message(eager, expected, returned, changes, place) + _cost_words(trial, seconds),
            _suggestion(changes[0]),
            severity=evidence.severity_of_cost(trial, seconds),
            evidence=[change.trial.name for change in changes],
            at=place,
        )


def _seconds_back(diagnosis: Diagnosis, changes: Sequence[OutputChange]) -> float | None:
    """What the conversions take that some outputs of one trial leave to their reader; None where not known."""
    bandwidth = diagnosis.environment.copy_bandwidth_bytes_per_second
    nodes = [(change.returned, _output_node(change)) for change in changes]
    moved = known_sum(*(tensor_bytes(layout, node.dtype, node.dtype) if node else None for layout, node in nodes))
    return moved / bandwidth if bandwidth and moved is not None else None


def _cost_words(trial: Trial, seconds: float | None) -> str:
    if seconds is None:
        return ""
    whole = trial.kernels.seconds if trial.kernels is not None else None
    beside = f" beside {format_seconds(whole)} kernel time" if whole is not None else ""
    return f"; to convert it back takes an estimated {format_seconds(seconds)}{beside}"


def _message(
    eager: str, expected: str, returned: str, changes: Sequence[OutputChange], place: _LosingOperation | None
) -> str:
    outputs = distinct(str(change.number) for change in changes)
    names = distinct(change.trial.name for change in changes)
    configurations = listing([evidence.shown(name) for name in names], 9)
    subject = f"output {outputs[0]}" if len(outputs) == 1 else f"outputs {listing(outputs)}"
    verb = "returns" if len(names) == 1 else "return"
    message = f"{configurations} {verb} {subject} as {returned} where {evidence.shown(eager)} returns {expected}"
    message += ", with equal values"
    if place is not None:
        message += f"; {'lost at' if place.is_proven else 'the last operation that sets a layout is'} {place.op}"
        message += f" ({line_words(place.location)})" if place.location is not None else ""
    if _leaves_conversion_out(changes[0]):
        return f"{message}; so the time leaves out the conversion back (pytorch #114070)"
    return f"{message} (pytorch #197109 is such a case)"


def _leaves_conversion_out(change: OutputChange) -> bool:
    """Whether the caller's contiguous format is not restored at the end."""
    return "contiguous_format" in change.expected.memory_formats


def _suggestion(change: OutputChange) -> str:
    if _leaves_conversion_out(change):
        return "append .contiguous() to the output and measure again before choosing such a configuration"
    wanted = next(iter(change.expected.memory_formats), None)
    if wanted is None:
        return "do not rely on the strides of the output; convert it where a layout is needed"
    return f"where the reader needs it, append .contiguous(memory_format=torch.{wanted}) to the output, and time that"


def _lost_at(change: OutputChange) -> _LosingOperation | None:
    """
    The operation at which an output's format changed: the last breaker that made it, else the last operation before
    the output that does not keep the layout it is given.
    """
    graphs = [graph for graph in change.trial.graphs if graph.direction != "backward"]
    breakers = [breaker for graph in graphs for breaker in graph.breakers if _makes(breaker, change)]
    if breakers:
        return _LosingOperation(breakers[-1].op, breakers[-1].location, breakers[-1].module, is_proven=True)
    node = _last_that_changes(graphs[0], change) if graphs else None
    if node is None:
        return None
    return _LosingOperation(node.called or base_name(node.target), node.location, node.module, is_proven=False)


def _output_node(change: OutputChange) -> FxNode | None:
    """The node whose value is the output, in the only forward graph of the compiled trial; None where not recorded."""
    graphs = [graph for graph in change.trial.graphs if graph.direction != "backward"]
    names = graphs[0].output_names if len(graphs) == 1 else ()
    node = nodes_by_name(graphs[0]).get(names[change.number]) if change.number < len(names) else None
    return node if node is not None and node.layout and node.layout.shape == change.returned.shape else None


def _makes(breaker: LayoutBreaker, change: OutputChange) -> bool:
    made = set(breaker.target.memory_formats)
    return not made.isdisjoint(change.returned.memory_formats) and made.isdisjoint(change.expected.memory_formats)


def _last_that_changes(graph: Graph, change: OutputChange) -> FxNode | None:
    node, nodes = _output_node(change), nodes_by_name(graph)
    values = upstream(node, nodes) if node is not None else ()
    made = next((n for n in values if n.op != "call_function" or not is_layout_agnostic(n)), None)
    return made if made is not None and made.op == "call_function" else None


RULE = document_rule("LD209", "output-strides-differ-from-eager", check, __doc__)
