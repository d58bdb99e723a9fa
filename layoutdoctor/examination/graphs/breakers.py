"""
Layout breakers: the operations at which a channels-last region ends though its neighbours could have stayed in it.

Found from the conversion that pays for it: where something is converted back into channels-last, the values it came
from are followed upward to the operation that was given channels-last and returned another layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.graph import LayoutBreaker
from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.examination.graphs.buffers import densified, is_only_channels_last, is_only_contiguous
from layoutdoctor.examination.graphs.join import is_convolution
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.units import known_sum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from layoutdoctor.diagnosis.conversion import Conversion, RedundantPair
    from layoutdoctor.diagnosis.graph import FxNode, Graph
    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.examination.graphs.buffers import BufferGraph


def compiled_breakers(flow: BufferGraph, conversions: Sequence[Conversion]) -> tuple[LayoutBreaker, ...]:
    """The breakers of a compiled graph."""
    found: dict[str, LayoutBreaker] = {}
    values = _Buffers(flow)
    by_value: dict[str, list[Conversion]] = {}
    for conversion in conversions:
        by_value.setdefault(str(conversion.value), []).append(conversion)
    for conversion in conversions:
        source, value = str(conversion.source_value), str(conversion.value)
        if conversion.role != "interior" or conversion.tensor == "weight" or conversion.owner == "user":
            continue
        if conversion.direction == "to_channels_last":
            for name, given in _ends_above(values, source):
                out = [c for c in by_value.get(name, ()) if c.direction != "to_channels_last"]
                _add(found, values.breaker(name, given, (*out, conversion)))
        is_between = value in values.read_by_convolutions and source in values.made_by_convolutions
        if conversion.direction == "to_contiguous" and is_between and conversion.source is not None:
            _add(found, values.breaker(value, conversion.source, (conversion,)))
    return tuple(found.values())


def eager_breakers(graph: Graph, conversions: Sequence[Conversion]) -> tuple[LayoutBreaker, ...]:
    """The breakers of an eager iteration, by the conversions that ran in its copies and inside libraries."""
    values = _Nodes(graph)
    nodes = values.nodes
    mine = [c for c in conversions if c.graph == graph.name and c.node in nodes and c.tensor != "weight"]
    outward = {
        str(c.node): c for c in mine if c.direction == "to_contiguous" and not is_convolution(nodes[str(c.node)].target)
    }
    found: dict[str, LayoutBreaker] = {}
    going_on = _going_on(graph)
    for name, conversion in outward.items():
        given = values.given(name)
        if given is not None and values.is_contiguous(name) and name in going_on and conversion.owner != "user":
            _add(found, values.breaker(name, given, (conversion,)))
    for conversion in mine:
        node = nodes[str(conversion.node)]
        is_read = conversion.port == "input 0" and is_convolution(node.target)
        if conversion.direction != "to_channels_last" or not is_read:
            continue
        for name, given in _ends_above(values, node.inputs[0]):
            out = outward.get(name)
            if out is None or out.owner != "user":
                _add(found, values.breaker(name, given, (conversion,) if out is None else (out, conversion)))
    return tuple(found.values())


def _add(found: dict[str, LayoutBreaker], breaker: LayoutBreaker | None) -> None:
    if breaker is not None:
        known = found.get(breaker.node, breaker)
        ids = tuple(dict.fromkeys((*known.conversions, *breaker.conversions)))
        found[breaker.node] = msgspec.structs.replace(known, conversions=ids)


def _ends_above(values: _Buffers | _Nodes, name: str) -> list[tuple[str, Layout]]:
    """
    Values that were given channels-last and are contiguous, from which a value comes without another call.

    The nearest ones: those above them, as in a sum that runs through the whole network, pay for conversions of their
    own. With each the layout that it was given.
    """
    front, seen = [name], {name}
    while front:
        found: list[tuple[str, Layout]] = []
        further: list[str] = []
        for one in front:
            # Of another rank, such as [N, H * W, C], it may hold the same bytes: there formats say nothing.
            if not values.is_contiguous(one):
                continue
            given = values.given(one)
            if given is not None:
                # A sum of a channels-last value and of one that a convolution returned contiguous did not lose it.
                losing = [] if values.is_call(one) else _losing_calls(values, one)
                found += losing or [(one, given)]
            elif not values.is_call(one):
                further += [other for other in dict.fromkeys(values.reads(one)) if other not in seen]
                seen.update(further)
        if found:
            return found
        front = further
    return []


def _losing_calls(values: _Buffers | _Nodes, name: str) -> list[tuple[str, Layout]]:
    """Calls above a value that were given channels-last and returned a contiguous result."""

    def above(one: str) -> Sequence[str]:
        is_end = not values.is_contiguous(one) or values.is_call(one) or values.given(one) is not None
        return () if is_end else values.reads(one)

    calls = [one for one in _reached(values.reads(name), above) if values.is_contiguous(one) and values.is_call(one)]
    return [(one, given) for one in calls if (given := values.given(one)) is not None]


def _reached(starts: Iterable[str], further: Callable[[str], Iterable[str]]) -> list[str]:
    """Some values and all that are reached from them."""
    found = dict.fromkeys(starts)
    pending = list(found)
    while pending:
        ahead = [name for name in further(pending.pop()) if name not in found]
        found |= dict.fromkeys(ahead)
        pending += ahead
    return list(found)


class _Buffers:
    """
    The buffers of a compiled graph.

    Attributes:
        read_by_convolutions: Buffers that a convolution reads, at once or through contiguous ones computed from them.
        made_by_convolutions: Buffers that hold a convolution's result, or come from one through channels-last ones.
    """

    def __init__(self, flow: BufferGraph) -> None:
        self.flow = flow
        convolutions = [name for name in flow.buffers if self._is_convolution(name)]
        required = (n for n in flow.buffers if any(is_convolution(flow.nodes[m].target) for m in flow.required_by(n)))
        self.read_by_convolutions = set(_reached(required, self._above))
        self.made_by_convolutions = set(_reached(convolutions, self._below))

    def _is_convolution(self, name: str) -> bool:
        node = self.flow.extern_node(self.flow.buffers[name]) if self.is_call(name) else None
        return node is not None and is_convolution(node.target)

    def _above(self, name: str) -> list[str]:
        is_followed = not self.is_call(name) and self.is_contiguous(name)
        return [other for other in self.reads(name) if other in self.flow.buffers] if is_followed else []

    def _below(self, name: str) -> list[str]:
        is_followed = is_only_channels_last(self.flow.layout_of(name))
        return [reader for reader in self.flow.readers[name] if not self.is_call(reader)] if is_followed else []

    def is_contiguous(self, name: str) -> bool:
        """Whether it is known, and contiguous and not channels-last as well."""
        return name in self.flow.buffers and is_only_contiguous(self.flow.buffers[name].layout)

    def is_call(self, name: str) -> bool:
        """Whether a library call makes it, whose result says nothing about what it reads."""
        return self.flow.buffers[name].is_extern

    def reads(self, name: str) -> Sequence[str]:
        return self.flow.buffers[name].reads

    def given(self, name: str) -> Layout | None:
        """The layout of a channels-last value that it is made of, whole, in part or through a table of indices."""
        if self.is_call(name) and not self._is_convolution(name):
            return None
        names = [read for read in self.reads(name) if not (self.is_call(name) and self._is_weight(read))]
        return next((layout for layout in map(self.flow.layout_of, names) if is_only_channels_last(layout)), None)

    def _is_weight(self, name: str) -> bool:
        node, buffer = self.flow.inputs.get(name), self.flow.buffers.get(name)
        if buffer is not None:
            return bool(buffer.reads) and all(map(self._is_weight, buffer.reads))
        return node is not None and node.tensor == "weight"

    def breaker(self, name: str, given: Layout, conversions: Sequence[Conversion]) -> LayoutBreaker | None:
        buffer = self.flow.buffers[name]
        node = self.flow.node_of(buffer)
        if buffer.alias_of in self.flow.buffers:  # a branch is written where the whole wants it
            node = self.flow.node_of(self.flow.buffers[str(buffer.alias_of)]) or node
        if node is None or buffer.layout is None:
            return None
        who = "the library returns" if buffer.is_extern else "Inductor writes"
        return _breaker(node, given, buffer.layout, conversions, f"{who} its result in {_words(buffer.layout)}")


class _Nodes:
    """
    The values of an eager iteration.

    Attributes:
        region: Channels-last values that come from a convolution or from the caller, not from a permuted view by
            chance.
    """

    def __init__(self, graph: Graph) -> None:
        self.nodes = {node.name: node for node in graph.nodes}
        self.region: set[str] = set()
        for node in graph.nodes:
            begins = self.is_call(node.name) or (node.op == "placeholder" and node.tensor == "activation")
            if is_only_channels_last(node.layout) and (begins or not self.region.isdisjoint(node.inputs)):
                self.region.add(node.name)

    def is_contiguous(self, name: str) -> bool:
        node = self.nodes.get(name)
        return node is not None and node.op == "call_function" and is_only_contiguous(node.layout)

    def is_call(self, name: str) -> bool:
        return is_convolution(self.nodes[name].target)

    def reads(self, name: str) -> Sequence[str]:
        return self.nodes[name].inputs

    def given(self, name: str) -> Layout | None:
        names = self.reads(name)[:1] if self.is_call(name) else self.reads(name)
        return next((self.nodes[read].layout for read in names if read in self.region), None)

    def breaker(self, name: str, given: Layout, conversions: Sequence[Conversion]) -> LayoutBreaker | None:
        node = self.nodes[name]
        if node.layout is None:
            return None
        return _breaker(node, given, node.layout, conversions, f"eager returns {_words(node.layout)}")


_MIXING = ("mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "mean", "sum", "amax", "cat")


def _going_on(graph: Graph) -> set[str]:
    """Values from which another value of the same rank is computed, so not values flattened for a matrix product."""
    found: set[str] = set()
    for node in reversed(graph.nodes):
        if node.op != "call_function" or base_name(node.target) in _MIXING:
            continue
        is_image = node.layout is not None and len(node.layout.shape) in CHANNELS_LAST_BY_RANK
        if is_image or node.name in found:
            found.update(node.inputs)
    return found


def _breaker(
    node: FxNode, given: Layout, returned: Layout, conversions: Sequence[Conversion], reason: str
) -> LayoutBreaker:
    return LayoutBreaker(
        node=node.name,
        op=node.called or base_name(node.target),
        reason=f"it is given {_words(given)}; {reason}",
        location=node.location,
        module=node.module,
        source=given,
        target=returned,
        conversions=tuple(dict.fromkeys(conversion.id for conversion in conversions)),
    )


def _words(layout: Layout) -> str:
    return " or ".join(densified(layout).memory_formats) or "strides of its own"


def with_breaker_costs(graph: Graph, known: Iterable[Conversion]) -> Graph:
    """The graph with the cost of each breaker: the sum over its conversions, None if one of them is not known."""
    by_id = {conversion.id: conversion for conversion in known}
    breakers = []
    for breaker in graph.breakers:
        parts = [by_id[id_] for id_ in breaker.conversions if id_ in by_id]
        breakers.append(
            msgspec.structs.replace(
                breaker,
                seconds=known_sum(*(part.seconds for part in parts)),
                bytes_moved=known_sum(*(part.bytes_moved for part in parts)),
            )
        )
    return msgspec.structs.replace(graph, breakers=tuple(breakers))


def without_round_trips(graph: Graph, pairs: Sequence[RedundantPair]) -> Graph:
    """The graph without the breakers whose conversions are all in redundant pairs."""
    paired = {id_ for pair in pairs for id_ in (pair.first, pair.second, *pair.also)}
    kept = tuple(
        breaker for breaker in graph.breakers if not breaker.conversions or not paired.issuperset(breaker.conversions)
    )
    return msgspec.structs.replace(graph, breakers=kept)
