"""
Layout breakers: the operations at which a channels-last region ends though its neighbours could have stayed in it.

Found from the conversion that pays for it: where something is converted back into channels-last, the values it came
from are followed upward to the operation that was given channels-last and returned another layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.diagnosis.records import LayoutBreaker
from layoutdoctor.examination.graphs.buffers import densified, is_only_channels_last, is_only_contiguous
from layoutdoctor.examination.graphs.join import is_convolution
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.examination.graphs.regions import known_sum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import Buffer, Conversion, FxNode, Graph, RedundantPair
    from layoutdoctor.examination.graphs.buffers import BufferGraph


def compiled_breakers(flow: BufferGraph, conversions: Sequence[Conversion]) -> tuple[LayoutBreaker, ...]:
    """The breakers of a compiled graph."""
    found: dict[str, LayoutBreaker] = {}
    by_value: dict[str, list[Conversion]] = {}
    read, made = _read_by_convolutions(flow), _made_by_convolutions(flow)
    for conversion in conversions:
        by_value.setdefault(str(conversion.value), []).append(conversion)
    for conversion in conversions:
        if conversion.role != "interior" or conversion.tensor == "weight" or conversion.owner == "user":
            continue
        if conversion.direction == "to_channels_last":
            for buffer, given in _ends_above(flow, conversion.source_value):
                out = [c for c in by_value.get(buffer.name, ()) if c.direction != "to_channels_last"]
                _add(found, _compiled_breaker(flow, buffer, given, (*out, conversion)))
        elif conversion.direction == "to_contiguous" and conversion.value in read:
            buffer = flow.buffers[str(conversion.value)]
            if conversion.source is not None and conversion.source_value in made:
                _add(found, _compiled_breaker(flow, buffer, conversion.source, (conversion,)))
    return tuple(found.values())


def _add(found: dict[str, LayoutBreaker], breaker: LayoutBreaker | None) -> None:
    if breaker is None:
        return
    known = found.get(breaker.node)
    if known is None:
        found[breaker.node] = breaker
        return
    ids = tuple(dict.fromkeys((*known.conversions, *breaker.conversions)))
    found[breaker.node] = msgspec.structs.replace(known, conversions=ids)


def _ends_above(flow: BufferGraph, name: str | None) -> Iterator[tuple[Buffer, Layout]]:
    """
    Buffers that were given channels-last and hold something else, from which a value comes without another call.

    The nearest ones: those above them, as in a sum that runs through the whole network, pay for conversions of their
    own.
    """
    front, seen, is_found = [str(name)], {name}, False
    while front and not is_found:
        further: list[str] = []
        for one in front:
            buffer = flow.buffers.get(one)
            # Of another rank, such as [N, H * W, C], it may hold the same bytes: there formats say nothing.
            if buffer is None or not is_only_contiguous(buffer.layout):
                continue
            if buffer.is_extern:
                given = _given_to_convolution(flow, buffer)
                if given is not None:
                    is_found = True
                    yield buffer, given
                continue
            given = _given_to_buffer(flow, buffer)
            if given is not None:
                is_found = True
                # A sum of a channels-last value and of one that a convolution returned contiguous did not lose it.
                yield from list(_losing_convolutions(flow, buffer)) or [(buffer, given)]
                continue
            inputs = [other for other in buffer.reads if other not in seen]
            seen.update(inputs)
            further += dict.fromkeys(inputs)
        front = further


def _given_to_buffer(flow: BufferGraph, buffer: Buffer) -> Layout | None:
    """A channels-last value that a buffer reads, and so may hold: whole, in part, or through a table of indices."""
    return next((layout for layout in map(flow.layout_of, buffer.reads) if is_only_channels_last(layout)), None)


def _given_to_convolution(flow: BufferGraph, buffer: Buffer) -> Layout | None:
    """The channels-last activation that a called convolution reads; None of any other call."""
    node = flow.extern_node(buffer)
    if node is None or not is_convolution(node.target):
        return None
    layouts = (flow.layout_of(name) for name in buffer.reads if not _is_weight(flow, name))
    return next((layout for layout in layouts if is_only_channels_last(layout)), None)


def _is_weight(flow: BufferGraph, name: str) -> bool:
    node, buffer = flow.inputs.get(name), flow.buffers.get(name)
    if buffer is not None:
        return bool(buffer.reads) and all(_is_weight(flow, read) for read in buffer.reads)
    return node is not None and node.tensor == "weight"


def _losing_convolutions(flow: BufferGraph, buffer: Buffer) -> Iterator[tuple[Buffer, Layout]]:
    """Convolutions that were given channels-last and returned contiguous what a buffer is computed from."""

    def above(name: str) -> list[str]:
        source = flow.buffers.get(name)
        is_followed = source is not None and not source.is_extern and is_only_contiguous(source.layout)
        is_end = source is None or not is_followed or _given_to_buffer(flow, source) is not None
        return [] if is_end or source is None else list(source.reads)

    reached = _reached(buffer.reads, above)
    for source in flow.buffers.values():
        given = _given_to_convolution(flow, source) if source.name in reached and source.is_extern else None
        if given is not None and is_only_contiguous(source.layout):
            yield source, given


def _read_by_convolutions(flow: BufferGraph) -> set[str]:
    """Buffers that a convolution reads, at once or through contiguous ones computed from them."""

    def above(name: str) -> list[str]:
        buffer = flow.buffers[name]
        is_followed = not buffer.is_extern and is_only_contiguous(buffer.layout)
        return [other for other in buffer.reads if other in flow.buffers] if is_followed else []

    read = (n for n in flow.buffers if any(is_convolution(flow.nodes[node].target) for node in flow.required_by(n)))
    return _reached(read, above)


def _made_by_convolutions(flow: BufferGraph) -> set[str]:
    """Buffers that hold a convolution's result, or are computed from one through channels-last ones."""

    def below(name: str) -> list[str]:
        is_followed = is_only_channels_last(flow.layout_of(name))
        return [reader for reader in flow.readers[name] if not flow.buffers[reader].is_extern] if is_followed else []

    calls = [(buffer.name, flow.extern_node(buffer)) for buffer in flow.buffers.values() if buffer.is_extern]
    return _reached((name for name, node in calls if node is not None and is_convolution(node.target)), below)


