"""
Finds redundant pairs, which are two conversions that undo each other, and proves them on the data flow of a graph.

Values joined by layout-agnostic operations form a region that can be in one layout. As recorded, values that enter the
region are converted from layout A to layout B, and values that leave it from B to A. If the region were in A, these
conversions would not be needed. Instead, one conversion would be needed for each value that another operation needs in
B, and for each value that comes in B from elsewhere. A pair is reported only if this balance of conversions and bytes
shows that its two conversions are not needed. Each run of a graph and each layout A is balanced separately.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

import networkx as nx

from layoutdoctor.diagnosis import (
    Buffer,
    Conversion,
    ConversionDirection,
    FxNode,
    Graph,
    Layout,
    RedundantPair,
    SourceLocation,
)
from layoutdoctor.examination.graphs.buffers import BufferSource, Flow, is_only_channels_last, same_format
from layoutdoctor.examination.graphs.conversions import layout_change, tensor_bytes
from layoutdoctor.examination.graphs.join import is_convolution_target
from layoutdoctor.examination.graphs.layout_agnostic import ALIASES, base_name, is_layout_agnostic, reads_any_layout
from layoutdoctor.examination.layouts import layout_or_unknown
from layoutdoctor.units import sum_if_all_known
from layoutdoctor.words import distinct


@dataclass
class _Region:
    """
    Values that can all be in one layout. A and B are the layouts of the module's docstring.

    Attributes:
        leaving: Conversions out of layout A, of values that enter the region, by the name of the converted value.
        entering: Conversions back into A, of values that leave the region, each after the name of the value it reads.
        pinned: Values that are needed in B: outputs, and inputs of operations that may not accept every layout.
        foreign: Values that come in B from elsewhere.
    """

    values: set[str]
    leaving: dict[str, Conversion] = field(default_factory=dict)
    entering: list[tuple[str, Conversion]] = field(default_factory=list)
    pinned: set[str] = field(default_factory=set)
    foreign: set[str] = field(default_factory=set)

    def in_each_layout(self) -> Iterator[_Region]:
        """Yields the region for each layout A. Values from other layouts are foreign, values read in them pinned."""
        layouts: list[Layout] = []
        for source in (conversion.source for conversion in self.leaving.values()):
            if source is not None and not any(same_format(source, known) for known in layouts):
                layouts.append(source)
        for layout in layouts:
            ours = {name: c for name, c in self.leaving.items() if same_format(c.source, layout)}
            reads = [entry for entry in self.entering if same_format(entry[1].target, layout)]
            others = {name for name, c in self.entering if not same_format(c.target, layout)}
            yield _Region(self.values, ours, reads, self.pinned | others, self.foreign | (self.leaving.keys() - ours))

    @property
    def free(self) -> list[tuple[str, Conversion]]:
        """The converted values that are not pinned, with their conversions: a pinned value keeps its conversion."""
        return [(name, conversion) for name, conversion in self.leaving.items() if name not in self.pinned]

    def removable_pair_count(self) -> int:
        """The number of conversions in each direction that would not be needed with the region in A."""
        return max(0, min(len(self.leaving) - len(self.pinned), len(self.entering) - len(self.foreign)))

    def saved_bytes(
        self, values: Mapping[str, Buffer] | Mapping[str, FxNode], moves: Callable[[Conversion], bool]
    ) -> int | None:
        """
        Bytes that conversions moved, minus the bytes that they would move with the region in A; None if not known.

        Conversions fused into loops that compute cost nothing. A pinned value that is converted where it enters the
        region keeps this conversion.
        """
        costly = [c for c in (*(c for _, c in self.free), *(c for _, c in self.entering)) if moves(c)]
        new = [values[name] for name in (*(self.pinned - self.leaving.keys()), *self.foreign)]
        today = sum_if_all_known(0, *(conversion.bytes_moved for conversion in costly))
        then = sum_if_all_known(0, *(tensor_bytes(value.layout, value.dtype, value.dtype) for value in new))
        return None if today is None or then is None else today - then

    def ways(
        self, joined: nx.DiGraph, starts: Sequence[tuple[str, Conversion]], used: set[str]
    ) -> Iterator[tuple[Conversion, Conversion, list[str]]]:
        """Yields unused conversions into and out of the region, and the values between them; shortest way first."""
        ends: dict[str, list[int]] = defaultdict(list)
        for position, (name, _) in enumerate(self.entering):
            ends[name].append(position)
        found = sorted(
            (length, start, end)
            for start, (name, _) in enumerate(starts)
            for last, length in nx.single_source_shortest_path_length(joined, name).items()
            for end in ends.get(last, ())
        )
        for _, start, end in found:
            (name, first), (last, second) = starts[start], self.entering[end]
            if used.isdisjoint((first.id, second.id)):
                yield first, second, nx.shortest_path(joined, name, last)

    def kept(self) -> str:
        """The last part of a proof: the conversions of the region that are still needed."""
        kept = []
        if self.pinned:
            kept.append(f"; values needed in the converted layout as well, each with a conversion: {len(self.pinned)}")
        if self.foreign:
            kept.append(f"; values made in the converted layout elsewhere, each to convert once: {len(self.foreign)}")
        return "".join(kept)


def _pair(
    parts: Sequence[Conversion],
    between: tuple[str, ...],
    *,
    timed: Sequence[Conversion],
    evidence: Literal["graph", "kernels"],
    location: SourceLocation | None,
    proof: str,
) -> RedundantPair:
    """Makes the record of a pair: the last of ``parts`` converts from B to A, the others convert from A to B."""
    first, *also, second = parts
    seconds = sum_if_all_known(*(part.seconds for part in timed))
    is_estimate = any(part.seconds_source == "estimated" for part in timed)
    return RedundantPair(
        kind="through" if between else "adjacent",
        evidence=evidence,
        first=first.id,
        second=second.id,
        between=between,
        seconds=seconds,
        bytes_moved=sum_if_all_known(*(part.bytes_moved for part in parts)),
        location=location,
        module=second.module or first.module,
        proof=proof,
        tensor_shape=second.source.shape if second.source is not None else None,
        also=tuple(part.id for part in also),
        graph=first.graph,
        seconds_source=None if seconds is None else "estimated" if is_estimate else "measured",
        exposed_seconds=sum_if_all_known(*(part.exposed_seconds for part in timed)),
    )


def _most(choices: Iterable[list[RedundantPair]]) -> list[RedundantPair]:
    """The longest list of pairs; there is one list for each layout that a region may be in."""
    return max(choices, key=len, default=[])


def buffer_pairs(flow: Flow) -> tuple[RedundantPair, ...]:
    """Finds the redundant pairs of a compiled graph that its buffers prove without the kernel list."""
    made: dict[str, list[Conversion]] = defaultdict(list)
    read: dict[str, list[Conversion]] = defaultdict(list)
    for conversion in flow.graph.conversions:
        if conversion.tensor != "weight":
            made[str(conversion.value)].append(conversion)
            read[str(conversion.source_value)].append(conversion)
    if not flow.buffers or not made:
        return ()
    loops = _Loops(flow)
    found: list[RedundantPair] = []
    for values in nx.weakly_connected_components(loops.joined):
        if not values.isdisjoint(made) and not values.isdisjoint(read):
            region = loops.balance(set(values), made, read)
            found += _most(map(loops.pairs, region.in_each_layout()))
    return tuple(found)


class _Loops:
    """
    The buffers of a compiled graph.

    Attributes:
        joined: Buffers that loops write, and concatenations of these buffers: Inductor is free to choose their layouts.
            Edges lead from a buffer to buffers that contain it or are computed from it in the same stride order.
    """

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.joined: nx.DiGraph = nx.DiGraph()
        own = [
            buffer
            for buffer in flow.graph.buffers
            if not (buffer.is_extern or buffer.is_removed or buffer.is_reduction or buffer.layout is None)
        ]
        self.joined.add_nodes_from(buffer.name for buffer in own)
        for buffer in own:
            if buffer.alias_of in self.joined:
                self.joined.add_edge(buffer.name, buffer.alias_of)
            for source in self.flow.sources(buffer):
                if source.name in self.joined and self._is_same(source, buffer):
                    self.joined.add_edge(source.name, buffer.name)

    @staticmethod
    def _is_same(source: BufferSource, buffer: Buffer) -> bool:
        if source.seen is None or buffer.layout is None:
            return False
        return layout_change(source.seen, buffer.layout) == "none"

    def balance(
        self, values: set[str], made: Mapping[str, Sequence[Conversion]], read: Mapping[str, Sequence[Conversion]]
    ) -> _Region:
        """Finds the conversions into and out of a region, and its pinned and foreign buffers."""
        flow, region = self.flow, _Region(values)
        for name in sorted(values, key=flow.position.__getitem__):
            for conversion in made.get(name, ()):
                if conversion.source_value not in values:
                    if name in region.leaving:
                        region.foreign.add(name)  # several operands are converted for one value: not followed further
                    region.leaving[name] = conversion
            region.entering += [(name, c) for c in read.get(name, ()) if c.value not in values]
            buffer = flow.buffers[name]
            is_needed = buffer.is_output or bool(flow.extern_readers(name))
            if is_needed or any(self._would_convert(name, reader) for reader in self._readers(name)):
                region.pinned.add(name)
            is_unread = not buffer.accesses and not self._parts(buffer)
            read_names = buffer.reads if is_unread else [source.name for source in flow.sources(buffer)]
            if any(self._is_foreign(buffer, source_name) for source_name in read_names):
                region.foreign.add(name)
        return region

    def _readers(self, name: str) -> list[Buffer]:
        return [self.flow.buffers[reader] for reader in self.flow.readers[name]]

    def _would_convert(self, name: str, reader: Buffer) -> bool:
        """Whether a loop that reads a buffer would have to convert the buffer if it were in channels-last."""
        if reader.is_reduction or reader.alias_of == name or name in self._parts(reader):
            return False  # a reduction makes a new, smaller value; a concatenation shares the memory
        if reader.problem is not None or reader.layout is None:
            return True
        if any(source.name == name and source.seen is not None for source in self.flow.sources(reader)):
            return False  # the reader belongs to the region, or its conversion is already counted
        if reader.is_removed:
            return any(self._would_convert(reader.name, further) for further in self._readers(reader.name))
        return not is_only_channels_last(reader.layout)

    def _parts(self, whole: Buffer) -> tuple[str, ...]:
        """The parts of a concatenation that has no loop of its own; empty for other buffers."""
        return whole.reads if not whole.accesses and self.flow.is_concatenation(whole) else ()

    def _is_foreign(self, buffer: Buffer, name: str) -> bool:
        """Whether a value from outside the region would have to be converted if the region were in channels-last."""
        if self.joined.has_edge(name, buffer.name):
            return False
        layout = self.flow.layout_of(name)
        if layout is None:
            return True
        if len(layout.shape) < len(layout_or_unknown(buffer).shape):
            return sum(size != 1 for size in layout.shape) > 1  # a vector with one value per channel fits any layout
        unread = BufferSource(name)  # its loop was not understood
        for source in [source for source in self.flow.sources(buffer) if source.name == name] or [unread]:
            if source.seen is not None:
                if self._is_same(source, buffer):
                    return True
            elif not is_only_channels_last(layout) and sum(size != 1 for size in layout.shape[1:]) > 1:
                return True
        return False

    def pairs(self, region: _Region) -> list[RedundantPair]:
        """The pairs of a region, as many as the balance allows; unfused conversions and shorter ways first."""
        count = region.removable_pair_count()
        saved = region.saved_bytes(self.flow.buffers, self._moves)
        if count == 0 or saved is None or saved <= 0:
            return []
        alone = [(name, conversion) for name, conversion in region.free if self._moves(conversion)]
        fused = [(name, conversion) for name, conversion in region.free if not self._moves(conversion)]
        reader_count = len({reader for name in region.values for reader in self.flow.readers[name]})
        pairs: list[RedundantPair] = []
        used: set[str] = set()
        for first, second, way in chain(*(region.ways(self.joined, starts, used) for starts in (alone, fused))):
            if len(pairs) == count:
                break
            parts = (first, *self._others(region, way, {*used, first.id}), second)
            timed = [part for part in parts if self._moves(part)]
            if timed:  # if all are fused into loops that compute, nothing would be saved
                used.update(part.id for part in parts)
                pairs.append(self._pair(region, reader_count, parts, timed, way))
        return pairs

    def _moves(self, conversion: Conversion) -> bool:
        """Whether the loop of a conversion only moves elements; in a loop that computes, a conversion costs nothing."""
        return self.flow.only_moves(self.flow.buffers[str(conversion.value)])

    def _others(self, region: _Region, way: Sequence[str], used: set[str]) -> list[Conversion]:
        """Conversions of further branches of a concatenation on the way; removing the pair removes them as well."""
        if not any(self.flow.is_concatenation(self.flow.buffers[name]) for name in way):
            return []
        above = nx.ancestors(self.joined, way[-1]) | {way[-1]}
        return [conversion for name, conversion in region.free if name in above and conversion.id not in used]

    def _pair(
        self,
        region: _Region,
        reader_count: int,
        parts: Sequence[Conversion],
        timed: Sequence[Conversion],
        way: Sequence[str],
    ) -> RedundantPair:
        *there, second = parts
        nodes = [node for node in (self.flow.node_of(self.flow.buffers[name]) for name in way) if node is not None]
        place = nodes[-1].location if nodes else None
        sources = ", ".join(str(part.source_value) for part in there)
        kept = region.kept() or ": no library call reads them, none is returned or changed"
        proof = (
            f"{sources} {'is' if len(there) == 1 else 'are'} converted into {', '.join(way)}, and {second.value} "
            f"converts back for {', '.join(second.required_by) or 'its readers'}; the {len(region.values)} buffers "
            f"between are read by {reader_count} generated loops, which read any layout{kept}"
        )
        between = tuple(distinct(n.target for n in nodes if base_name(n.target) not in ("clone", "_to_copy")))
        return _pair(parts, between, timed=timed, evidence="graph", location=place or second.location, proof=proof)


_OUT: tuple[ConversionDirection, ...] = ("from_blocked", "to_contiguous")
_INTO: tuple[ConversionDirection, ...] = ("to_blocked", "to_channels_last")
"""
Usual directions of the conversions of a library's results (``_OUT``) and of its inputs (``_INTO``). If the library
computes contiguous in a channels-last model, results are converted to channels-last and inputs to contiguous.
"""


_CERTAIN_PORTS = frozenset({"convolution", "convolution_backward", "mkldnn_convolution", "clone", "_to_copy"})
"""
Operations in which port ``input 1`` is also input 1 of the node. A fused binary operation is left out, because it has
one more argument in between. A copy in the model's own code (``.contiguous()``) is included, because it starts a region
like a convolution's result.
"""


def redundant_pairs(graphs: Sequence[Graph], conversions: Sequence[Conversion]) -> tuple[RedundantPair, ...]:
    """
    Finds the redundant pairs that Inductor's buffers prove alone, and pairs that need the kernel list as well.

    Args:
        conversions: Library conversions and, in eager mode, ATen's copies that convert, in the order in which they ran.
    """
    found: list[RedundantPair] = []
    for graph in graphs:
        flow = Flow(graph)
        found += buffer_pairs(flow)
        mine = [c for c in conversions if c.graph == graph.name and c.node is not None]
        if mine:
            operations = _Operations(flow)
            found += [pair for run in _runs(mine) for pair in operations.pairs_of_run(run)]
    return (*found, *_gradient_pairs(graphs))


def _gradient_pairs(graphs: Sequence[Graph]) -> Iterator[RedundantPair]:
    """
    Finds pairs of conversions of a weight's gradient: by the backward of a convolution, and back by autograd.

    Gradients of the same size and layout cannot be distinguished. They are paired only if there are equally many
    conversions of both kinds.
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
    proof = "the graph returns the gradient, and autograd copies it into the strides of its parameter"
    for layouts, firsts in there.items():
        if len(firsts) == len(back[layouts]):
            for parts in zip(firsts, back[layouts], strict=True):
                yield _pair(parts, (), timed=parts, evidence="kernels", location=parts[0].location, proof=proof)


