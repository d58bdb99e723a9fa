"""
Redundant pairs that Inductor's own buffers prove: converted into another layout, and back, with nothing between that
needs it.

A region is a set of buffers in one stride order that generated loops compute from one another. A loop reads any layout,
so what can pin a region is a library call that reads it, an output, a change in place, or a loop that would have to
convert instead. A concatenation and its branches are one region: they share their memory. Faces ``dataflow``; no torch.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

import networkx as nx

from layoutdoctor.analysis.buffers import BufferGraph, Source, is_only_channels_last
from layoutdoctor.analysis.graph_conversions import conversion_bytes, layout_change
from layoutdoctor.analysis.layout_agnostic import base_name
from layoutdoctor.analysis.regions import Region, known_sum, shortest_ways
from layoutdoctor.records import RedundantPair

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutdoctor.records import Buffer, Conversion, Graph


def buffer_pairs(graph: Graph) -> tuple[RedundantPair, ...]:
    """
    The redundant pairs of one compiled graph, by its buffers alone.

    Args:
        graph: With buffers and conversions; an eager graph has none.
    """
    made: dict[str, list[Conversion]] = defaultdict(list)
    read: dict[str, list[Conversion]] = defaultdict(list)
    for conversion in graph.conversions:
        if conversion.tensor != "weight":
            made[str(conversion.value)].append(conversion)
            read[str(conversion.source_value)].append(conversion)
    if not graph.buffers or not made:
        return ()
    flow = BufferGraph(graph)
    joined = _joined(flow)
    found: list[RedundantPair] = []
    for values in nx.weakly_connected_components(joined):
        if values.isdisjoint(made) or values.isdisjoint(read):
            continue
        region = _balance(flow, joined, set(values), made, read)
        best: list[RedundantPair] = []
        for layout in region.layouts():
            best = max(best, _choose(flow, joined, region.in_layout(layout)), key=_count)
        found += best
    return tuple(found)


def _count(pairs: Sequence[RedundantPair]) -> int:
    return len(pairs)


def _is_value(flow: BufferGraph, name: str) -> bool:
    """Whether a buffer is written by a loop, or is a concatenation of such: its layout is Inductor's to choose."""
    buffer = flow.buffers.get(name)
    return buffer is not None and not buffer.is_extern and not buffer.is_removed and not buffer.is_reduction


def _joined(flow: BufferGraph) -> nx.DiGraph:
    """Buffers written by loops, joined where one is computed from another in the same stride order."""
    joined: nx.DiGraph = nx.DiGraph()
    for buffer in flow.graph.buffers:
        if not _is_value(flow, buffer.name) or buffer.layout is None:
            continue
        joined.add_node(buffer.name)
        if buffer.alias_of is not None and _is_value(flow, buffer.alias_of):
            joined.add_edge(buffer.name, buffer.alias_of)
        for source in flow.sources(buffer):
            same = source.seen is not None and layout_change(source.seen, buffer.layout) == "none"
            if same and _is_value(flow, source.name):
                joined.add_edge(source.name, buffer.name)
    return joined


def _balance(
    flow: BufferGraph,
    joined: nx.DiGraph,
    values: set[str],
    made: Mapping[str, Sequence[Conversion]],
    read: Mapping[str, Sequence[Conversion]],
) -> Region:
    region = Region(values=values)
    for name in sorted(values, key=flow.position):
        for conversion in made.get(name, ()):
            if conversion.source_value not in values:
                if name in region.leaving:
                    region.foreign.add(name)  # two operands are converted for one value: not followed
                region.leaving[name] = conversion
        region.entering += [(name, conversion) for conversion in read.get(name, ()) if conversion.value not in values]
        buffer = flow.buffers[name]
        if (
            buffer.is_output
            or flow.extern_readers(name)
            or any(_would_convert(flow, name, reader) for reader in _readers(flow, name))
        ):
            region.pinned.add(name)
        if any(_is_foreign(flow, joined, buffer, source_name) for source_name in _read_names(flow, buffer)):
            region.foreign.add(name)
    return region