def _reached(starts: Iterable[str], further: Callable[[str], Iterable[str]]) -> set[str]:
    """Some values and all that are reached from them."""
    found = set(starts)
    pending = list(found)
    while pending:
        ahead = set(further(pending.pop())) - found
        found |= ahead
        pending += ahead
    return found


def _compiled_breaker(
    flow: BufferGraph, buffer: Buffer, given: Layout, conversions: Sequence[Conversion]
) -> LayoutBreaker | None:
    node = flow.node_of(buffer)
    if buffer.alias_of is not None and buffer.alias_of in flow.buffers:  # a branch is written where the whole wants it
        node = flow.node_of(flow.buffers[buffer.alias_of]) or node
    if node is None or buffer.layout is None:
        return None
    who = "the library returns" if buffer.is_extern else "Inductor writes"
    return _breaker(node, given, buffer.layout, conversions, f"{who} its result in {_words(buffer.layout)}")


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


def eager_breakers(graph: Graph, conversions: Sequence[Conversion]) -> tuple[LayoutBreaker, ...]:
    """The breakers of an eager iteration, by the conversions that ran in its copies and inside libraries."""
    nodes = {node.name: node for node in graph.nodes}
    mine = [c for c in conversions if c.graph == graph.name and c.node in nodes and c.tensor != "weight"]
    outward = {
        str(c.node): c for c in mine if c.direction == "to_contiguous" and not is_convolution(nodes[str(c.node)].target)
    }
    found: dict[str, LayoutBreaker] = {}
    region, going_on = _channels_last_region(graph), _going_on(graph)
    for name, conversion in outward.items():
        given, returned = _given_layout(nodes, nodes[name], region), nodes[name].layout
        is_end = given is not None and is_only_contiguous(returned) and name in going_on
        if is_end and given is not None and returned is not None and conversion.owner != "user":
            _add(found, _eager_breaker(nodes[name], given, returned, (conversion,)))
    for conversion in mine:
        node = nodes[str(conversion.node)]
        if (
            conversion.direction != "to_channels_last"
            or conversion.port != "input 0"
            or not is_convolution(node.target)
        ):
            continue
        for ending, given in _eager_ends_above(nodes, node.inputs[0], region):
            out = outward.get(ending.name)
            if (out is not None and out.owner == "user") or ending.layout is None:
                continue
            paid = (conversion,) if out is None else (out, conversion)
            _add(found, _eager_breaker(ending, given, ending.layout, paid))
    return tuple(found.values())


