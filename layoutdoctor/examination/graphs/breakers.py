"""
Layout breakers: operations that end a channels-last region although the operations around them could stay in it.

The search begins at a conversion that a breaker causes: a value converted back into channels-last, or a tensor made
contiguous. From there, the search goes up (towards the graph's inputs) to the operation that was given channels-last
and returned another layout. This operation may be of any library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis import Buffer, Conversion, FxNode, Graph, Layout, LayoutBreaker, RedundantPair
from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK, dispatched_format, known_numbers, stride_order
from layoutdoctor.examination.graphs.buffers import (
    densified,
    is_call,
    is_only_channels_last,
    is_only_contiguous,
)
from layoutdoctor.examination.graphs.join import is_convolution_target
from layoutdoctor.examination.graphs.layout_agnostic import TURNING, VIEWS, base_name
from layoutdoctor.examination.layouts import layout_or_unknown
from layoutdoctor.units import sum_if_all_known

if TYPE_CHECKING:
    from layoutdoctor.examination.graphs.buffers import Flow


def compiled_breakers(flow: Flow, conversions: Sequence[Conversion]) -> tuple[LayoutBreaker, ...]:
    """Finds the breakers of a compiled graph."""
    found: dict[str, LayoutBreaker] = {}
    if flow.graph.direction != "backward":
        # contiguous: conversions whose result is read by no library call except calls that return contiguous.
        returned = {c.id: [flow.layout_of(name) for name in flow.extern_readers(str(c.value))] for c in conversions}
        contiguous = [c for c in conversions if all(map(is_only_contiguous, returned[c.id]))]
        found = _ends_for_convolutions(_Nodes(flow), contiguous)
    known = {id_ for breaker in found.values() for id_ in breaker.conversions}
    values = _Buffers(flow, conversions)
    for conversion in conversions:
        source, value = str(conversion.source_value), str(conversion.value)
        if conversion.role != "interior" or conversion.tensor == "weight" or conversion.owner == "user":
            continue
        if conversion.direction == "to_channels_last":
            for name, given in _ends_above(values, source):
                _add(found, values.breaker(name, given, (*values.ways_out(name), conversion)))
        is_between = value in values.read_by_convolutions and source in values.made_by_convolutions
        is_open = conversion.direction == "to_contiguous" and conversion.id not in known
        if is_open and is_between and conversion.source is not None:
            _add(found, values.breaker(value, conversion.source, (conversion,)))
    # Other calls of the same operators: the tensors that they read are converted too, even if no convolution follows.
    called = {flow.nodes[name].target for name in found if name in values.made_by_calls}
    for node, name in values.made_by_calls.items():
        own, out = values.given(name), values.ways_out(name)
        if own is not None and out and flow.nodes[node].target in called:
            _add(found, values.breaker(name, own, out))
    return tuple(found.values())


def eager_breakers(flow: Flow, conversions: Sequence[Conversion]) -> tuple[LayoutBreaker, ...]:
    """Finds the breakers of an eager iteration, from the conversions in its copies and inside libraries."""
    values, nodes = _Nodes(flow), flow.nodes
    mine_and_weights = [c for c in conversions if c.graph == flow.graph.name and c.node in nodes]
    mine = [c for c in mine_and_weights if c.tensor != "weight"]
    outward = {
        str(c.node): c
        for c in mine
        if c.direction == "to_contiguous" and not is_convolution_target(nodes[str(c.node)].target)
    }
    found = _ends_for_convolutions(values, mine_and_weights)
    going_on = _going_on(flow.graph)
    for name, conversion in outward.items():
        given = values.given(name)
        if given is not None and values.is_contiguous(name) and name in going_on and conversion.owner != "user":
            _add(found, values.breaker(name, given, (conversion,)))
    for conversion in mine:
        node = nodes[str(conversion.node)]
        is_read = conversion.port == "input 0" and is_convolution_target(node.target)
        if conversion.direction != "to_channels_last" or not is_read:
            continue
        for name, given in _ends_above(values, node.inputs[0]):
            paid = [*filter(None, (outward.get(name),)), conversion]
            if paid[0].owner != "user" or len(paid) == 1:
                _add(found, values.breaker(name, given, paid))
    return tuple(found.values())


def _add(found: dict[str, LayoutBreaker], breaker: LayoutBreaker | None) -> None:
    if breaker is not None:
        known = found.get(breaker.node, breaker)
        ids = tuple(dict.fromkeys((*known.conversions, *breaker.conversions)))
        found[breaker.node] = msgspec.structs.replace(known, conversions=ids)


def _ends_for_convolutions(values: _Nodes, conversions: Iterable[Conversion]) -> dict[str, LayoutBreaker]:
    """
    Finds breakers that make convolutions of a channels-last model run in contiguous; the keys are the breakers' nodes.

    The weights and inputs of such convolutions are converted to contiguous. The breaker may be far above, because a
    contiguous value stays contiguous through convolutions. A convolution that loses the format is itself the breaker.
    """
    found: dict[str, LayoutBreaker] = {}
    for conversion in conversions:
        if conversion.direction != "to_contiguous" or conversion.owner == "user" or conversion.source_value is None:
            continue  # without a source value, the converted tensor may be the convolution's result
        names = [name for name in conversion.required_by if name in values.nodes and values.is_call(name)]
        for name, given in (end for one in names for end in _ends_above(values, one, values.given_at_least)):
            _add(found, values.breaker(name, given, (conversion,)))
    return found


def _ends_above(
    values: _Buffers | _Nodes, name: str, given_to: Callable[[str], Layout | None] | None = None
) -> list[tuple[str, Layout]]:
    """
    Finds the nearest contiguous values above ``name`` that were computed from channels-last, each with the lost layout.

    The search goes up through contiguous values and stops at an end (``values.is_end``). Values beyond the nearest
    values are breakers for other conversions; an example is a sum that runs through the whole network.

    Args:
        given_to: Replacement for ``values.given``. With it, the search does not stop at an end.
    """
    front, seen = [name], {name}
    while front:
        found: list[tuple[str, Layout]] = []
        further: list[str] = []
        for one in front:
            # This also stops the search at most values of another rank, such as [N, H * W, C].
            if not values.is_contiguous(one):
                continue
            given = (given_to or values.given)(one)
            if given is not None:
                # A sum of a channels-last value and a value that became contiguous further up is not the breaker.
                losing = [] if values.is_call(one) else _losing(values, one)
                found += losing or [(one, given)]
            elif given_to is not None or not values.is_end(one):
                further += [other for other in dict.fromkeys(values.followed(one)) if other not in seen]
                seen.update(further)
        if found:
            return found
        front = further
    return []


def _losing(values: _Buffers | _Nodes, name: str) -> list[tuple[str, Layout]]:
    """Contiguous values above ``name`` that lost channels-last before ``name`` did, each with the lost layout."""

    def above(one: str) -> Sequence[str]:
        is_end = not values.is_contiguous(one) or values.is_call(one) or values.given(one) is not None
        return () if is_end else values.reads(one)

    lost = [one for one in _reached(values.reads(name), above) if values.is_contiguous(one)]
    return [(one, given) for one in lost if (given := values.given(one)) is not None]


def _reached(starts: Iterable[str], further: Callable[[str], Iterable[str]]) -> list[str]:
    """The starts, and all names that are reached from them by ``further``."""
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
        read_by_convolutions: Buffers that a convolution reads, directly or through contiguous buffers of loops.
        made_by_convolutions: Convolution results, and buffers that loops compute from them via channels-last buffers.
        made_by_calls: The last contiguous result of each library call that is no convolution, by the call's node.
    """

    def __init__(self, flow: Flow, conversions: Sequence[Conversion]) -> None:
        self.flow = flow
        self._flattened = set[str]()
        for buffer in flow.graph.buffers:
            if self._is_flattened(buffer):
                self._flattened.add(buffer.name)
        self._written: dict[str, list[Conversion]] = {}
        for conversion in conversions:
            if conversion.direction != "to_channels_last":
                self._written.setdefault(str(conversion.value), []).append(conversion)
        convolutions = [name for name in flow.buffers if self._is_convolution(name)]
        required = (
            n for n in flow.buffers if any(is_convolution_target(flow.nodes[m].target) for m in flow.required_by(n))
        )
        self.read_by_convolutions = set(_reached(required, self._above))
        self.made_by_convolutions = set(_reached(convolutions, self._below))
        images = (buffer for buffer in flow.graph.buffers if self.is_contiguous(buffer.name))
        results = ((flow.extern_node(self._call_of(buffer)), buffer.name) for buffer in images if is_call(buffer))
        self.made_by_calls = {
            node.name: name for node, name in results if node is not None and not is_convolution_target(node.target)
        }

    def _is_convolution(self, name: str) -> bool:
        node = self.flow.extern_node(self.flow.buffers[name]) if self.is_call(name) else None
        return node is not None and is_convolution_target(node.target)

    def _is_other_call(self, name: str) -> bool:
        return self.is_call(name) and not self._is_convolution(name)

    def _above(self, name: str) -> list[str]:
        is_followed = not self.is_call(name) and self.is_contiguous(name)
        return [other for other in self.reads(name) if other in self.flow.buffers] if is_followed else []

    def _below(self, name: str) -> list[str]:
        is_followed = is_only_channels_last(self.flow.layout_of(name))
        return [reader for reader in self.flow.readers[name] if not self.is_call(reader)] if is_followed else []

    def is_contiguous(self, name: str) -> bool:
        """Whether a buffer is contiguous but not channels-last, or holds an image flattened in contiguous order."""
        return name in self._flattened or (name in self.flow.buffers and is_only_contiguous(self.flow.layout_of(name)))

    def _is_flattened(self, buffer: Buffer) -> bool:
        """
        Whether a buffer holds a channels-last image that a loop flattened in contiguous order, such as [N, C * H * W].
        Also True for the result of a library call that reads such a buffer and returns the same layout.
        """
        layout = layout_or_unknown(buffer)
        if len(layout.shape) in CHANNELS_LAST_BY_RANK or "contiguous_format" not in layout.memory_formats:
            return False
        if buffer.is_extern:
            flattened = self._flattened.intersection(self.reads(buffer.name))
            return any(self.flow.layout_of(read) == layout for read in flattened)
        images = (self.flow.layout_of(source.name) for source in self.flow.sources(buffer) if source.seen is None)
        given = [image.element_count for image in images if image is not None and is_only_channels_last(image)]
        return layout.element_count in given

    def is_call(self, name: str) -> bool:
        """Whether a library call or template writes a buffer; its layout then does not show the inputs' layouts."""
        return is_call(self.flow.buffers[name])

    def is_end(self, name: str) -> bool:
        """Whether the search ends at a buffer, because the origin of its layout is not known."""
        return self.is_call(name) and name not in self._flattened

    def reads(self, name: str) -> Sequence[str]:
        """Names of values that a buffer is computed from; for one of a call's several results, the call's inputs."""
        return self._call_of(self.flow.buffers[name]).reads

    followed = reads

    def _call_of(self, buffer: Buffer) -> Buffer:
        """The call that returns a buffer as one of several results; the buffer itself if there is no such call."""
        whole = self.flow.buffers.get(buffer.reads[0]) if buffer.is_extern and len(buffer.reads) == 1 else None
        return whole if whole is not None and whole.is_extern and whole.layout is None else buffer

    def given(self, name: str) -> Layout | None:
        """
        The layout of the first channels-last value that a buffer is computed from; None if there is no such value.

        The value may be read whole, in part or by an index table. A convolution's weight does not count.

        For a library call other than a convolution, values that the compiler converted for the call count too. A value
        must have the result's rank and batch size, or else as many elements as the result, because a matrix product of
        tokens returns a matrix. In a backward graph, the layout for these calls is always None.
        """
        if not self._is_other_call(name):
            names = [read for read in self.reads(name) if not (self.is_call(name) and self._is_weight(read))]
            layouts = [self.flow.layout_of(read) for read in names]
        elif self.flow.graph.direction == "backward":
            return None
        else:
            sources = [*self.reads(name), *(str(c.source_value) for c in self.ways_out(name) if c.owner != "user")]
            layouts = [layout for layout in map(self.flow.layout_of, sources) if self._is_like(layout, name)]
        return next((layout for layout in layouts if is_only_channels_last(layout)), None)

    def _is_like(self, layout: Layout | None, name: str) -> bool:
        own = self.flow.buffers[name].layout
        if layout is None or own is None:
            return False
        is_image = len(layout.shape) == len(own.shape) and layout.shape[0] == own.shape[0]
        return is_image or layout.element_count == own.element_count

    def ways_out(self, name: str) -> list[Conversion]:
        """Conversions out of channels-last that write a buffer, or write inputs of a call that is no convolution."""
        ends = self.reads(name) if self._is_other_call(name) else [name]
        return [conversion for end in ends for conversion in self._written.get(end, ())]

    def _is_weight(self, name: str) -> bool:
        buffer = self.flow.buffers.get(name)
        if buffer is None:
            return name in self.flow.weights
        return bool(buffer.reads) and all(map(self._is_weight, buffer.reads))

    def breaker(self, name: str, given: Layout, conversions: Sequence[Conversion]) -> LayoutBreaker | None:
        buffer = self.flow.buffers[name]
        is_named = self._is_other_call(name)
        node = self.flow.extern_node(self._call_of(buffer)) if is_named else self.flow.node_of(buffer)
        if buffer.alias_of in self.flow.buffers:  # a branch has the layout of the concatenation
            node = self.flow.node_of(self.flow.buffers[str(buffer.alias_of)]) or node
        if node is None:
            return None
        returned = layout_or_unknown(buffer)
        who = "the library returns" if buffer.is_extern else "Inductor writes"
        reason = f"it is given {_words(given)}; {'it returns' if is_named else who} its result in {_words(returned)}"
        if is_named and self.ways_out(name):
            needed = _words(self.ways_out(name)[0].target or returned)
            reason = f"it needs {needed} (as traced), gets {_words(given)} and returns {_words(returned)}"
            if not buffer.is_extern:
                reason = f"its input is in {_words(given)}; Inductor converts this input to {needed} for the operation"
        readers = [self.flow.nodes[one] for c in conversions if c.value == name for one in c.required_by]
        if not buffer.is_extern and readers and not is_convolution_target(readers[0].target):  # written for this call
            node, reason = readers[0], f"it needs {_words(returned)} (as traced) and is given {_words(given)}"
        return _breaker(node, given, returned, conversions, reason)


