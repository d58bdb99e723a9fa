"""
Redundant pairs, proved on the data flow of a graph.

Values joined by layout-agnostic operations form a region that can live in one layout. A pair is claimed only where the
region's balance, in conversions and in bytes, leaves both of its conversions without a task. One run of a graph is
balanced at a time, for one layout at a time.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import networkx as nx

from layoutdoctor.diagnosis.conversion import RedundantPair
from layoutdoctor.examination.graphs.buffers import BufferGraph, Source, is_only_channels_last
from layoutdoctor.examination.graphs.conversions import conversion_bytes, layout_change
from layoutdoctor.examination.graphs.join import is_convolution
from layoutdoctor.examination.graphs.layout_agnostic import ALIASES, base_name, is_layout_agnostic, reads_any_layout
from layoutdoctor.examination.graphs.regions import Region, known_sum, same_format, shortest_ways
from layoutdoctor.words import distinct

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from layoutdoctor.diagnosis.conversion import Conversion, ConversionDirection
    from layoutdoctor.diagnosis.graph import Buffer, FxNode, Graph


def buffer_pairs(graph: Graph) -> tuple[RedundantPair, ...]:
    """The redundant pairs of one compiled graph, by its buffers alone."""
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
        found += _most([_choose(flow, joined, region.in_layout(layout)) for layout in region.layouts()])
    return tuple(found)


def _most(choices: list[list[RedundantPair]]) -> list[RedundantPair]:
    """The longest of some lists of pairs, one for each layout that a region may live in."""
    return max([[], *choices], key=len)


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
        is_unread = not buffer.accesses and not _parts(flow, buffer)
        read_names = buffer.reads if is_unread else [source.name for source in flow.sources(buffer)]
        if any(_is_foreign(flow, joined, buffer, source_name) for source_name in read_names):
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


def _is_foreign(flow: BufferGraph, joined: nx.DiGraph, buffer: Buffer, name: str) -> bool:
    """Whether a value comes from outside the region as it lies, so that a region in channels-last would convert it."""
    if joined.has_edge(name, buffer.name):
        return False
    layout = flow.layout_of(name)
    if layout is None:
        return True
    if len(layout.shape) < len(buffer.layout.shape if buffer.layout is not None else ()):
        return sum(size != 1 for size in layout.shape) > 1  # a vector per channel has no layout to speak of
    unread = Source(name)  # by a loop that was not understood
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
        for start, end, way in shortest_ways(joined.successors, starts, ends):
            if len(pairs) == count:
                return pairs
            first, second = leaving[start][1], region.entering[end][1]
            if first.id in used or second.id in used:
                continue
            parts = (first, *_others(flow, joined, free, way, {*used, first.id}), second)
            if not any(_moves(flow, part) for part in parts):
                continue  # both ride along in loops that compute: nothing would be saved
            used.update(part.id for part in parts)
            pairs.append(_buffer_pair(flow, region, reader_count, parts, way))
    return pairs


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


def _buffer_pair(
    flow: BufferGraph, region: Region, reader_count: int, parts: Sequence[Conversion], way: Sequence[str]
) -> RedundantPair:
    *there, second = parts
    nodes = [node for node in (flow.node_of(flow.buffers[name]) for name in way) if node is not None]
    place = nodes[-1].location if nodes else None
    copies = ("clone", "_to_copy")
    sources = ", ".join(str(part.source_value) for part in there)
    proof = (
        f"{sources} {'is' if len(there) == 1 else 'are'} converted into {', '.join(way)}, and {second.value} converts "
        f"back for {', '.join(second.required_by) or 'its readers'}; the {len(region.values)} buffers between are read "
        f"by {reader_count} generated loops, which read any layout{_kept(region)}"
    )
    return _pair(
        parts,
        tuple(distinct(node.target for node in nodes if base_name(node.target) not in copies)),
        # A conversion that rides along in a loop that computes has no time of its own.
        timed=[part for part in parts if _moves(flow, part)],
        evidence="graph",
        location=place or second.location,
        proof=proof,
        graph=flow.graph.name,
    )


def _pair(
    parts: Sequence[Conversion], between: tuple[str, ...], timed: Sequence[Conversion], **fields: Any
) -> RedundantPair:
    """The record of conversions there, the last of them the one back."""
    first, *also, second = parts
    seconds = known_sum(*(part.seconds for part in timed))
    is_estimate = any(part.seconds_source == "estimated" for part in timed)
    own = {
        "kind": "through" if between else "adjacent",
        "first": first.id,
        "second": second.id,
        "between": between,
        "seconds": seconds,
        "bytes_moved": known_sum(*(part.bytes_moved for part in parts)),
        "module": second.module or first.module,
        "tensor_shape": second.source.shape if second.source is not None else None,
        "also": tuple(part.id for part in also),
        "seconds_source": None if seconds is None else "estimated" if is_estimate else "measured",
        "exposed_seconds": known_sum(*(part.exposed_seconds for part in timed)),
    }
    return RedundantPair(**{**own, **fields})


def _kept(region: Region) -> str:
    """Which conversions of a region stay, as the end of a proof."""
    kept = []
    if region.pinned:
        kept.append(f"; {len(region.pinned)} of them also by what needs this layout, which keeps its own conversion")
    if region.foreign:
        kept.append(f"; {len(region.foreign)} come from elsewhere in it, which would be converted once")
    return "".join(kept) or ": no library call reads them, none is returned or changed"


_OUT: tuple[ConversionDirection, ...] = ("from_blocked", "to_contiguous")
_INTO: tuple[ConversionDirection, ...] = ("to_blocked", "to_channels_last")
"""
Directions out of and into the layout that a library computes in: a result is handed on by one out of it, a value made
ready by one into it. The other way round, where there is none of these, the library computes contiguous in a
channels-last model.
"""


_CERTAIN_PORTS = frozenset({"convolution", "convolution_backward", "mkldnn_convolution", "clone", "_to_copy"})
"""
Operations whose ports count the same arguments as their node's inputs; a fused binary one has another in between.

