"""
The values of one recorded graph as boxes and edges, with the conversions where they happen.

Of a compiled graph: Inductor's buffers, as they lie in memory, with what the library converts at its calls; of any
other: its operations. An edge stands for a recorded read; a conversion that was not joined to a place has none.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from layoutdoctor.examination.graphs.buffers import BufferGraph
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.reports.sections.wording import clean, clean_name, place_of
from layoutdoctor.rules.graph_evidence import is_convolution
from layoutdoctor.words import OWNER_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import Buffer, Conversion, FxNode, Graph, Trial

FlowKind = Literal["input", "output", "operation", "convolution", "conversion"]
FlowFormat = Literal["channels_last", "contiguous", "blocked", "unknown"]
MOST_NAMES = 6
_COPIES = frozenset({"clone", "_to_copy", "copy", "contiguous"})


@dataclass(frozen=True, slots=True)
class FlowNode:
    """
    One box of a flow.

    Attributes:
        key: Unique within the flow: ``n0``, ``n1`` and so on.
        detail: What else is known: a conversion's id and owner, the kernel; None where nothing is.
        memory_format: Of the value that it makes; ``unknown`` also where several fit, or no named one does.
        place: File, line and module; None where not known.
        seconds: Its time per iteration; None where not known.
    """

    key: str
    label: str
    detail: str | None
    kind: FlowKind
    memory_format: FlowFormat
    is_redundant: bool = False
    place: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class FlowEdge:
    """
    A value that one box makes and another one reads.

    Attributes:
        label: Its layout, such as ``2x64x56x56 channels_last``; empty where not known.
    """

    source: str
    target: str
    label: str


def conversion_key(conversion: Conversion) -> str:
    """The key of a conversion's box."""
    return f"conversion {conversion.id}"


def redundant_ids(trial: Trial) -> frozenset[str]:
    """Ids of all conversions that belong to a redundant pair."""
    return frozenset(id_ for pair in trial.redundant_pairs for id_ in (pair.first, *pair.also, pair.second))


def conversion_node(conversion: Conversion, *, is_redundant: bool) -> FlowNode:
    """The box of a conversion."""
    before, after = format_words(conversion.source), format_words(conversion.target)
    if before and after and before != after:
        change = f"{before} → {after}"
    else:
        change = conversion.direction.replace("_", " ", 1) if conversion.direction != "other" else "another layout"
    owner = "fused into a kernel that computes" if conversion.fused else OWNER_WORDS[conversion.owner]
    tensor = conversion.tensor if conversion.tensor != "unknown" else None
    count = f"{conversion.count} launches" if conversion.count > 1 else None
    return FlowNode(
        key=conversion_key(conversion),
        label=change,
        detail=", ".join(part for part in (clean_name(conversion.id), tensor, owner, count) if part),
        kind="conversion",
        memory_format=format_of(conversion.target) if conversion.target else _format_of_direction(conversion),
        is_redundant=is_redundant,
        place=place_of(conversion.location, conversion.module),
        seconds=conversion.seconds,
    )


def _format_of_direction(conversion: Conversion) -> FlowFormat:
    formats: tuple[FlowFormat, ...] = ("channels_last", "contiguous", "blocked")
    return next((name for name in formats if conversion.direction == f"to_{name}"), "unknown")


def format_of(layout: Layout | None) -> FlowFormat:
    """The one kind of memory format a layout has; ``unknown`` where it satisfies several, or none."""
    if layout is None:
        return "unknown"
    if layout.is_blocked:
        return "blocked"
    if len(layout.memory_formats) != 1:
        return "unknown"
    return "contiguous" if layout.memory_formats[0] == "contiguous_format" else "channels_last"


def format_words(layout: Layout | None) -> str:
    """A layout's memory format in words: ``channels_last``, ``blocked aBcd16b``; empty where not known."""
    if layout is None:
        return ""
    if layout.format is not None:
        return f"blocked {clean_name(layout.format)}"
    if layout.memory_formats:
        return " or ".join(name.removesuffix("_format") for name in layout.memory_formats)
    return "other strides" if layout.stride is not None else ""


def layout_words(layout: Layout | None) -> str:
    """A layout on an edge: ``2x64x56x56 channels_last``; empty where not known."""
    if layout is None:
        return ""
    return clean(f"{'x'.join(str(size) for size in layout.shape)} {format_words(layout)}".strip(), 80)