def _readers(flow: BufferGraph, name: str) -> list[Buffer]:
    return [flow.buffers[reader] for reader in flow.readers[name]]


def _would_convert(flow: BufferGraph, name: str, reader: Buffer) -> bool:
    """Whether a loop that reads a buffer would have to convert if the buffer lay in channels-last instead."""
    if reader.is_reduction or reader.alias_of == name or name in _parts(flow, reader):
        return False  # a reduction gives a new, smaller value; a concatenation is the same memory
    if reader.problem is not None or reader.layout is None:
        return True
    if any(source.name == name and source.seen is not None for source in flow.sources(reader)):
        return False  # of the region itself, or a conversion that is counted
    if reader.is_removed:
        return any(_would_convert(flow, reader.name, further) for further in _readers(flow, reader.name))
    return not is_only_channels_last(reader.layout)


def _parts(flow: BufferGraph, whole: Buffer) -> tuple[str, ...]:
    """The buffers that a concatenation without a loop of its own is made of."""
    return whole.reads if not whole.accesses and flow.is_concatenation(whole) else ()


def _read_names(flow: BufferGraph, buffer: Buffer) -> list[str]:
    if not buffer.accesses and not _parts(flow, buffer):
        return list(buffer.reads)
    return [source.name for source in flow.sources(buffer)]


def _is_foreign(flow: BufferGraph, joined: nx.DiGraph, buffer: Buffer, name: str) -> bool:
    """Whether a value comes from outside the region as it lies, so that a region in channels-last would convert it."""
    if joined.has_edge(name, buffer.name):
        return False
    layout = flow.layout_of(name)
    if layout is None:
        return True
    if len(layout.shape) < len(buffer.layout.shape if buffer.layout is not None else ()):
        return sum(size != 1 for size in layout.shape) > 1  # a vector per channel has no layout to speak of
    unread = Source(name, seen=None, layout=layout)  # by a loop that was not understood
    for source in [source for source in flow.sources(buffer) if source.name == name] or [unread]:
        if source.seen is not None and buffer.layout is not None:
            if layout_change(source.seen, buffer.layout) == "none":
                return True
        elif not is_only_channels_last(layout) and sum(size != 1 for size in layout.shape[1:]) > 1:
            return True
    return False


def _choose(flow: BufferGraph, joined: nx.DiGraph, region: Region) -> list[RedundantPair]:
    """The pairs of a region, what moves alone first, then by the way's length, as many as both balances allow."""
    count, saved = region.removable_pair_count(), _saved_bytes(flow, region)
    if count == 0 or saved is None or saved <= 0:
        return []
    # What moves alone comes before what rides along; a pinned value keeps its conversion.
    free = [(name, c) for name, c in region.leaving.items() if name not in region.pinned]
    reader_count = len({reader for name in region.values for reader in flow.readers[name]})
    pairs: list[RedundantPair] = []
    used: set[str] = set()
    for alone in (True, False):
        leaving = [(name, c) for name, c in free if _moves(flow, c) is alone]
        starts, ends = [(name,) for name, _ in leaving], region.positions_of_ends()
        wanted = partial(_is_unused, leaving, used)
        for start, end, way in shortest_ways(joined.successors, starts, ends, wanted):
            if len(pairs) == count:
                return pairs
            first, second = leaving[start][1], region.entering[end][1]
            if second.id in used:
                continue
            parts = (first, *_others(flow, joined, free, way, {*used, first.id}), second)
            if not any(_moves(flow, part) for part in parts):
                continue  # both ride along in loops that compute: nothing would be saved
            used.update(part.id for part in parts)
            pairs.append(_pair(flow, region, reader_count, parts, way))
    return pairs


def _is_unused(leaving: Sequence[tuple[str, Conversion]], used: set[str], position: int) -> bool:
    return leaving[position][1].id not in used


