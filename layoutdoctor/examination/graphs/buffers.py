"""
The data flow between Inductor's buffers: the buffers that each buffer reads, and the layouts in which it reads them.

Fusion keeps some buffers in registers. A loop that reads such a buffer in the buffer's own layout counts as a reader of
the buffer's sources.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from layoutdoctor.diagnosis import Buffer, BufferRead, FxNode, Graph, Layout
from layoutdoctor.diagnosis.layout import (
    CHANNELS_LAST_BY_RANK,
    dense_stride,
    known_numbers,
    strided_layout,
)
from layoutdoctor.examination.graphs.join import is_convolution_target
from layoutdoctor.examination.graphs.layout_agnostic import base_name


@dataclass(frozen=True)
class _Run:
    """One dimension of a tensor in memory: ``count`` indices, each ``step`` elements apart."""

    dimension: int
    step: int
    count: int


def is_relayout(
    source_shape: Sequence[int],
    source_stride: Sequence[int],
    target_shape: Sequence[int],
    seen_stride: Sequence[int],
) -> bool:
    """
    Whether a load with ``seen_stride`` over the target's dimensions reads the whole source and keeps its dimensions.

    True for a permuted view, and for a flattened or unflattened view of neighbouring dimensions. Also True for a source
    whose first dimension is batch and space together, such as a matrix product's result seen as ``[N, C, H, W]``. False
    for a part of the source, a broadcast, a channel shuffle, a pixel shuffle, windows and attention heads.
    """
    if math.prod(source_shape) != math.prod(target_shape):
        return False
    own, seen = _runs(source_shape, source_stride), _runs(target_shape, seen_stride)
    if own is None or seen is None:
        return False
    large = [dimension for dimension, size in enumerate(target_shape) if size != 1]
    for run in own:
        pieces = _pieces(run, seen)
        if pieces is None or not _keeps_together(run.dimension, pieces, large):
            return False
    return _covered(own) == _covered(seen)


def _runs(shape: Sequence[int], stride: Sequence[int]) -> list[_Run] | None:
    """One run for each dimension larger than 1, outermost first; None if runs overlap or a stride is not positive."""
    runs = [
        _Run(dimension, step, size)
        for dimension, (size, step) in enumerate(zip(shape, stride, strict=True))
        if size != 1
    ]
    runs.sort(key=lambda run: -run.step)
    if any(run.step <= 0 for run in runs):
        return None
    overlap = any(outer.step < inner.step * inner.count for outer, inner in pairwise(runs))
    return None if overlap else runs


def _pieces(run: _Run, seen: Sequence[_Run]) -> list[int] | None:
    """The load's dimensions that step through one source dimension, outermost first; None if strides do not fit."""
    end = run.step * run.count
    pieces: list[int] = []
    for other in seen:
        low, high = max(run.step, other.step), min(end, other.step * other.count)
        if low >= high:
            continue
        if low % run.step or low % other.step:
            return None
        pieces.append(other.dimension)
    return pieces


def _keeps_together(dimension: int, pieces: Sequence[int], large: Sequence[int]) -> bool:
    """
    Whether ``pieces``, the load's dimensions that step through one source dimension, only split this dimension.

    Dimensions of size 1 do not count. True if the pieces are neighbours in order. Also True if the source's first
    dimension is batch and space together. Then the load's first dimension is the batch, and the other pieces are the
    spatial dimensions of an image, with the channels in between. Attention heads are not mistaken for the batch, even
    if the batch size is 1.
    """
    places = [large.index(piece) for piece in pieces]
    follow_each_other = all(after == before + 1 for before, after in pairwise(places))
    is_batch_and_space = dimension == 0 and pieces[:1] == [0] and places == sorted(places) and len(large) <= 5
    return follow_each_other or is_batch_and_space