def carries_layout(layout: Layout | None) -> bool:
    """Whether a value is big enough for its layout to matter: no vector per channel."""
    return layout is not None and len(layout.shape) > 2 and sum(size != 1 for size in layout.shape[1:]) > 1


def fx_box(key: str, node: FxNode, seconds: float | None) -> FlowNode:
    """The box of an FX node."""
    is_input = node.op in ("placeholder", "get_attr")
    kind: FlowKind = "input" if is_input else "output" if node.op == "output" else "operation"
    detail = None if is_input or base_name(node.target) in node.name else clean_name(node.target)
    return FlowNode(
        key=key,
        label=clean_name(node.name),
        detail=node.tensor if is_input and node.tensor not in (None, "unknown") else detail,
        kind="convolution" if is_convolution(node) else kind,
        memory_format=format_of(node.layout),
        place=place_of(node.location, node.module),
        seconds=seconds,
    )


@dataclass(frozen=True, slots=True)
class ValueGraph:
    """
    All boxes of a graph, and the values between them.

    Attributes:
        values: Layout of what goes along each edge; None where not known.
        before: For each key: what it reads from.
        after: For each key: what reads it.
    """

    nodes: dict[str, FlowNode] = field(default_factory=dict)
    values: dict[tuple[str, str], Layout | None] = field(default_factory=dict)
    before: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    after: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def link(self, source: str, target: str, layout: Layout | None) -> None:
        """Records that one box reads what another one makes; both once."""
        if source == target or (source, target) in self.values:
            return
        self.values[source, target] = layout
        self.before[target].append(source)
        self.after[source].append(target)


def value_graph(trial: Trial, graph: Graph, wanted: frozenset[str]) -> ValueGraph:
    """
    The boxes and edges of a graph.

    Args:
        graph: With nodes, and with buffers where it was compiled.
        wanted: Ids of conversions to prefer where several stand at one place, as where a graph ran more than once.
    """
    library = trial.kernels.conversions if trial.kernels is not None else ()
    joined = [c for c in (*library, *graph.conversions) if c.graph == graph.name and c.node is not None]
    copies = {node.name for node in graph.nodes if _is_copy(node)}
    by_port: dict[tuple[str, str], Conversion] = {}
    for conversion in sorted(joined, key=lambda c: c.id not in wanted):
        port = conversion.port or ("output 0" if conversion.node in copies else None)
        if port is not None and conversion.direction != "none":
            by_port.setdefault((str(conversion.node), port), conversion)
    values = (_Buffers if graph.buffers else _Operations)(trial, graph, by_port).built()
    for (source, _), layout in values.values.items():
        box = values.nodes[source]
        if box.kind == "convolution" and format_of(layout) == "blocked":  # what it makes, before that is converted
            values.nodes[source] = replace(box, memory_format="blocked")
    return values


class _Builder:
    """What both ways to build the boxes and edges of a graph have in common."""

    def __init__(self, trial: Trial, graph: Graph, by_port: Mapping[tuple[str, str], Conversion]) -> None:
        self.graph, self.by_port, self.redundant = graph, by_port, redundant_ids(trial)
        self.seconds = _node_seconds(trial, graph)
        self.nodes = {node.name: node for node in graph.nodes}
        self.values = ValueGraph()

    def _put(self, conversion: Conversion) -> str:
        node = conversion_node(conversion, is_redundant=conversion.id in self.redundant)
        return self.values.nodes.setdefault(node.key, node).key

    def _convert(self, source: str | None, conversion: Conversion, target: str) -> None:
        """The edges to a conversion, where something is known to make its value, and from it."""
        key = self._put(conversion)
        if source is not None:
            self.values.link(source, key, conversion.source)
        self.values.link(key, target, conversion.target)


