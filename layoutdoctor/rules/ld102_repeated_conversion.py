"""
The same tensor is converted to the same layout more than once per iteration.

What it finds:
    Two or more conversions of one activation, from the same layout to the same layout, for different readers. Told
    only where the graph proves it: each conversion belongs to an operation in the graph, that operation reads exactly
    one value of the converted shape, it is the same value for all of them, and nothing changes it in place. A forward
    activation saved for the backward counts as the same value. Copies that the compiler makes of one buffer count
    likewise, by the buffer they are made from. In a recorded trace only where the shapes and the order of forward and
    backward prove that it is one tensor, such as the activation that a convolution's forward and backward both read.

Why it costs:
    A library converts inside its own operation and forgets the result: each reader pays for reading and writing the
    whole tensor again, though one conversion would have served all.

Example:
    An inception block on a CPU: four convolutions read the same contiguous activation, and oneDNN converts it to
    ``aBcd16b`` four times.

What to do:
    Let the producer write the layout its readers want: give the model and its input channels_last, or convert once by
    hand (``x = x.contiguous(memory_format=torch.channels_last)``) in front of the readers. What the backward converts
    again cannot be kept from the forward by hand: only a model in that layout saves both.

When it is fine:
    The repetitions cost less than 2 % of the kernel time (then this is a note); or keeping the converted copy until
    its last reader, such as the backward, would need memory that is not there.

Source:
    oneDNN's verbose log of a contiguous training step shows the same ``abcd`` to ``aBcd16b`` reorder in the forward
    and the backward of a convolution (torch 2.13, oneDNN 3.12).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutdoctor.examination.costs import conversions_of, sum_known
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import advised, channels_last_ways, use_instead
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.graph_evidence import nodes_by_name
from layoutdoctor.rules.times import Times
from layoutdoctor.units import format_bytes
from layoutdoctor.words import distinct, joined, layout_words, listing, op_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Finding, FxNode, Graph, Trial

_DIRECTIONS = ("to_blocked", "to_channels_last", "to_contiguous")
_IN_PLACE_TARGET = re.compile(r"[a-z0-9]_(\.|$)")  # aten.relu_.default; every in-place operator ends so
_KINDS = {"activation": "an activation", "gradient": "a gradient"}

_Value = tuple[str, str]  # (graph, node, buffer or graph input): a value, by who made it; no graph: by sizes alone
_Repeated = tuple[_Value, "list[Conversion]"]  # a value and its conversions, the dearest, which has to stay, first


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per trial, the baseline's first; it names the dearest tensor."""
    for trial in evidence.own_trials(diagnosis):
        index = _Index(trial)
        repeated = _repeated(index)
        if repeated:
            yield _finding(diagnosis, index, repeated)


class _Index:
    """A trial's nodes and buffers by name, so that each conversion is looked up once."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.nodes = {graph.name: nodes_by_name(graph) for graph in trial.graphs}
        self.source_nodes = {
            (graph.name, buffer.name): buffer.source_node for graph in trial.graphs for buffer in graph.buffers
        }
        self.homes: dict[str, list[tuple[Graph, FxNode]]] = {}
        self.changed: set[str] = set()
        for graph in trial.graphs:
            for node in graph.nodes:
                if node.op == "call_function":
                    self.homes.setdefault(node.name, []).append((graph, node))
                if _IN_PLACE_TARGET.search(node.target):
                    self.changed.update(node.inputs)

    def maker(self, value: _Value) -> FxNode | None:
        """The FX node a value is, or that a buffer holds; None where the buffer is no single node's."""
        return self.nodes.get(value[0], {}).get(self.source_nodes.get(value) or value[1])


def _repeated(index: _Index) -> list[_Repeated]:
    """The values converted more than once alike, the one whose repetitions cost most first."""
    found: dict[tuple[_Value, Layout, Layout], list[Conversion]] = {}
    for conversion in conversions_of(index.trial):
        value = _value_of(index, conversion)
        if value is not None and conversion.source is not None and conversion.target is not None:
            found.setdefault((value, conversion.source, conversion.target), []).append(conversion)
    repeated = [
        (key[0], sorted(own, key=lambda c: _sums([c]), reverse=True)) for key, own in found.items() if len(own) > 1
    ]
    return sorted(repeated, key=lambda item: _sums(item[1][1:]), reverse=True)


def _sums(conversions: Sequence[Conversion]) -> tuple[float, int]:
    return (sum(c.seconds or 0.0 for c in conversions), sum(c.bytes_moved or 0 for c in conversions))


def _value_of(index: _Index, conversion: Conversion) -> _Value | None:
    """Which value was converted; None unless the record leaves no other. Weights are LD103's."""
    if evidence.is_trace(index.trial):
        is_known = conversion.tensor != "weight" and conversion.source_value is not None
        return ("", conversion.source_value) if is_known and conversion.source_value is not None else None
    if conversion.tensor != "activation" or conversion.direction not in _DIRECTIONS:
        return None
    return _copied_value(index, conversion) or _converted_value(index, conversion)


