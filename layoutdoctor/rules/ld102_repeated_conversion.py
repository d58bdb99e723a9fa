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

from layoutdoctor.records import Finding
from layoutdoctor.rules import evidence, recorded, wording
from layoutdoctor.rules.base import document_rule
from layoutdoctor.units import format_bytes
from layoutdoctor.words import layout_words, listing, op_words, shape_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.layout import Layout
    from layoutdoctor.records import Conversion, Diagnosis, FxNode, Graph, Trial

CODE = "LD102"
NAME = "repeated-conversion"

_DIRECTIONS = ("to_blocked", "to_channels_last", "to_contiguous")
_IN_PLACE_TARGET = re.compile(r"[a-z0-9]_(\.|$)")  # aten.relu_.default; every in-place operator ends so

_Value = tuple[str, str]  # (graph, node, buffer or graph input): a value, by who made it


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """
    One finding per trial, the baseline's first; it names the dearest tensor.

    Args:
        diagnosis: Any diagnosis.
    """
    trial = recorded.recorded_trial(diagnosis)
    if trial is not None:
        tensors = _repeated_in_trace(trial)
        yield from (_finding_in_trace(trial, tensors),) if tensors else ()
        return
    for trial in evidence.own_trials(diagnosis):
        repeated = sorted(_repeated(trial), key=_cost_order)
        if repeated:
            yield _finding(diagnosis, trial, repeated)


_Repeated = tuple[_Value, tuple["Conversion", ...]]


def _cost_order(repeated: _Repeated) -> tuple[float, float]:
    conversions = repeated[1]
    return (
        -(_all_but_dearest([c.seconds for c in conversions]) or 0.0),
        -(_all_but_dearest([c.bytes_moved for c in conversions]) or 0.0),
    )


class _Index:
    """A trial's nodes and buffers by name, so that each conversion is looked up once."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.nodes = {graph.name: {node.name: node for node in graph.nodes} for graph in trial.graphs}
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


def _repeated(trial: Trial) -> list[_Repeated]:
    index = _Index(trial)
    found: dict[tuple[_Value, Layout, Layout], tuple[Conversion, ...]] = {}
    for conversion in evidence.conversions_of(trial):
        value = _copied_value(index, conversion) or _converted_value(index, conversion)
        if value is not None and conversion.source is not None and conversion.target is not None:
            key = (value, conversion.source, conversion.target)
            found[key] = (*found.get(key, ()), conversion)
    return [(value, conversions) for (value, _, _), conversions in found.items() if len(conversions) > 1]


def _copied_value(index: _Index, conversion: Conversion) -> _Value | None:
    """Which buffer or graph input the compiler copied, as the graph itself says; None where it does not."""
    if conversion.tensor != "activation" or conversion.direction not in _DIRECTIONS:
        return None
    if conversion.owner != "compiler" or conversion.graph is None or conversion.source_value is None:
        return None
    value = (conversion.graph, conversion.source_value)
    maker = index.maker(value)
    changed = maker is not None and maker.name in index.changed
    return None if changed or value[1] in index.changed else value


def _converted_value(index: _Index, conversion: Conversion) -> _Value | None:
    """Which value was converted; None unless the graph leaves no other."""
    if conversion.tensor != "activation" or conversion.direction not in _DIRECTIONS or conversion.source is None:
        return None
    homes = index.homes.get(conversion.node or "", [])
    if len(homes) != 1:
        return None
    graph, reader = homes[0]
    nodes = index.nodes[graph.name]
    read = {name for name in reader.inputs if name in nodes and _could_be(nodes[name], conversion.source)}
    if len(read) != 1:
        return None
    value = _origin(index.trial, graph, nodes[read.pop()])
    return None if value is None or value[1] in index.changed else value


def _could_be(node: FxNode, source: Layout) -> bool:
    return node.layout is not None and node.layout.shape == source.shape


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
    return (makers[0].name, node.name) if len(makers) == 1 and len(_backward_graphs(trial)) == 1 else None


def _backward_graphs(trial: Trial) -> list[Graph]:
    return [graph for graph in trial.graphs if graph.direction == "backward"]


def _finding(diagnosis: Diagnosis, trial: Trial, repeated: Sequence[_Repeated]) -> Finding:
    seconds = evidence.sum_known(_all_but_dearest([c.seconds for c in conversions]) for _, conversions in repeated)
    moved = evidence.sum_known(_all_but_dearest([c.bytes_moved for c in conversions]) for _, conversions in repeated)
    last = repeated[0][1][-1]
    return Finding(
        code=CODE,
        rule=NAME,
        severity=evidence.severity_of_share(evidence.share_of_kernels(trial, seconds)),
        configuration=trial.name,
        message=_message(trial, repeated, seconds, moved),
        suggestion=_suggestion(diagnosis, trial),
        location=last.location,
        module=last.module,
        seconds=seconds,
        bytes_moved=int(moved) if moved is not None else None,
        evidence=tuple(c.id for _, conversions in repeated for c in conversions),
    )


def _all_but_dearest(values: Sequence[float | None]) -> float | None:
    """What the repetitions cost: one conversion has to stay, and the dearest is the one to count as that."""
    total = evidence.sum_known(values)
    return None if total is None else total - max(value for value in values if value is not None)


def _message(trial: Trial, repeated: Sequence[_Repeated], seconds: float | None, moved: float | None) -> str:
    costs = [cost for cost in (wording.cost_words(trial, seconds), format_bytes(int(moved)) if moved else None) if cost]
    cost = f": {', '.join(costs)}" if costs else ""
    if len(repeated) == 1:
        return f"{_facts(trial, *repeated[0])}; all but one is repetition{cost}"
    count = sum(len(conversions) for _, conversions in repeated)
    return (
        f"{len(repeated)} tensors are converted {count} times, where {len(repeated)} would do{cost}; "
        f"the dearest: {_facts(trial, *repeated[0])}"
    )


def _facts(trial: Trial, value: _Value, conversions: Sequence[Conversion]) -> str:
    first, maker = conversions[0], _Index(trial).maker(value)
    shape = shape_words(first.source.shape) if first.source is not None else ""
    readers = list(dict.fromkeys(name for c in conversions if (name := c.node or c.value) is not None))
    made_by = "" if maker is None or maker.op == "placeholder" else f", made by {op_words(maker.target)}"
    return (
        f"{value[1]} ({shape}{made_by}) is converted {len(conversions)} times from "
        f"{layout_words(first.source)} to {layout_words(first.target)}"
        + (f", for {listing(readers)}" if readers else "")
    )


def _suggestion(diagnosis: Diagnosis, trial: Trial) -> str:
    other = evidence.clean_alternative(diagnosis, trial, lambda candidate: not _repeated(candidate))
    if other is not None:
        return f"use {other.name}: it repeats no conversion; {wording.alternative_words(diagnosis, trial, other)}"
    if trial.configuration.input_format == "channels_last":
        return "convert the value once by hand, in front of its readers, and give them the copy"
    return "let the producer write the layout its readers want: give the model and its input channels_last"


_Tensor = tuple["Conversion", ...]  # all conversions of one tensor, the one that has to stay first


def _repeated_in_trace(trial: Trial) -> list[_Tensor]:
    """Tensors converted more than once alike, the one whose repetitions cost most first; weights are LD103's."""
    found: dict[tuple[str, Layout, Layout], list[Conversion]] = {}
    for conversion in evidence.conversions_of(trial):
        if conversion.source_value is None or conversion.tensor == "weight":
            continue
        if conversion.source is not None and conversion.target is not None:
            found.setdefault((conversion.source_value, conversion.source, conversion.target), []).append(conversion)
    tensors = [tuple(sorted(own, key=lambda c: -(c.seconds or 0.0))) for own in found.values() if len(own) > 1]
    return sorted(tensors, key=lambda own: -(evidence.sum_known(c.seconds for c in own[1:]) or 0.0))