class _Operations(_Builder):
    """The operations of a graph that ran as it stands, in eager."""

    def built(self) -> ValueGraph:
        """All boxes and edges."""
        for node in self.graph.nodes:
            if not self._is_alias(node):
                self._add(node)
        read = {name for node in self.graph.nodes for name in node.inputs}
        for name in self.graph.output_names:
            made = self.nodes.get(name)
            if made is not None and made.op != "output" and name not in read and not self._is_alias(made):
                self._link_value(name, self._output(name), made.layout)
        return self.values

    def _is_alias(self, node: FxNode) -> bool:
        return base_name(node.target) == "getitem" and len(node.inputs) == 1 and node.inputs[0] in self.nodes

    def _add(self, node: FxNode) -> None:
        own = self._own_conversion(node)
        key = self._put(own) if own is not None else f"node {node.name}"
        if own is None:
            self.values.nodes[key] = fx_box(key, node, self.seconds.get(node.name))
        for position, name in enumerate(node.inputs):
            conversion = self.by_port.get((node.name, f"input {position}"))
            if conversion is None:
                self._link_value(name, key, None if own is None else own.source)
            else:
                self._link_value(name, self._put(conversion), conversion.source)
                self.values.link(conversion_key(conversion), key, conversion.target)

    def _own_conversion(self, node: FxNode) -> Conversion | None:
        """The conversion that a node itself is, as the model's own ``.contiguous()``."""
        conversion = self.by_port.get((node.name, "output 0"))
        return conversion if conversion is not None and _is_copy(node) else None

    def _link_value(self, name: str, target: str, layout: Layout | None) -> None:
        """An edge from whatever makes a value: an operation, or the conversion of its result."""
        node, index = self._producer(name)
        if node is None:
            return
        conversion = self.by_port.get((node.name, f"output {index}"))
        if conversion is None:
            self.values.link(f"node {node.name}", target, layout or self.nodes[name].layout)
        else:
            is_own = self._own_conversion(node) is not None
            self._convert(None if is_own else f"node {node.name}", conversion, target)

    def _producer(self, name: str) -> tuple[FxNode | None, int]:
        """The operation that a value comes from, and which of its results it is."""
        node, index = self.nodes.get(name), 0
        for _ in self.nodes:  # as many steps as there are nodes, also where a record has a circle
            if node is None or not self._is_alias(node):
                return node, index
            node, index = self.nodes[node.inputs[0]], node.result_index or 0
        return None, 0

    def _output(self, name: str) -> str:
        key = f"output {name}"
        self.values.nodes[key] = FlowNode(key, "output", None, "output", "unknown")
        return key


