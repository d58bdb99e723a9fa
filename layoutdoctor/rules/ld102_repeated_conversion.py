"""LD102: tensors that are converted more than once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from layoutdoctor.diagnosis import Conversion, Diagnosis, Finding, FxNode, Graph, Layout, Trial
from layoutdoctor.examination.counts import conversions_of, sum_of_known
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.advice import Times, advised, channels_last_ways, use_instead
from layoutdoctor.rules.base import Rule
from layoutdoctor.words import distinct, joined, layout_words, listing, op_words, phrase

_DIRECTIONS = ("to_blocked", "to_channels_last", "to_contiguous")
_IN_PLACE_TARGET = re.compile(r"[a-z0-9]_(\.|$)")  # aten.relu_.default; every in-place operator ends so
_KINDS = {"activation": "an activation", "gradient": "a gradient"}

_Value = tuple[str, str]  # graph, and the node, buffer or input with the value; in a trace, the graph is ""
_Repeated = tuple[_Value, "list[Conversion]"]  # a value and its conversions; the first, the costliest, has to stay


def repeated_conversions(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields one finding per trial, the baseline's first; each names the costliest tensor."""
    for trial in evidence.own_trials(diagnosis):
        values = _Values(trial)
        repeated = values.repeated()
        if not repeated:
            continue
        again = [conversion for _, own in repeated for conversion in own[1:]]
        # One conversion of each value has to stay: the largest.
        sizes = [[c.bytes_moved for c in own if c.bytes_moved is not None] for _, own in repeated]
        moved = sum_of_known(sum(known) - max(known) if known else None for known in sizes)
        yield LD102.finding(
            trial.name,
            _message(values, repeated, again),
            _suggestion(diagnosis, trial, repeated[0][1][0]),
            severity=evidence.severity_of_cost(trial, sum_of_known(c.seconds for c in again)),
            conversions=again,
            bytes_moved=moved,
            evidence=[c.id for _, own in repeated for c in own],
        )