def _finding_in_trace(trial: Trial, tensors: Sequence[_Tensor]) -> Finding:
    again = [conversion for own in tensors for conversion in own[1:]]
    seconds = evidence.sum_known(c.seconds for c in again)
    cost = recorded.conversion_cost_words(trial, again)
    costs = "" if cost is None else f": {cost}"
    facts = _facts_in_trace(tensors[0])
    message = f"{facts}; all but one is repetition{costs}"
    if len(tensors) > 1:
        count = sum(len(own) for own in tensors)
        message = (
            f"{len(tensors)} tensors are converted {count} times, where {len(tensors)} would do{costs}; "
            f"the dearest: {facts}"
        )
    found = recorded.conversion_places(again)
    return Finding(
        code=CODE,
        rule=NAME,
        severity=evidence.severity_of_cost(trial, seconds),
        configuration=trial.name,
        message=message,
        suggestion=_suggestion_in_trace(tensors[0][0]),
        location=found[0].location if found else None,
        module=found[0].module if found else None,
        seconds=seconds,
        bytes_moved=evidence.sum_bytes(c.bytes_moved for c in again),
        evidence=tuple(c.id for own in tensors for c in own),
    )


def _facts_in_trace(conversions: _Tensor) -> str:
    first = conversions[0]
    shape = shape_words(first.source.shape) if first.source is not None else ""
    kind = {"activation": "an activation", "gradient": "a gradient"}.get(first.tensor, "a tensor")
    readers = list(dict.fromkeys(op_words(c.op) for c in conversions if c.op is not None))
    return (
        f"{kind} ({shape}) is converted {len(conversions)} times from {layout_words(first.source)} to "
        f"{layout_words(first.target)}" + (f", for {listing(readers)}" if readers else "")
    )


def _suggestion_in_trace(conversion: Conversion) -> str:
    advice = "let the producer write the layout its readers want"
    if conversion.direction == "to_contiguous":
        return f"{advice}: {recorded.try_words('torch.contiguous_format')}"
    if conversion.direction in ("to_channels_last", "to_blocked") and conversion.source is not None:
        wanted = recorded.channels_last_words([len(conversion.source.shape)])
        return f"{advice}: {recorded.try_words(wanted)}{recorded.miopen_words([conversion])}"
    return f"{advice}: {recorded.try_other_words()}"


RULE = document_rule(CODE, NAME, check, __doc__)