def _covered(runs: Sequence[_Run]) -> list[tuple[int, int]]:
    """Merges runs that continue each other; returns ``(step, end)`` of each in elements, the smallest step first."""
    merged: list[tuple[int, int]] = []
    for run in sorted(runs, key=lambda run: run.step):
        if merged and merged[-1][1] == run.step:
            merged[-1] = (merged[-1][0], run.step * run.count)
        else:
            merged.append((run.step, run.step * run.count))
    return merged


CASTS = frozenset({"to_dtype", "to_dtype_bitcast"})
"""Operations of a loop body that only change the dtype of an element."""


@dataclass(frozen=True)
class BufferSource:
    """
    A buffer or graph input that a buffer reads, with the layout in which it is read.

    Attributes:
        seen: The source's layout for its reader; None if unknown, or if the read omits, repeats or shuffles elements.
        is_part: Whether the source fills only a part of the reading buffer, as in a concatenation.
    """

    name: str
    seen: Layout | None = None
    is_part: bool = False


class Flow:
    """
    The data flow of one graph, between its nodes and between its buffers; an eager graph has no buffers.

    Attributes:
        inputs: The nodes that are graph inputs, such as weights.
        order: Index of each node in the graph.
        position: Index of each buffer in scheduled order.
        readers: Names of the buffers that are computed from each buffer or graph input.
        node_readers: The nodes that read each node, each with the position of this input among the reader's inputs.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.buffers = {buffer.name: buffer for buffer in graph.buffers}
        self._removed = {buffer.name: buffer for buffer in graph.buffers if buffer.is_removed}
        self.position = {buffer.name: position for position, buffer in enumerate(graph.buffers)}
        self.nodes = {node.name: node for node in graph.nodes}
        self.inputs = {node.name: node for node in graph.nodes if node.op in ("placeholder", "get_attr")}
        self.outputs = set(graph.output_names)
        self.weights = {name for name, node in self.inputs.items() if node.tensor == "weight"}
        self.order = {node.name: position for position, node in enumerate(graph.nodes)}
        self.readers: dict[str, list[str]] = defaultdict(list)
        self.node_readers: dict[str, list[tuple[FxNode, int]]] = defaultdict(list)
        self._sources: dict[str, tuple[BufferSource, ...]] = {}
        for buffer in graph.buffers:
            for name in dict.fromkeys((*buffer.reads, *(read.name for read in buffer.accesses))):
                self.readers[name].append(buffer.name)
        for node in graph.nodes:
            for index, name in enumerate(node.inputs):
                self.node_readers[name].append((node, index))

    def layout_of(self, name: str) -> Layout | None:
        """Layout of a buffer or graph input; None if not known."""
        value = self.buffers.get(name) or self.inputs.get(name)
        return None if value is None else value.layout

    def dtype_of(self, name: str) -> str | None:
        """Element type of a buffer or graph input; None if not known."""
        value = self.buffers.get(name) or self.inputs.get(name)
        return None if value is None else value.dtype

    def nodes_of(self, buffer: Buffer) -> list[FxNode]:
        """The FX nodes that a buffer names: the node whose value it holds, and its origins."""
        names = dict.fromkeys((str(buffer.source_node), *buffer.origins))
        return [self.nodes[name] for name in names if name in self.nodes]

    def only_moves(self, buffer: Buffer) -> bool:
        """Whether a loop, with all loops fused into it, only moves or casts elements; False for a library call."""
        if computes(buffer) or buffer.is_extern:
            return False
        return all(self.only_moves(self._removed[read.name]) for read in buffer.accesses if read.name in self._removed)

    def sources(self, buffer: Buffer) -> tuple[BufferSource, ...]:
        """The sources that the loop of a buffer reads, directly or through buffers that fusion left in registers."""
        if buffer.name not in self._sources:
            self._sources[buffer.name] = tuple(dict.fromkeys(self._resolved(buffer)))
        return self._sources[buffer.name]

    def _resolved(self, buffer: Buffer) -> Iterator[BufferSource]:
        for read in buffer.accesses:
            inner = self._removed.get(read.name)
            if inner is None:
                yield self._source(buffer, read)
            elif _sees_itself(inner, read):
                # The loop reads the inner buffer element by element, so both see the sources in the same layouts.
                yield from self.sources(inner)
            else:
                yield BufferSource(read.name)

    def _source(self, buffer: Buffer, read: BufferRead) -> BufferSource:
        layout = self.layout_of(read.name)
        own, target = known_numbers(layout), known_numbers(buffer.layout)
        if own is None or target is None or read.stride is None:
            return BufferSource(read.name)
        if read.is_masked:
            is_part = self._is_part(buffer, read.stride, own, target)
            return BufferSource(read.name, layout if is_part else None, is_part)
        if read.offset != 0 or not is_relayout(own[0], own[1], target[0], read.stride):
            return BufferSource(read.name)
        return BufferSource(read.name, _seen_layout(own, target[0], read.stride))

    def _is_part(self, buffer: Buffer, stride: Sequence[int], own: _Known, target: _Known) -> bool:
        """Whether a concatenation's loop reads one of the branches: the strides are equal, one size differs."""
        if len(own[0]) != len(target[0]) or not self.is_concatenation(buffer):
            return False
        shorter = sum(one != other for one, other in zip(own[0], target[0], strict=True))
        return shorter == 1 and _has_steps(stride, own)

    def is_concatenation(self, buffer: Buffer) -> bool:
        """Whether a buffer holds a concatenation, whatever writes it."""
        return any(base_name(node.target) == "cat" for node in self.nodes_of(buffer))

    def node_of(self, buffer: Buffer) -> FxNode | None:
        """
        The FX node that gives a buffer its line and module.

        The first of these that exists:
        - the node whose value the buffer holds, unless it is a graph input;
        - the node of the library call that reads the buffer, if the buffer only prepares the call's input;
        - the last origin with a line or module, if possible neither a convolution nor a reader of the buffer;
        - the last origin. None if there are no origins.
        """
        source = self.nodes.get(str(buffer.source_node))
        if source is not None and source.name not in self.inputs:
            return source
        readers = self.required_by(buffer.name)
        if source is not None and readers:  # a graph input, prepared for the library call that reads it
            return self.nodes[readers[0]]
        origins = [self.nodes[name] for name in buffer.origins if name in self.nodes]
        wanted = [node for node in origins if node.name in readers and self.only_moves(buffer)]
        own = [
            node for node in origins if node.name not in readers and not is_convolution_target(node.target)
        ] or origins
        placed = [node for node in own if node.location is not None or node.module is not None]
        return self._last(wanted or placed or origins)

    def _last(self, nodes: Sequence[FxNode]) -> FxNode | None:
        return max(nodes, key=lambda node: self.order[node.name], default=None)

    def required_by(self, name: str) -> tuple[str, ...]:
        """Names of the FX nodes of the library calls that read a buffer, or the larger buffer that contains it."""
        nodes = (self.extern_node(self.buffers[reader]) for reader in self.extern_readers(name))
        return tuple(dict.fromkeys(node.name for node in nodes if node is not None))

    def extern_readers(self, name: str) -> list[str]:
        """Buffers of the library calls and templates that read a buffer, or the larger buffer that contains it."""
        buffer = self.buffers.get(name)
        readers = [*self.readers[name], *(self.readers[str(buffer.alias_of)] if buffer is not None else ())]
        return [reader for reader in readers if is_call(self.buffers[reader])]

    def extern_node(self, buffer: Buffer) -> FxNode | None:
        """
        The FX node of a library call: its source node, or else one of its origins; None if there is no origin.

        The last origin with the call's operator is taken, because origins include nodes computed for the call. If no
        origin has this operator, the last origin is taken. For a convolution, it is the last origin that convolves,
        because later operations may be fused into the call.
        """
        source = self.nodes.get(str(buffer.source_node))
        if source is not None:
            is_item = not buffer.is_extern and base_name(source.target) == "getitem"  # an item of a template's results
            return self.nodes.get(source.inputs[0], source) if is_item else source
        kernel = str(buffer.kernel).removeprefix("torch.ops.")
        origins = [self.nodes[name] for name in buffer.origins if name in self.nodes]
        own = [node for node in origins if node.target == kernel]
        convolutions = [node for node in origins if "conv" in kernel and is_convolution_target(node.target)]
        return self._last(own or convolutions or origins)