def _channels_last_region(graph: Graph) -> set[str]:
    """Channels-last values that come from a convolution or from the caller, not from a permuted view by chance."""
    found: set[str] = set()
    for node in graph.nodes:
        if not is_only_channels_last(node.layout):
            continue
        begins = is_convolution(node.target) or (node.op == "placeholder" and node.tensor == "activation")
        if begins or any(name in found for name in node.inputs):
            found.add(node.name)
    return found


_MIXING = ("mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "mean", "sum", "amax", "cat")


def _going_on(graph: Graph) -> set[str]:
    """Values of which something of the same rank is made: not those that are flattened for a matrix product."""
    found: set[str] = set()
    for node in reversed(graph.nodes):
        if node.op != "call_function" or base_name(node.target) in _MIXING:
            continue
        is_image = node.layout is not None and len(node.layout.shape) in CHANNELS_LAST_BY_RANK
        if is_image or node.name in found:
            found.update(node.inputs)
    return found


def _given_layout(nodes: dict[str, FxNode], node: FxNode, region: set[str]) -> Layout | None:
    """The layout that an operation was given by a channels-last region; None where it was given none."""
    return next((nodes[name].layout for name in node.inputs if name in region), None)


def _eager_ends_above(nodes: dict[str, FxNode], name: str, region: set[str]) -> Iterator[tuple[FxNode, Layout]]:
    for other in _contiguous_above(nodes, [name], region):
        node = nodes[other]
        given = _given_layout(nodes, node, region)
        if is_convolution(node.target):
            given = nodes[node.inputs[0]].layout if node.inputs[0] in region else None
        if given is None:
            continue
        # A sum of a channels-last value and of one that a convolution returned contiguous did not lose it.
        above = _contiguous_above(nodes, node.inputs, region) if not is_convolution(node.target) else []
        losing = [nodes[one] for one in above if is_convolution(nodes[one].target) and nodes[one].inputs[0] in region]
        if not losing:
            yield node, given
        for convolution in losing:
            layout = nodes[convolution.inputs[0]].layout
            if layout is not None:
                yield convolution, layout


def _contiguous_above(nodes: dict[str, FxNode], names: Sequence[str], region: set[str]) -> list[str]:
    """Contiguous values that others are made of, up to those that read channels-last and to convolutions, included."""
    pending, seen, found = list(names), set(names), []
    while pending:
        name = pending.pop()
        node = nodes.get(name)
        if node is None or node.op != "call_function" or not is_only_contiguous(node.layout):
            continue
        found.append(name)
        if is_convolution(node.target) or _given_layout(nodes, node, region) is not None:
            continue
        further = [other for other in node.inputs if other not in seen]
        seen.update(further)
        pending += further
    return found


def _eager_breaker(node: FxNode, given: Layout, returned: Layout, conversions: Sequence[Conversion]) -> LayoutBreaker:
    return _breaker(node, given, returned, conversions, f"eager returns {_words(returned)}")


def with_breaker_costs(graph: Graph, known: Iterable[Conversion]) -> Graph:
    """The graph with the cost of each breaker: the sum over its conversions, None where one of them is not known."""
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
    """The graph without the breakers that are told already, as redundant pairs."""
    told = {id_ for pair in pairs for id_ in (pair.first, pair.second, *pair.also)}
    kept = tuple(
        breaker for breaker in graph.breakers if not breaker.conversions or not told.issuperset(breaker.conversions)
    )
    return msgspec.structs.replace(graph, breakers=kept)