class _Buffers(_Builder):
    """Inductor's buffers, by what reads what from memory."""

    def __init__(self, trial: Trial, graph: Graph, by_port: Mapping[tuple[str, str], Conversion]) -> None:
        super().__init__(trial, graph, by_port)
        self.flow = BufferGraph(graph)
        self.made: dict[str, list[Conversion]] = defaultdict(list)
        for conversion in graph.conversions:
            if conversion.value in self.flow.buffers and conversion.direction != "none":
                self.made[str(conversion.value)].append(conversion)

    def built(self) -> ValueGraph:
        """All boxes and edges."""
        for buffer in self.graph.buffers:
            if not buffer.is_removed:
                self._add(buffer)
        return self.values

    def _add(self, buffer: Buffer) -> None:
        reads = self._reads(buffer)
        own = self._own_conversion(buffer)
        key = self._put(own) if own is not None else f"buffer {buffer.name}"
        if own is None:
            self.values.nodes[key] = self._box(key, buffer)
        at_edge = {c.source_value: c for c in self.made[buffer.name] if c is not own}
        at_edge.update(self._at_inputs(buffer, reads))
        for name in reads:
            conversion = at_edge.get(name)
            if conversion is None:
                self._link_value(name, key, own.source if own is not None else self.flow.layout_of(name))
            else:
                self._link_value(name, self._put(conversion), conversion.source)
                self.values.link(conversion_key(conversion), key, conversion.target)
        whole = self.flow.buffers.get(buffer.alias_of or "")
        if whole is not None and not whole.is_removed and buffer.name not in whole.reads:
            self._link_value(buffer.name, self._key(whole), buffer.layout)
        if buffer.is_output and buffer.is_user_output is not False:
            output = f"output {buffer.name}"
            self.values.nodes[output] = FlowNode(output, "output", None, "output", format_of(buffer.layout))
            self._link_value(buffer.name, output, buffer.layout)

    def _reads(self, buffer: Buffer) -> list[str]:
        """What is read from memory, each once: through buffers that fusion left in registers."""
        found: dict[str, None] = {}
        followed = {buffer.name}
        waiting = [buffer]
        while waiting:
            at = waiting.pop()
            for name in (*at.reads, *(read.name for read in at.accesses)):
                inner = self.flow.buffers.get(name)
                if inner is None or not inner.is_removed:
                    found.setdefault(name)
                elif name not in followed:
                    followed.add(name)
                    waiting.append(inner)
        return [name for name in found if name != buffer.name]

    def _own_conversion(self, buffer: Buffer) -> Conversion | None:
        """The conversion that a buffer's whole loop is: one that only moves, from one tensor."""
        made = self.made[buffer.name]
        if len(made) != 1 or self._reads(buffer) != [made[0].source_value]:
            return None
        return made[0] if self.flow.only_moves(buffer) else None

    def _key(self, buffer: Buffer) -> str:
        own = self._own_conversion(buffer)
        return conversion_key(own) if own is not None else f"buffer {buffer.name}"

    def _at_inputs(self, buffer: Buffer, reads: Sequence[str]) -> Iterator[tuple[str, Conversion]]:
        """What the library converts of the values that a call reads, where it is certain which value that is."""
        node = self.flow.extern_node(buffer) if buffer.is_extern else None
        if node is None:
            return
        for position, name in enumerate(node.inputs):
            conversion = self.by_port.get((node.name, f"input {position}"))
            read = self._read_of(name, reads)
            if conversion is not None and read is not None:
                yield read, conversion

    def _read_of(self, name: str, reads: Sequence[str]) -> str | None:
        """Which of the buffers that a call reads holds the value of an FX node."""
        for read in reads:
            buffer = self.flow.buffers.get(read)
            if read == name or (buffer is not None and buffer.source_node == name):
                return read
            if any(c.source_value == name for c in self.made.get(read, ())):
                return read
        holding = [read for read in reads if read in self.flow.buffers and name in self.flow.buffers[read].origins]
        return holding[0] if len(holding) == 1 else None

    def _link_value(self, name: str, target: str, layout: Layout | None) -> None:
        """An edge from whatever makes a value: a graph input, a loop, or the conversion of a call's result."""
        buffer = self.flow.buffers.get(name)
        if buffer is None:
            source = f"input {name}"
            tensor = self.flow.inputs.get(name)
            if tensor is not None:
                self.values.nodes.setdefault(source, fx_box(source, tensor, None))
                self.values.link(source, target, layout)
            return
        node = self.flow.extern_node(buffer) if buffer.is_extern else None
        conversion = self.by_port.get((node.name, "output 0")) if node is not None else None
        source = self._key(buffer)
        if conversion is None:
            self.values.link(source, target, layout)
        else:
            self._convert(source, conversion, target)

    def _box(self, key: str, buffer: Buffer) -> FlowNode:
        node = self.flow.extern_node(buffer) if buffer.is_extern else self.flow.node_of(buffer)
        is_call = buffer.is_extern and node is not None and is_convolution(node)
        names = self._names(buffer, node)
        written = ", ".join(clean_name(part) for part in (buffer.name, buffer.kernel) if part)
        return FlowNode(
            key=key,
            label=names,
            detail=written,
            kind="convolution" if is_call else "operation",
            memory_format=format_of(buffer.layout),
            place=place_of(node.location, node.module) if node is not None else None,
            seconds=self.seconds.get(node.name) if is_call and node is not None else None,
        )

    def _names(self, buffer: Buffer, node: FxNode | None) -> str:
        """The operations that a buffer's kernel runs, in order: those whose values are as large as the buffer."""
        if buffer.is_extern or buffer.layout is None:
            return clean_name(node.name) if node is not None else clean_name(buffer.name)
        size = buffer.layout.element_count
        own = [n for n in self.graph.nodes if n.name in buffer.origins and n.name not in self.flow.inputs]
        same = [n for n in own if n.layout is not None and n.layout.element_count == size and not is_convolution(n)]
        names = [clean_name(base_name(n.target)) for n in same]
        if not names:
            return clean_name(node.name) if node is not None else clean_name(buffer.name)
        shown = names if len(names) <= MOST_NAMES else [*names[: MOST_NAMES - 1], f"{len(names) - MOST_NAMES + 1} more"]
        return ", ".join(shown)


def _is_copy(node: FxNode) -> bool:
    """Whether an operation only copies a value, so that a conversion told of it is the operation itself."""
    return base_name(node.target) in _COPIES and len(node.inputs) == 1


def _node_seconds(trial: Trial, graph: Graph) -> dict[str, float]:
    """Time of what each node ran, without what was converted for it."""
    found: dict[str, float] = defaultdict(float)
    if trial.kernels is None:
        return found
    converting = {c.kernel for c in trial.kernels.conversions} | {"reorder"}
    for kernel in trial.kernels.kernels:
        if kernel.node is None or kernel.graph != graph.name or kernel.name in converting:
            continue
        if kernel.seconds is not None:
            found[kernel.node] += kernel.seconds
    return found