class _Values:
    """Finds the value that each conversion of a trial converts."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.nodes = {graph.name: evidence.nodes_by_name(graph) for graph in trial.graphs}
        self.source_nodes = {(graph.name, b.name): b.source_node for graph in trial.graphs for b in graph.buffers}
        self.homes: dict[str, list[tuple[Graph, FxNode]]] = {}
        self.changed: set[str] = set()  # values that are changed in place
        for graph in trial.graphs:
            for node in graph.nodes:
                if node.op == "call_function":
                    self.homes.setdefault(node.name, []).append((graph, node))
                if _IN_PLACE_TARGET.search(node.target):
                    self.changed.update(node.inputs)

    def maker(self, value: _Value) -> FxNode | None:
        """Returns the FX node that makes a value; None if no single node makes it."""
        return self.nodes.get(value[0], {}).get(self.source_nodes.get(value) or value[1])

    def reader_words(self, conversion: Conversion) -> str | None:
        """Names the module that needs a conversion, or else a node or buffer: ``"conv_1"``, ``"conv_1 (backward)"``."""
        homes = self.homes.get(conversion.node or "", [])
        backward = {graph.direction == "backward" or node.backward for graph, node in homes} == {True}
        name = conversion.module or conversion.node or conversion.value
        return f"{name} (backward)" if backward and conversion.module is not None else name

    def repeated(self) -> list[_Repeated]:
        """Returns values that are converted more than once between the same layouts, the costliest repetition first."""
        found: dict[tuple[_Value, Layout, Layout], list[Conversion]] = {}
        for conversion in conversions_of(self.trial):
            value = self._value_of(conversion)
            if value is not None and conversion.source is not None and conversion.target is not None:
                found.setdefault((value, conversion.source, conversion.target), []).append(conversion)
        repeated = [
            (key[0], sorted(own, key=lambda c: _sums([c]), reverse=True)) for key, own in found.items() if len(own) > 1
        ]
        return sorted(repeated, key=lambda item: _sums(item[1][1:]), reverse=True)

    def _value_of(self, conversion: Conversion) -> _Value | None:
        """Returns the converted value; None if uncertain, or for a weight (LD103). Gradients count only in a trace."""
        source = conversion.source_value
        if evidence.is_trace(self.trial):
            return ("", source) if conversion.tensor != "weight" and source is not None else None
        if conversion.tensor != "activation" or conversion.direction not in _DIRECTIONS:
            return None
        if conversion.owner == "compiler" and conversion.graph is not None and source is not None:
            value = (conversion.graph, source)  # a copy, by the compiler, of a buffer or graph input
            maker = self.maker(value)
            if self.changed.isdisjoint((source, maker.name if maker is not None else source)):
                return value
        read = self._value_read(conversion)
        return None if read is None or read[1] in self.changed else read

    def _value_read(self, conversion: Conversion) -> _Value | None:
        """Returns the value that a converting operation reads; None unless just one input has the converted shape."""
        homes = self.homes.get(conversion.node or "", [])
        if len(homes) != 1 or conversion.source is None:
            return None
        graph, reader = homes[0]
        nodes, shape = self.nodes[graph.name], conversion.source.shape
        layouts = {name: nodes[name].layout for name in reader.inputs if name in nodes}
        read = [name for name, layout in layouts.items() if layout is not None and layout.shape == shape]
        return self._origin(graph, nodes[read[0]]) if len(read) == 1 else None

    def _origin(self, graph: Graph, node: FxNode) -> _Value | None:
        """
        Returns the graph and the node that made a value; a value saved for the backward was made in the forward.

        AOTAutograd gives the backward's placeholder the name of the forward's output. So equal names prove the origin
        if only one forward graph returns this name and there is one backward graph. Otherwise, the result is None.
        """
        forward = [g for g in self.trial.graphs if g.direction == "forward" and node.name in g.output_names]
        if node.op != "placeholder" or graph.direction != "backward" or not forward:
            return (graph.name, node.name)
        backward_count = sum(other.direction == "backward" for other in self.trial.graphs)
        return (forward[0].name, node.name) if len(forward) == backward_count == 1 else None


def _sums(conversions: Sequence[Conversion]) -> tuple[float, int]:
    return (sum(c.seconds or 0.0 for c in conversions), sum(c.bytes_moved or 0 for c in conversions))


def _message(values: _Values, repeated: Sequence[_Repeated], again: Sequence[Conversion]) -> str:
    repetitions = phrase("repetitions: {}", wording.conversion_cost_words(values.trial, again))
    costliest = _tensor_words(values, *repeated[0])
    if len(repeated) == 1:
        return joined((costliest, repetitions))
    count = sum(len(conversions) for _, conversions in repeated)
    return joined((f"{count} conversions of {len(repeated)} tensors", repetitions, f"the costliest: {costliest}"))


def _tensor_words(values: _Values, value: _Value, conversions: Sequence[Conversion]) -> str:
    """Says ``"3 conversions of relu (4x64x56x56) from contiguous to channels_last, for conv_1, conv_2 and conv_3"``."""
    first, maker = conversions[0], values.maker(value)
    if value[0]:
        name, readers = value[1], distinct(values.reader_words(c) for c in conversions)
    else:
        name = _KINDS.get(first.tensor, "a tensor")
        readers = distinct(op_words(c.op) for c in conversions if c.op is not None)
    made_by = None if maker is None or maker.op == "placeholder" else op_words(maker.target)
    facts = joined(
        (wording.shape_of(first.source), f"made by {made_by}" if made_by not in (None, name) else None), ", "
    )
    words = (
        f"{len(conversions)} conversions of {name} ({facts}) from {layout_words(first.source)} to "
        f"{layout_words(first.target)}"
    )
    return f"{words}, for {listing(readers)}" if readers else words


def _suggestion(diagnosis: Diagnosis, trial: Trial, conversion: Conversion) -> str:
    times = Times(diagnosis)
    other = times.clean_alternative(trial, lambda candidate: not _Values(candidate).repeated())
    advice = "let the operation that makes the value write the layout that its readers want"
    if other is not None:
        return use_instead(times, trial, other, "repeats no conversion")
    if evidence.is_trace(trial):
        wanted = wording.wanted_format([conversion]) if conversion.direction in _DIRECTIONS else None
        further = "" if conversion.direction == "to_contiguous" else wording.miopen_words([conversion])
        return f"{advice}: {wording.try_words(wanted)}{further}"
    if trial.configuration.input_format == "channels_last":
        return "convert the value once by hand, in front of its readers, and give them the copy"
    return advised(times, trial, channels_last_ways(trial), f"{advice}: give the model and its input channels_last")


LD102 = Rule("LD102", "repeated-conversion", repeated_conversions)