A copy that the model makes itself (``.contiguous()``) starts a region as a convolution's result does.
"""


def redundant_pairs(graphs: Sequence[Graph], conversions: Sequence[Conversion]) -> tuple[RedundantPair, ...]:
    """
    The redundant pairs that the kernel list shows and the graphs prove, and those that Inductor's buffers prove alone.

    Args:
        conversions: Library conversions joined to nodes and ports, in the order in which they ran.
    """
    found: list[RedundantPair] = []
    for graph in graphs:
        found += buffer_pairs(graph)
        mine = [c for c in conversions if c.graph == graph.name and c.node is not None]
        if mine:
            flow = _Flow(graph)
            for run in _runs(mine):
                found += _pairs_of_run(flow, run)
    return (*found, *_gradient_pairs(graphs))


def _gradient_pairs(graphs: Sequence[Graph]) -> Iterator[RedundantPair]:
    """
    Gradients that the backward of a convolution converts, and autograd converts back.

    As many of one size and layout must come back as went there; of several alike nothing says which is which.
    """
    there: dict[Hashable, list[Conversion]] = defaultdict(list)
    back: dict[Hashable, list[Conversion]] = defaultdict(list)
    for conversion in (each for graph in graphs for each in graph.conversions if each.owner == "framework"):
        source, target = conversion.source, conversion.target
        if source is None or target is None or conversion.tensor != "gradient":
            continue
        if conversion.port == "output 1":
            there[source.shape, source.stride, target.stride].append(conversion)
        elif conversion.node is None:
            back[source.shape, target.stride, source.stride].append(conversion)
    for layouts, firsts in there.items():
        if len(firsts) != len(back[layouts]):
            continue
        for first, second in zip(firsts, back[layouts], strict=True):
            yield _pair(
                (first, second),
                (),
                timed=(first, second),
                evidence="kernels",
                location=first.location,
                module=first.module,
                proof="the graph returns the gradient, and autograd copies it into the strides of its parameter",
                graph=first.graph,
            )


def _runs(conversions: Sequence[Conversion]) -> list[list[Conversion]]:
    """
    A graph's conversions, one list for each time it ran: code behind a graph break may run several times.

    The conversions of one node are neighbours, so a node that comes up again after another one runs again.
    """
    runs: list[list[Conversion]] = []
    times: dict[str, int] = defaultdict(int)
    before: str | None = None
    for conversion in conversions:
        node = str(conversion.node)
        if node != before:
            times[node] += 1
            before = node
        while len(runs) < times[node]:
            runs.append([])
        runs[times[node] - 1].append(conversion)
    return runs


def _pairs_of_run(flow: _Flow, conversions: Sequence[Conversion]) -> list[RedundantPair]:
    by_port: dict[tuple[str, str], list[Conversion]] = defaultdict(list)
    for conversion in conversions:
        node = flow.nodes.get(str(conversion.node))
        if node is not None and conversion.port is not None and base_name(node.target) in _CERTAIN_PORTS:
            by_port[node.name, conversion.port].append(conversion)
    pairs: list[RedundantPair] = []
    for values in flow.regions():
        region = flow.balance(values, by_port)
        pairs += _most([_choose_pairs(flow, region.in_layout(layout)) for layout in region.layouts()])
    return pairs


class _Flow:
    """
    A graph's values and who reads them.

    Attributes:
        readers: For each value: (node that reads it, position among that node's inputs).
        agnostic: Directed graph over values joined by layout-agnostic operations.
        mixed: Results of layout-agnostic operations that also read a tensor whose layout cannot be followed.
    """

    def __init__(self, graph: Graph) -> None:
        self.nodes = {node.name: node for node in graph.nodes}
        self.outputs = set(graph.output_names)
        self.readers: dict[str, list[tuple[FxNode, int]]] = defaultdict(list)
        self.agnostic: nx.DiGraph = nx.DiGraph()
        self.order = {node.name: position for position, node in enumerate(graph.nodes)}
        self.mixed: set[str] = set()
        for node in graph.nodes:
            for position, name in enumerate(node.inputs):
                self.readers[name].append((node, position))
            self._link(node)

    def _link(self, node: FxNode) -> None:
        if node.op != "call_function" or not is_layout_agnostic(node):
            return
        sources = [name for name in node.inputs if self._carries_layout(self.nodes.get(name))]
        if base_name(node.target) == "getitem" and (
            node.result_index or is_convolution(self.nodes[node.inputs[0]].target)
        ):
            return  # a convolution's result starts a region; further results of pooling and batch norm carry no values
        if not self._carries_layout(node):
            return
        for name in sources:
            self.agnostic.add_edge(name, node.name)
        if any(self._is_unclear(self.nodes.get(name)) for name in node.inputs):
            self.mixed.add(node.name)

    @staticmethod
    def _carries_layout(node: FxNode | None) -> bool:
        """Whether a value is big enough for its layout to matter: more than one dimension larger than one."""
        if node is None or node.layout is None or len(node.layout.shape) < 4:
            return False
        return sum(size != 1 for size in node.layout.shape[1:]) > 1

    @staticmethod
    def _is_unclear(node: FxNode | None) -> bool:
        """A tensor without a recorded layout, or one of rank 3, ``[C, H, W]``, that has a layout of its own."""
        if node is None:
            return True
        if node.layout is None:
            return node.dtype is not None
        return len(node.layout.shape) == 3 and sum(size != 1 for size in node.layout.shape) > 1

    def regions(self) -> Iterable[set[str]]:
        """Sets of values joined by layout-agnostic operations, and single values between two convolutions."""
        joined = [set(values) for values in nx.weakly_connected_components(self.agnostic)]
        known = set().union(*joined) if joined else set()
        alone = [{name} for name, node in self.nodes.items() if name not in known and self._carries_layout(node)]
        return joined + alone

    def balance(self, values: set[str], by_port: dict[tuple[str, str], list[Conversion]]) -> Region:
        """The conversions into and out of a region, and the values that are pinned or foreign."""
        region = Region(values=values)
        for name in sorted(values, key=self.order.__getitem__):
            self._add_source(region, name, by_port)
            self._add_readers(region, name, by_port)
        return region

    def _add_source(self, region: Region, name: str, by_port: dict[tuple[str, str], list[Conversion]]) -> None:
        if name in self.mixed:
            region.foreign.add(name)
        if name in self.agnostic and self.agnostic.in_degree(name):
            return
        producer, index = self._producer(name)
        leaving = _of_either_way(by_port.get((producer, f"output {index}"), ()), _OUT, "to_channels_last")
        if len(leaving) == 1:
            region.leaving[name] = leaving[0]
        else:
            region.foreign.add(name)

    def _producer(self, name: str) -> tuple[str, int]:
        """The operation a value comes from and which of its results it is."""
        node = self.nodes[name]
        if base_name(node.target) == "getitem" and node.inputs:
            return node.inputs[0], node.result_index or 0
        return name, 0

    def _add_readers(self, region: Region, name: str, by_port: dict[tuple[str, str], list[Conversion]]) -> None:
        if name in self.outputs:
            region.pinned.add(name)
        for reader, position in self.readers[name]:
            if base_name(reader.target) == "getitem" and reader.result_index:
                continue  # indices of a pooling, statistics of a batch norm: not this value
            if reader.op == "output":
                region.pinned.add(name)
            elif is_convolution(reader.target):
                here = by_port.get((reader.name, f"input {position}"), ())
                entering = _of_either_way(here, _INTO, "to_contiguous")
                region.entering += [(name, conversion) for conversion in entering]
                if not entering:
                    region.pinned.add(name)
            elif not self.agnostic.has_edge(name, reader.name) and not reads_any_layout(reader):
                region.pinned.add(name)

    def successors(self, name: str) -> Iterable[str]:
        """Values that layout-agnostic operations make of a value."""
        return self.agnostic.successors(name) if name in self.agnostic else ()

    def results(self, conversion: Conversion) -> list[str]:
        """The values that a conversion of an operation's result makes."""
        node, index = str(conversion.node), int(str(conversion.port).split()[1])
        items = [
            reader.name
            for reader, _ in self.readers[node]
            if base_name(reader.target) == "getitem" and (reader.result_index or 0) == index
        ]
        return items or [node]


def _of_either_way(
    conversions: Sequence[Conversion], usual: Sequence[ConversionDirection], other: ConversionDirection
) -> list[Conversion]:
    """Those of the usual directions; where there are none, those of the other one."""
    found = [conversion for conversion in conversions if conversion.direction in usual]
    return found or [conversion for conversion in conversions if conversion.direction == other]


def _choose_pairs(flow: _Flow, region: Region) -> list[RedundantPair]:
    """The pairs of a region, shortest way first, as many as the balance of conversions and of bytes allows."""
    count, saved = region.removable_pair_count(), region.saved_bytes(lambda name: conversion_bytes(flow.nodes[name]))
    if count == 0 or saved is None:
        return []
    # What something else needs in B keeps its own conversion: another one of the region goes with the way back.
    leaving = [first for name, first in region.leaving.items() if name not in region.pinned]
    ends = region.positions_of_ends()
    pairs: list[RedundantPair] = []
    used: set[str] = set()
    starts = [flow.results(first) for first in leaving]
    for start, end, names in shortest_ways(flow.successors, starts, ends):
        first, second = leaving[start], region.entering[end][1]
        way = [flow.nodes[name] for name in names[1:]]
        moved = (first.bytes_moved or 0) + (second.bytes_moved or 0)
        if first.id in used or second.id in used or moved > saved or not _undo_each_other(first, second, way):
            continue
        saved -= moved
        used.update((first.id, second.id))
        pairs.append(_node_pair(region, first, second, way))
        if len(pairs) == count:
            break
    return pairs


def _undo_each_other(first: Conversion, second: Conversion, way: Sequence[FxNode]) -> bool:
    """Whether the second conversion leads back to where the first one came from."""
    if first.source is None or first.target is None or second.source is None or second.target is None:
        return False
    if not same_format(first.source, second.target) or not same_format(first.target, second.source):
        return False
    names = " ".join(base_name(node.target) for node in way)
    return first.target.shape == second.source.shape or any(word in names for word in ("pool", "pad", "upsample"))


def _node_pair(region: Region, first: Conversion, second: Conversion, way: Sequence[FxNode]) -> RedundantPair:
    between = tuple(node.target for node in way if base_name(node.target) not in ALIASES)
    path = f"through {', '.join(distinct(between))}" if between else "directly"
    kept = _kept(region) if region.pinned or region.foreign else ""
    proof = (
        f"{first.node}'s result goes {path} into {second.node}; the {len(region.values)} values joined here are read "
        f"by layout-agnostic operations and convolutions{kept}"
    )
    return _pair(
        (first, second),
        between,
        timed=(first, second),
        evidence="kernels",
        location=second.location or first.location,
        proof=proof,
        graph=first.graph,
    )