def _copied_value(index: _Index, conversion: Conversion) -> _Value | None:
    """Which buffer or graph input the compiler copied, as the graph itself says; None where it does not."""
    if conversion.owner != "compiler" or conversion.graph is None or conversion.source_value is None:
        return None
    value = (conversion.graph, conversion.source_value)
    maker = index.maker(value)
    changed = maker is not None and maker.name in index.changed
    return None if changed or value[1] in index.changed else value


def _converted_value(index: _Index, conversion: Conversion) -> _Value | None:
    """Which value an operation converted; None unless the graph leaves no other."""
    homes = index.homes.get(conversion.node or "", [])
    if len(homes) != 1 or conversion.source is None:
        return None
    graph, reader = homes[0]
    nodes, shape = index.nodes[graph.name], conversion.source.shape
    layouts = {name: nodes[name].layout for name in reader.inputs if name in nodes}
    read = [name for name, layout in layouts.items() if layout is not None and layout.shape == shape]
    value = _origin(index.trial, graph, nodes[read[0]]) if len(read) == 1 else None
    return None if value is None or value[1] in index.changed else value


def _origin(trial: Trial, graph: Graph, node: FxNode) -> _Value | None:
    """
    Who made a value: for one saved for the backward, the node of the forward graph.

    AOTAutograd gives the backward's placeholder the name of the forward's output, so the names prove it as long as
    one forward graph alone returns that name.
    """
    if node.op != "placeholder" or graph.direction != "backward":
        return (graph.name, node.name)
    makers = [other for other in trial.graphs if other.direction == "forward" and node.name in other.output_names]
    if not makers:
        return (graph.name, node.name)
    backward_count = sum(other.direction == "backward" for other in trial.graphs)
    return (makers[0].name, node.name) if len(makers) == backward_count == 1 else None


def _finding(diagnosis: Diagnosis, index: _Index, repeated: Sequence[_Repeated]) -> Finding:
    trial, again = index.trial, [conversion for _, own in repeated for conversion in own[1:]]
    moved = sum_known(_all_but_largest([c.bytes_moved for c in own]) for _, own in repeated)
    return RULE.finding(
        trial.name,
        _message(index, repeated, again, moved),
        _suggestion(diagnosis, trial, repeated[0][1][0]),
        severity=evidence.severity_of_cost(trial, sum_known(c.seconds for c in again)),
        conversions=again,
        bytes_moved=moved,
        evidence=[c.id for _, own in repeated for c in own],
    )


def _all_but_largest(sizes: Sequence[int | None]) -> int | None:
    """What the repetitions move: one conversion has to stay, and the largest is the one to count as that."""
    total = sum_known(sizes)
    return None if total is None else total - max(size for size in sizes if size is not None)


def _message(index: _Index, repeated: Sequence[_Repeated], again: Sequence[Conversion], moved: int | None) -> str:
    seconds, exposed = sum_known(c.seconds for c in again), sum_known(c.exposed_seconds for c in again)
    own = evidence.convolution_share_words(index.trial, seconds) if {c.owner for c in again} == {"library"} else None
    time = evidence.cost_words(index.trial, seconds, own, exposed_seconds=exposed)
    costs = joined((time, format_bytes(moved) if moved else None), ", ")
    cost, facts = f": {costs}" if costs else "", _facts(index, *repeated[0])
    if len(repeated) == 1:
        return f"{facts}; all but one is repetition{cost}"
    count = sum(len(conversions) for _, conversions in repeated)
    return (
        f"{len(repeated)} tensors are converted {count} times, where {len(repeated)} would do{cost}; "
        f"the costliest: {facts}"
    )


def _facts(index: _Index, value: _Value, conversions: Sequence[Conversion]) -> str:
    first, maker = conversions[0], index.maker(value)
    name = value[1] if value[0] else _KINDS.get(first.tensor, "a tensor")
    made_by = "" if maker is None or maker.op == "placeholder" else f", made by {op_words(maker.target)}"
    readers = distinct(c.node or c.value for c in conversions)
    if not value[0]:
        readers = distinct(op_words(c.op) for c in conversions if c.op is not None)
    return (
        f"{name} ({evidence.shape_of(first.source)}{made_by}) is converted {len(conversions)} times from "
        f"{layout_words(first.source)} to {layout_words(first.target)}"
        + (f", for {listing(readers)}" if readers else "")
    )


def _suggestion(diagnosis: Diagnosis, trial: Trial, conversion: Conversion) -> str:
    times = Times(diagnosis)
    other = times.clean_alternative(trial, lambda candidate: not _repeated(_Index(candidate)))
    advice = "let the producer write the layout its readers want"
    if other is not None:
        return use_instead(times, trial, other, "repeats no conversion")
    if evidence.is_trace(trial):
        wanted = evidence.wanted_format([conversion]) if conversion.direction in _DIRECTIONS else None
        further = "" if conversion.direction == "to_contiguous" else evidence.miopen_words([conversion])
        return f"{advice}: {evidence.try_words(wanted)}{further}"
    if trial.configuration.input_format == "channels_last":
        return "convert the value once by hand, in front of its readers, and give them the copy"
    return advised(times, trial, channels_last_ways(trial), f"{advice}: give the model and its input channels_last")


RULE = document_rule("LD102", "repeated-conversion", check, __doc__)