def _others(
    flow: BufferGraph, joined: nx.DiGraph, free: Sequence[tuple[str, Conversion]], way: Sequence[str], used: set[str]
) -> list[Conversion]:
    """The conversions of the other branches of a concatenation on the way, which go with its pair."""
    if not any(flow.is_concatenation(flow.buffers[name]) for name in way):
        return []
    above = nx.ancestors(joined, way[-1]) | {way[-1]}
    return [conversion for name, conversion in free if name in above and conversion.id not in used]


def _moves(flow: BufferGraph, conversion: Conversion) -> bool:
    """Whether a conversion is a loop of its own; one that rides along with a computed value costs nothing."""
    return flow.only_moves(flow.buffers[str(conversion.value)])


def _saved_bytes(flow: BufferGraph, region: Region) -> int | None:
    """
    The balance of bytes, without the conversions that ride along in loops that compute: these cost nothing today.

    A pinned value that is converted from outside goes on being converted as it is now.
    """
    costly = Region(
        values=region.values,
        leaving={name: c for name, c in region.leaving.items() if name not in region.pinned and _moves(flow, c)},
        entering=[(name, c) for name, c in region.entering if _moves(flow, c)],
        pinned=region.pinned - region.leaving.keys(),
        foreign=region.foreign,
    )
    return costly.saved_bytes(lambda name: conversion_bytes(flow.buffers[name]))


def _pair(
    flow: BufferGraph, region: Region, reader_count: int, parts: Sequence[Conversion], way: Sequence[str]
) -> RedundantPair:
    first, *also, second = parts
    between = _between(flow, way)
    place = next((node for node in reversed([flow.node_of(flow.buffers[n]) for n in way]) if node is not None), None)
    # What rides along in a loop that computes has no time of its own: what goes with the pair is what only moves.
    moving = [part for part in parts if _moves(flow, part)]
    seconds = known_sum(*(part.seconds for part in moving)) if moving else None
    sources = {part.seconds_source for part in moving}
    return RedundantPair(
        kind="through" if between else "adjacent",
        evidence="graph",
        first=first.id,
        second=second.id,
        between=between,
        seconds=seconds,
        bytes_moved=known_sum(*(part.bytes_moved for part in parts)),
        location=place.location if place is not None and place.location is not None else second.location,
        module=second.module or first.module,
        proof=_proof(region, reader_count, parts, way),
        tensor_shape=second.source.shape if second.source is not None else None,
        also=tuple(part.id for part in also),
        seconds_source=None if seconds is None else "estimated" if "estimated" in sources else "measured",
        graph=flow.graph.name,
    )


def _between(flow: BufferGraph, way: Sequence[str]) -> tuple[str, ...]:
    """The operations whose values lie in the other layout, as FX knows them."""
    targets = []
    for name in way:
        node = flow.node_of(flow.buffers[name])
        if node is not None and base_name(node.target) not in ("clone", "_to_copy"):
            targets.append(node.target)
    return tuple(dict.fromkeys(targets))


def _proof(region: Region, reader_count: int, parts: Sequence[Conversion], way: Sequence[str]) -> str:
    first, *also, second = parts
    sources = ", ".join(str(part.source_value) for part in (first, *also))
    text = (
        f"{sources} {'is' if not also else 'are'} converted into {', '.join(way)}, and {second.value} converts back "
        f"for {', '.join(second.required_by) or 'its readers'}; the {len(region.values)} buffers between are read by "
        f"{reader_count} generated loops, which read any layout"
    )
    kept = []
    if region.pinned:
        kept.append(f"{len(region.pinned)} of them also by what needs this layout, which keeps its own conversion")
    if region.foreign:
        kept.append(f"{len(region.foreign)} come from elsewhere in it, which would be converted once")
    return f"{text}; {'; '.join(kept)}" if kept else f"{text}: no library call reads them, none is returned or changed"