_Known = tuple[tuple[int, ...], tuple[int, ...]]


def is_call(buffer: Buffer) -> bool:
    """Whether a buffer is written by a library call, or by an Inductor template without loops, as flex attention is."""
    is_template = buffer.launch is not None and bool(buffer.reads) and not buffer.accesses and buffer.problem is None
    return buffer.is_extern or is_template


def computes(buffer: Buffer) -> bool:
    """Whether a buffer's loop does more than move and cast elements; False for a library call."""
    return not buffer.is_extern and (buffer.is_reduction or not CASTS.issuperset(buffer.operations))


def _sees_itself(buffer: Buffer, read: BufferRead) -> bool:
    known = known_numbers(buffer.layout)
    if known is None or read.stride is None or read.offset != 0 or len(read.stride) != len(known[0]):
        return False
    return _has_steps(read.stride, known)


def _has_steps(stride: Sequence[int], own: _Known) -> bool:
    """Whether strides equal a source's own strides. Strides of size-1 dimensions do not count."""
    return all(size == 1 or seen == step for size, seen, step in zip(own[0], stride, own[1], strict=False))


def _seen_layout(own: _Known, shape: tuple[int, ...], stride: tuple[int, ...]) -> Layout:
    """The layout in which a reader sees a source."""
    if own[0] == shape and _has_steps(stride, own):
        return strided_layout(*own)
    # A size-1 dimension gets the stride that torch would give it: size * stride of the next dimension larger than 1.
    kept, filler = list(stride), 1
    for dimension in reversed(range(len(shape))):
        if shape[dimension] == 1:
            kept[dimension] = filler
        else:
            filler = shape[dimension] * stride[dimension]
    return strided_layout(shape, kept)