class _Nodes:
    """
    The values of an eager iteration, or of a compiled graph as it was traced.

    Attributes:
        region: Layouts, by name, of the channels-last values that come from a convolution or from the caller. A view in
            more dimensions, such as [T, B, C, H, W], has the layout of its image. Values that are channels-last only
            because a view permutes a contiguous tensor are left out. A value permuted to [N, H, W, C], as for a norm of
            its channels, is left out until it is permuted back.
    """

    def __init__(self, flow: Flow) -> None:
        self.nodes = flow.nodes
        self.who = "eager" if flow.graph.name == "eager" else "it"
        self.region: dict[str, Layout] = {}
        self._turned = set[str]()
        for node in flow.graph.nodes:
            first = node.inputs[0] if node.inputs else ""
            turns, comes_back = base_name(node.target) in TURNING, first in self._turned
            begins = self.is_call(node.name) or (node.op == "placeholder" and node.tensor == "activation")
            above = next((self.region[name] for name in node.inputs if name in self.region), None)
            is_part = begins or above is not None or (turns and comes_back)
            if is_part and is_only_channels_last(node.layout):
                self.region[node.name] = layout_or_unknown(node)
            elif above is not None and (_is_split(node.layout) or _is_taken_apart(node)):
                self.region[node.name] = above
            elif is_only_contiguous(node.layout) and (comes_back or (turns and first in self.region)):
                self._turned.add(node.name)

    def is_contiguous(self, name: str) -> bool:
        node = self.nodes.get(name)
        if node is None or node.op != "call_function" or name in self._turned:
            return False
        layout = layout_or_unknown(node)
        is_copied = len(layout.shape) > _MOST_DIMENSIONS and "contiguous_format" in layout.memory_formats
        return is_copied or is_only_contiguous(layout)

    def is_call(self, name: str) -> bool:
        return is_convolution_target(self.nodes[name].target)

    is_end = is_call

    def reads(self, name: str) -> Sequence[str]:
        return self.nodes[name].inputs

    def followed(self, name: str) -> Sequence[str]:
        """The inputs that decide the layout of a node's result: for a convolution only the first."""
        return self.reads(name)[:1] if self.is_call(name) else self.reads(name)

    def given(self, name: str) -> Layout | None:
        return next((self.region[read] for read in self.followed(name) if read in self.region), None)

    def given_at_least(self, name: str) -> Layout | None:
        """The result of ``given``, or else a convolution's input layout if this layout fits channels-last, or None."""
        given = self.given(name)
        if given is not None or not self.is_call(name):
            return given
        layout = layout_or_unknown(self.nodes.get(next(iter(self.followed(name)), "")))
        return layout if CHANNELS_LAST_BY_RANK.get(len(layout.shape)) in layout.memory_formats else None

    def breaker(self, name: str, given: Layout, conversions: Sequence[Conversion]) -> LayoutBreaker:
        node = self.nodes[name]
        others = [other for other in self.reads(name) if self.is_contiguous(other)]
        beside = f" and, from {_op(self.nodes[others[0]])}, contiguous_format" if others else ""
        last: str = next(one for one in densified(given).memory_formats if one != "contiguous_format")
        if dispatched_format(given.shape, given.stride) == "contiguous_format":
            last += " with strides that are taken for contiguous_format"
        returned = layout_or_unknown(node)
        reason = f"it is given {last}{beside}; {self.who} returns {_words(returned)}"
        return _breaker(node, given, returned, conversions, reason)


