"""
Redundant pairs, proved on the data flow of a graph.

Values joined by layout-agnostic operations form a region that can live in one layout. Today each convolution result
that enters the region is converted A to B, and each value that leaves it into a convolution is converted B to A. If the
region lived in A, those conversions would go, and instead every value that something else needs in B, and every value
that comes in from elsewhere in B, would cost one. A pair is claimed only where that balance, in conversions and in
bytes, leaves both of its conversions without a task. One run of a graph is balanced at a time, for one A at a time.
Faces doctor; no torch.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import networkx as nx

from layoutdoctor.analysis.buffer_pairs import buffer_pairs
from layoutdoctor.analysis.graph_conversions import conversion_bytes
from layoutdoctor.analysis.join import is_convolution
from layoutdoctor.analysis.layout_agnostic import ALIASES, base_name, is_layout_agnostic, reads_any_layout
from layoutdoctor.analysis.regions import Region, known_sum, same_format, shortest_ways
from layoutdoctor.records import RedundantPair

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from layoutdoctor.records import Conversion, ConversionDirection, FxNode, Graph

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
        graphs: The trial's graphs, with nodes.
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
    return tuple(found)


def _runs(conversions: Sequence[Conversion]) -> list[list[Conversion]]:
    """
    A graph's conversions, one list for each time it ran: code behind a graph break may run several times.

    The conversions of one node stand together, so a node that comes up again after another one runs again.
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
        choices = [_choose_pairs(flow, region.in_layout(layout)) for layout in region.layouts()]
        if choices:
            best = max(choices, key=len)
            pairs += best
    return pairs


class _Flow:
    """
    A graph's values and who reads them.

    Attributes:
        nodes: Every node by name.
        readers: For each value: (node that reads it, position among that node's inputs).
        outputs: Values the graph returns.
        agnostic: Directed graph over values joined by layout-agnostic operations.
        order: Position of each node.
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
        """What enters and leaves a region, and what pins it."""
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
            elif not self._is_internal(name, reader) and not reads_any_layout(reader):
                region.pinned.add(name)

    def _is_internal(self, name: str, reader: FxNode) -> bool:
        return bool(self.agnostic.has_edge(name, reader.name))

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
    for start, end, names in shortest_ways(flow.successors, starts, ends, lambda n: leaving[n].id not in used):
        first, second = leaving[start], region.entering[end][1]
        way = [flow.nodes[name] for name in names[1:]]
        moved = (first.bytes_moved or 0) + (second.bytes_moved or 0)
        if second.id in used or moved > saved or not _undo_each_other(first, second, way):
            continue
        saved -= moved
        used.update((first.id, second.id))
        pairs.append(_pair(flow, region, first, second, way))
        if len(pairs) == count:
            break
    return pairs


def _undo_each_other(first: Conversion, second: Conversion, way: Sequence[FxNode]) -> bool:
    """Whether the second conversion leads back to where the first one came from."""
    if first.source is None or first.target is None or second.source is None or second.target is None:
        return False
    if not same_format(first.source, second.target) or not same_format(first.target, second.source):
        return False
    return first.target.shape == second.source.shape or any(_changes_size(node) for node in way)


def _changes_size(node: FxNode) -> bool:
    name = base_name(node.target)
    return "pool" in name or "pad" in name or "upsample" in name


def _pair(flow: _Flow, region: Region, first: Conversion, second: Conversion, way: Sequence[FxNode]) -> RedundantPair:
    between = tuple(node.target for node in way if base_name(node.target) not in ALIASES)
    seconds = known_sum(first.seconds, second.seconds)
    return RedundantPair(
        kind="through" if between else "adjacent",
        evidence="kernels",
        first=first.id,
        second=second.id,
        between=between,
        seconds=seconds,
        bytes_moved=known_sum(first.bytes_moved, second.bytes_moved),
        location=second.location or first.location,
        module=second.module or first.module,
        proof=_proof(region, first, second, between),
        tensor_shape=second.source.shape if second.source is not None else None,
        seconds_source=None if seconds is None else "measured",
        graph=first.graph,
        exposed_seconds=known_sum(first.exposed_seconds, second.exposed_seconds),
    )


def _proof(region: Region, first: Conversion, second: Conversion, between: Sequence[str]) -> str:
    way = f"through {', '.join(dict.fromkeys(between))}" if between else "directly"
    kept = f"; the {len(region.values)} values joined here are read by layout-agnostic operations and convolutions"
    if region.pinned:
        kept += f", {len(region.pinned)} of them also by what needs the plain layout, which keeps its own conversion"
    if region.foreign:
        kept += f", and {len(region.foreign)} come from elsewhere, which would be converted once"
    return f"{first.node}'s result goes {way} into {second.node}{kept}"