def densified(layout: Layout) -> Layout:
    """
    The dense layout in the same stride order, which shows the memory format of a part of a larger buffer.

    A layout that satisfies a memory format, or has symbolic or no strides, is returned unchanged. A dimension of size 1
    keeps its position in the order, because torch also looks at the stride of this dimension.
    """
    known = known_numbers(layout)
    if layout.memory_formats or known is None:
        return layout
    shape, stride = known
    places = sorted(range(len(shape)), key=lambda dimension: (-stride[dimension], shape[dimension] == 1))
    return strided_layout(shape, dense_stride(shape, places))


def is_only_channels_last(layout: Layout | None) -> bool:
    """Whether a 4-D or 5-D layout is channels-last but not also contiguous; gaps in memory do not count."""
    return _only_format(layout) in CHANNELS_LAST_BY_RANK.values()


def is_only_contiguous(layout: Layout | None) -> bool:
    """Whether a 4-D or 5-D layout is contiguous but not also channels-last; gaps in memory do not count."""
    return _only_format(layout) == "contiguous_format"


def _only_format(layout: Layout | None) -> str | None:
    if layout is None or len(layout.shape) not in CHANNELS_LAST_BY_RANK:
        return None
    formats = densified(layout).memory_formats
    return formats[0] if len(formats) == 1 else None


def same_format(one: Layout | None, other: Layout | None) -> bool:
    """Whether two known layouts have the same blocked format, a memory format in common, or equal dense layouts."""
    if one is None or other is None:
        return False
    if one.is_blocked or other.is_blocked:
        return one.format == other.format
    first, second = densified(one), densified(other)
    return bool(set(first.memory_formats) & set(second.memory_formats)) or first == second