def _runs(conversions: Sequence[Conversion]) -> list[list[Conversion]]:
    """
    Splits a graph's conversions into runs of the graph, because code after a graph break may run several times.

    All conversions of a node in one run are neighbours: if a node appears again after another node, it ran again.
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


_ByPort = dict[tuple[str, str], list["Conversion"]]


class _Operations:
    """
    The operations of a graph.

    Attributes:
        joined: Values whose layout matters (see ``_carries_layout``); edges are layout-agnostic operations.
        mixed: Results of layout-agnostic operations with a further operand whose layout cannot be followed.
    """

    def __init__(self, flow: Flow) -> None:
        self.flow, self.nodes = flow, flow.nodes
        self.joined: nx.DiGraph = nx.DiGraph()
        self.mixed: set[str] = set()
        self.joined.add_nodes_from(node.name for node in flow.graph.nodes if self._carries_layout(node))
        for node in flow.graph.nodes:
            if node.name in self.joined and self._keeps_layout(node):
                self.joined.add_edges_from((name, node.name) for name in node.inputs if name in self.joined)
                if any(self._is_unclear(self.nodes.get(name)) for name in node.inputs):
                    self.mixed.add(node.name)

    @staticmethod
    def _carries_layout(node: FxNode) -> bool:
        """Whether a value's layout matters: it is at least 4-D, and two or more sizes after the first are not 1."""
        shape = layout_or_unknown(node).shape
        return len(shape) >= 4 and sum(size != 1 for size in shape[1:]) > 1

    def _keeps_layout(self, node: FxNode) -> bool:
        """Whether an operation returns its result in the layout of its inputs."""
        if node.op != "call_function" or not is_layout_agnostic(node):
            return False
        # A convolution's result starts a new region. Further results of pooling and batch norm are in no region.
        is_item = base_name(node.target) == "getitem"
        return not is_item or not (node.result_index or is_convolution_target(self.nodes[node.inputs[0]].target))

    @staticmethod
    def _is_unclear(node: FxNode | None) -> bool:
        """Whether a tensor's layout is not known, or the tensor is 3-D, ``[C, H, W]``, with a layout that matters."""
        shape = layout_or_unknown(node).shape
        if node is None or node.layout is None:
            return node is None or node.dtype is not None
        return len(shape) == 3 and sum(size != 1 for size in shape) > 1

    def pairs_of_run(self, conversions: Sequence[Conversion]) -> list[RedundantPair]:
        by_port: _ByPort = defaultdict(list)
        for conversion in conversions:
            node = self.nodes.get(str(conversion.node))
            if node is not None and conversion.port is not None and base_name(node.target) in _CERTAIN_PORTS:
                by_port[node.name, conversion.port].append(conversion)
        pairs: list[RedundantPair] = []
        for values in nx.weakly_connected_components(self.joined):
            region = self._balance(values, by_port)
            pairs += _most(map(self._pairs, region.in_each_layout()))
        return pairs

    def _balance(self, values: set[str], by_port: _ByPort) -> _Region:
        """Finds the conversions into and out of a region, and its pinned and foreign values."""
        region = _Region(values)
        for name in sorted(values, key=self.flow.order.__getitem__):
            if name in self.mixed:
                region.foreign.add(name)
            if not self.joined.in_degree(name):
                node, producer, index = self.nodes[name], name, 0
                if base_name(node.target) == "getitem" and node.inputs:
                    producer, index = node.inputs[0], node.result_index or 0
                made = _of_either_way(by_port.get((producer, f"output {index}"), ()), _OUT, "to_channels_last")
                if len(made) == 1:
                    region.leaving[name] = made[0]
                else:
                    region.foreign.add(name)
            self._add_readers(region, name, by_port)
        return region

    def _add_readers(self, region: _Region, name: str, by_port: _ByPort) -> None:
        if name in self.flow.outputs:
            region.pinned.add(name)
        for reader, position in self.flow.node_readers[name]:
            if base_name(reader.target) == "getitem" and reader.result_index:
                continue  # indices of a pooling or statistics of a batch norm: another value
            if reader.op == "output":
                region.pinned.add(name)
            elif is_convolution_target(reader.target):
                here = by_port.get((reader.name, f"input {position}"), ())
                entering = _of_either_way(here, _INTO, "to_contiguous")
                region.entering += [(name, conversion) for conversion in entering]
                if not entering:
                    region.pinned.add(name)
            elif not self.joined.has_edge(name, reader.name) and not reads_any_layout(reader):
                region.pinned.add(name)

    def _pairs(self, region: _Region) -> list[RedundantPair]:
        """The pairs of a region, as many as the balance of conversions and bytes allows; the shortest way first."""
        count, saved = region.removable_pair_count(), region.saved_bytes(self.nodes, lambda _: True)
        if count == 0 or saved is None:
            return []
        pairs: list[RedundantPair] = []
        used: set[str] = set()
        for first, second, names in region.ways(self.joined, region.free, used):
            way = [self.nodes[name] for name in names[1:]]
            moved = (first.bytes_moved or 0) + (second.bytes_moved or 0)
            if moved > saved or not _undo_each_other(first, second, way):
                continue
            saved -= moved
            used.update((first.id, second.id))
            pairs.append(_node_pair(region, first, second, way))
            if len(pairs) == count:
                break
        return pairs