def _is_taken_apart(node: FxNode) -> bool:
    """Whether a node is a non-contiguous view of more than 5 dimensions; a pixel shuffle makes one before it copies."""
    layout = layout_or_unknown(node)
    is_view = len(layout.shape) > _MOST_DIMENSIONS and base_name(node.target) in VIEWS
    return is_view and "contiguous_format" not in layout.memory_formats


_MOST_DIMENSIONS = max(CHANNELS_LAST_BY_RANK)


def _is_split(layout: Layout | None) -> bool:
    """Whether a 5-D layout is the layout of channels-last frames with two batch dimensions: [T, B, C, H, W]."""
    known = known_numbers(layout)
    if known is None or len(known[0]) != len(_SPLIT_ORDER):
        return False
    return stride_order(*known) == tuple(dimension for dimension in _SPLIT_ORDER if known[0][dimension] != 1)


_SPLIT_ORDER = (0, 1, 3, 4, 2)
_MIXING = ("mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "mean", "sum", "amax", "cat")


def _going_on(graph: Graph) -> set[str]:
    """Names of the values from which a 4-D or 5-D value is computed, with no operation of ``_MIXING`` in between."""
    found: set[str] = set()
    for node in reversed(graph.nodes):
        if node.op != "call_function" or base_name(node.target) in _MIXING:
            continue
        if len(layout_or_unknown(node).shape) in CHANNELS_LAST_BY_RANK or node.name in found:
            found.update(node.inputs)
    return found


def _breaker(
    node: FxNode, given: Layout, returned: Layout, conversions: Sequence[Conversion], reason: str
) -> LayoutBreaker:
    return LayoutBreaker(
        node=node.name,
        op=_op(node),
        reason=reason,
        location=node.location,
        module=node.module,
        source=densified(given),
        target=returned,
        conversions=tuple(dict.fromkeys(conversion.id for conversion in conversions)),
    )


def _op(node: FxNode) -> str:
    """The name of an operation in reports; it has a namespace if the operation is not torch's own."""
    if node.target.startswith("triton_kernel_wrapper"):
        return f"triton::{node.called or 'kernel'}"
    names = node.target.removeprefix("torch.ops.").split(".")
    is_own = names[0] in _OWN_NAMESPACES or len(names) < _PARTS
    return (node.called or base_name(node.target)) if is_own else f"{names[0]}::{names[1]}"


_OWN_NAMESPACES = ("aten", "prims", "inductor", "mkldnn")
_PARTS = 3  # namespace, name, overload


def _words(layout: Layout) -> str:
    return " or ".join(densified(layout).memory_formats) or "strides of its own"


def with_breaker_costs(graph: Graph, known: Iterable[Conversion]) -> Graph:
    """Adds to each breaker the summed costs of its known conversions; None if a cost or every conversion is unknown."""
    by_id = {conversion.id: conversion for conversion in known}
    breakers = []
    for breaker in graph.breakers:
        parts = [by_id[id_] for id_ in breaker.conversions if id_ in by_id]
        breakers.append(
            msgspec.structs.replace(
                breaker,
                seconds=sum_if_all_known(*(part.seconds for part in parts)),
                bytes_moved=sum_if_all_known(*(part.bytes_moved for part in parts)),
            )
        )
    return msgspec.structs.replace(graph, breakers=tuple(breakers))


def without_round_trips(graph: Graph, pairs: Sequence[RedundantPair]) -> Graph:
    """Removes the breakers whose conversions are all in redundant pairs."""
    paired = {id_ for pair in pairs for id_ in (pair.first, pair.second, *pair.also)}
    kept = tuple(
        breaker for breaker in graph.breakers if not breaker.conversions or not paired.issuperset(breaker.conversions)
    )
    return msgspec.structs.replace(graph, breakers=kept)