def _of_either_way(
    conversions: Sequence[Conversion], usual: Sequence[ConversionDirection], other: ConversionDirection
) -> list[Conversion]:
    """The conversions in the ``usual`` directions, or else the conversions in the ``other`` direction."""
    found = [conversion for conversion in conversions if conversion.direction in usual]
    return found or [conversion for conversion in conversions if conversion.direction == other]


def _undo_each_other(first: Conversion, second: Conversion, way: Sequence[FxNode]) -> bool:
    """Whether the second conversion reverses the first. Sizes may differ only around a pool, pad or upsample."""
    between, read = first.target, second.source
    if not same_format(first.source, second.target) or not same_format(between, read):
        return False
    names = " ".join(base_name(node.target) for node in way)
    is_one_size = between is not None and read is not None and between.shape == read.shape
    return is_one_size or any(word in names for word in ("pool", "pad", "upsample"))


def _node_pair(region: _Region, first: Conversion, second: Conversion, way: Sequence[FxNode]) -> RedundantPair:
    between = tuple(node.target for node in way if base_name(node.target) not in ALIASES)
    path = f"through {', '.join(distinct(between))}" if between else "directly"
    proof = (
        f"{first.node}'s result goes {path} into {second.node}; the {len(region.values)} values of this region are "
        f"read by layout-agnostic operations and convolutions{region.kept()}"
    )
    parts, place = (first, second), second.location or first.location
    return _pair(parts, between, timed=parts, evidence="kernels", location=place, proof=proof)
