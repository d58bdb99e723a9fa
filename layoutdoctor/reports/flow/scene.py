"""
A readable neighbourhood of a scene: the conversions, what is between them, the convolutions before and after.

Faces ``flow``; no torch.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from layoutdoctor.reports.flow.graph import value_graph
from layoutdoctor.reports.flow.parts import (
    FlowEdge,
    FlowNode,
    carries_layout,
    conversion_key,
    conversion_node,
    format_of,
    layout_words,
    redundant_ids,
)
from layoutdoctor.reports.sections.wording import clean, clean_name, count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from layoutdoctor.records import Conversion, Graph
    from layoutdoctor.reports.flow.choice import Scene
    from layoutdoctor.reports.flow.graph import ValueGraph

MOST_BETWEEN = 5
"""Steps drawn one by one between two conversions; of a longer way the middle is one box."""

MOST_HOPS = 3
LONGEST_WAY = 8
MOST_TRIED = 20
MOST_READERS = 2
MOST_BRANCHES = 3
_MIDDLE = "middle"


@dataclass(frozen=True, slots=True)
class Drawing:
    """
    Boxes and edges, with keys that are data no more.

    Attributes:
        nodes: In order.
        edges: Between these.
        left_out: Steps next to those drawn that are not drawn.
    """

    nodes: tuple[FlowNode, ...]
    edges: tuple[FlowEdge, ...]
    left_out: int

    @property
    def look(self) -> tuple[object, ...]:
        """What a reader sees of it, but for names: equal for two drawings that show the same."""
        return tuple((node.kind, node.memory_format, node.label) for node in self.nodes), self.edges


def draw(scene: Scene) -> Drawing | None:
    """
    The boxes and edges of a scene.

    Args:
        scene: Any.

    Returns:
        None where nothing was recorded around its conversions.
    """
    graph = _graph_of(scene)
    if graph is not None:
        values = value_graph(scene.trial, graph, scene.ids)
        keys = _pair_keys(scene, values) if scene.pair is not None else _conversion_keys(scene, values)
        if keys:
            return _cut_out(values, keys)
    return _recorded(scene)


def _graph_of(scene: Scene) -> Graph | None:
    """The graph that proves a pair, or that a conversion was joined to; None where there is none with nodes."""
    first = scene.conversions[0]
    name = (scene.pair.graph if scene.pair is not None else None) or first.graph
    for graph in scene.trial.graphs:
        if graph.nodes and (graph.name == name or (name is None and first in graph.conversions)):
            return graph if _is_in_order(graph) else None
    return None


def _is_in_order(graph: Graph) -> bool:
    """Whether every buffer is read after it is written, as in every graph that a compiler made."""
    places = {buffer.name: place for place, buffer in enumerate(graph.buffers)}
    return all(
        places.get(name, -1) < place
        for place, buffer in enumerate(graph.buffers)
        for name in (*buffer.reads, *(read.name for read in buffer.accesses))
    )


def _pair_keys(scene: Scene, values: ValueGraph) -> list[str]:
    """The way of a value from its first conversion to the last one, and what is around it."""
    first, *also, second = (conversion_key(conversion) for conversion in scene.conversions)
    way = _way(values, first, {second})
    if not way:
        return []
    branches: list[str] = []
    for other in also[:MOST_BRANCHES]:
        branch = _way(values, other, set(way))
        branches += [*_upstream(values, other)[-1:], *branch[:-1]]
    return list(dict.fromkeys([*_upstream(values, first), *branches, *way, *_downstream(values, second)]))


def _conversion_keys(scene: Scene, values: ValueGraph) -> list[str]:
    """A conversion between what makes its value and what reads it, with another one on its way or of its value."""
    worst, *others = (conversion_key(conversion) for conversion in scene.conversions)
    if worst not in values.nodes or not (values.before[worst] or values.after[worst]):
        return []
    for other in others[:MOST_TRIED]:
        way = _way(values, other, {worst}) or _way(values, worst, {other})
        if 0 < len(way) <= LONGEST_WAY:  # there and back around a layout breaker, or one after the other
            return list(dict.fromkeys([*_upstream(values, way[0]), *way, *_downstream(values, way[-1])]))
    keys = [*_upstream(values, worst), worst]
    for other in others:
        if other in values.nodes and set(values.before[other]) & set(values.before[worst]):
            keys += [other, *_downstream(values, other)]
            break
    return list(dict.fromkeys([*keys, *_downstream(values, worst)]))


def _way(values: ValueGraph, start: str, ends: set[str]) -> list[str]:
    """The shortest way along values whose layout matters, both ends included; empty where there is none."""
    if start not in values.nodes:
        return []
    came_from: dict[str, str | None] = {start: None}
    waiting = deque([start])
    while waiting:
        key = waiting.popleft()
        if key in ends and key != start:
            way = [key]
            while (before := came_from[way[-1]]) is not None:
                way.append(before)
            return way[::-1]
        for reader in values.after[key]:
            layout = values.values[key, reader]
            if reader not in came_from and (layout is None or carries_layout(layout)):
                came_from[reader] = key
                waiting.append(reader)
    return []


def _upstream(values: ValueGraph, key: str) -> list[str]:
    """What a value comes from, back to a convolution or a graph input; in order."""
    found = _hops(values, key, lambda at: [(one, at) for one in values.before[at]], ("convolution", "input"))
    return found[::-1]


def _downstream(values: ValueGraph, key: str) -> list[str]:
    """What reads a value, on to a convolution or an output; in order."""
    readers = values.after[key][:MOST_READERS]
    found = [*_hops(values, key, lambda at: [(at, one) for one in values.after[at]], ("convolution", "output"))]
    return list(dict.fromkeys([*found[:1], *readers, *found[1:]]))


def _hops(
    values: ValueGraph, key: str, edges: Callable[[str], Sequence[tuple[str, str]]], last: Sequence[str]
) -> list[str]:
    found: list[str] = []
    at = key
    for _ in range(MOST_HOPS):
        near = [(edge, one) for edge in edges(at) for one in edge if one != at and one not in (key, *found)]
        main = [one for edge, one in near if carries_layout(values.values[edge])] or [one for _, one in near]
        if not main:
            break
        at = main[0]
        found.append(at)
        if values.nodes[at].kind in last:
            break
    return found


def _cut_out(values: ValueGraph, keys: Sequence[str]) -> Drawing:
    """The part of a graph that is drawn, with the middle of a long way in one box."""
    middle = _middle(values, keys)
    names = {key: (_MIDDLE if key in middle else key) for key in keys}
    nodes: dict[str, FlowNode] = {}
    for key in keys:
        nodes.setdefault(names[key], _joined(values, middle) if key in middle else values.nodes[key])
    edges = {
        (names[source], names[target]): layout
        for (source, target), layout in values.values.items()
        if source in names and target in names and names[source] != names[target]
    }
    near = {one for key in keys for one in (*values.before[key], *values.after[key])}
    return _numbered(nodes, {ends: layout_words(layout) for ends, layout in edges.items()}, len(near - set(keys)))


def _middle(values: ValueGraph, keys: Sequence[str]) -> list[str]:
    """The middle steps of the longest run of operations, where that is too long to draw one by one."""
    runs: list[list[str]] = [[]]
    for key in keys:
        follows = not runs[-1] or (runs[-1][-1], key) in values.values
        if values.nodes[key].kind == "operation" and follows:
            runs[-1].append(key)
        else:
            runs.append([key] if values.nodes[key].kind == "operation" else [])
    longest = max(runs, key=len)
    return longest[2:-2] if len(longest) > MOST_BETWEEN else []


def _joined(values: ValueGraph, keys: Sequence[str]) -> FlowNode:
    boxes = [values.nodes[key] for key in keys]
    formats = {box.memory_format for box in boxes}
    known = [box.seconds for box in boxes if box.seconds is not None]
    return replace(
        boxes[-1],
        label=count_of(len(boxes), "operation"),
        detail=clean(", ".join(box.label for box in boxes), 80),
        memory_format=formats.pop() if len(formats) == 1 else "unknown",
        seconds=sum(known) if len(known) == len(boxes) else None,
    )


def _recorded(scene: Scene) -> Drawing | None:
    """What the pair or the conversion itself names, where no graph holds it."""
    redundant = redundant_ids(scene.trial)
    boxes = [conversion_node(c, is_redundant=c.id in redundant) for c in scene.conversions]
    if scene.pair is None:
        return _recorded_conversion(scene.conversions, boxes)
    first, second = scene.conversions[0], scene.conversions[-1]
    chain = [boxes[0], *_between(scene.pair.between), boxes[-1]]
    labels = [layout_words(first.target), *[""] * (len(chain) - 3), layout_words(second.source)]
    steps = zip(pairwise(chain), labels if len(chain) > 2 else labels[:1], strict=True)
    edges = {(one.key, other.key): label for (one, other), label in steps}
    # What goes on into other operations is a result; what comes from them is an operand.
    for conversion, key, is_result in ((first, "before", True), (second, "after", False)):
        if _names_a_call(conversion):
            call = _call(conversion, key)
            chain = [call, *chain] if is_result else [*chain, call]
            ends = (call.key, boxes[0].key) if is_result else (boxes[-1].key, call.key)
            edges[ends] = layout_words(conversion.source if is_result else conversion.target)
    return _numbered({box.key: box for box in chain}, edges, len(scene.pair.also))


def _between(names: Sequence[str]) -> Iterable[FlowNode]:
    shown = [clean_name(name) for name in names]
    if len(shown) > MOST_BETWEEN:
        middle = shown[2:-2]
        joined = f"{count_of(len(middle), 'operation')}: {', '.join(middle)}"
        shown = [*shown[:2], clean(joined, 120), *shown[-2:]]
    for number, name in enumerate(shown):
        yield FlowNode(f"between {number}", name, None, "operation", "unknown")


def _recorded_conversion(conversions: Sequence[Conversion], boxes: Sequence[FlowNode]) -> Drawing | None:
    """A conversion that a library made of one tensor of a call, and others that were made of the same tensor."""
    first = conversions[0]
    if first.port is None or not _names_a_call(first):
        return None
    is_result = first.port.startswith("output")
    name = first.source_value if first.source_value is not None and not is_result else first.port
    layout = first.target if is_result else first.source
    tensor = FlowNode("tensor", clean_name(name), None, "output" if is_result else "input", format_of(layout))
    nodes = {} if is_result else {tensor.key: tensor}
    edges: dict[tuple[str, str], str] = {}
    for conversion, box in zip(conversions, boxes, strict=True):
        if len(nodes) > MOST_READERS * 2 or not _is_of_the_same(conversion, first):
            continue
        call = replace(_call(conversion, "before" if is_result else "after"), key=f"call of {conversion.id}")
        chain = (call, box, tensor) if is_result else (tensor, box, call)
        nodes.update((node.key, node) for node in chain)
        edges[chain[0].key, chain[1].key] = layout_words(conversion.source)
        edges[chain[1].key, chain[2].key] = layout_words(conversion.target)
    return _numbered(nodes, edges, 0)


def _is_of_the_same(conversion: Conversion, first: Conversion) -> bool:
    """Whether it is the first one, or another conversion of the same operand, as far as the record names that."""
    if conversion.id == first.id:
        return True
    is_operand = (conversion.port or "").startswith("input") and (first.port or "").startswith("input")
    return is_operand and _names_a_call(conversion) and conversion.source_value == first.source_value is not None


def _names_a_call(conversion: Conversion) -> bool:
    """Whether its operation is one that a model calls, such as ``aten::conv2d``, and not the conversion itself."""
    return conversion.owner == "library" and any(mark in (conversion.op or "") for mark in (".", "::"))


def _call(conversion: Conversion, key: str) -> FlowNode:
    """The library call that a conversion was made in."""
    is_convolution = "conv" in (conversion.op or "")
    result = conversion.source if key == "before" else None
    return FlowNode(
        key=key,
        label=clean_name(conversion.op or ""),
        detail=None,
        kind="convolution" if is_convolution else "operation",
        memory_format=format_of(result),
        place=None,
    )


def _numbered(nodes: dict[str, FlowNode], edges: dict[tuple[str, str], str], left_out: int) -> Drawing:
    """The same with short keys, so that no format has to escape them."""
    keys = {key: f"n{number}" for number, key in enumerate(nodes)}
    places = {key: number for number, key in enumerate(nodes)}
    ordered = sorted(edges.items(), key=lambda edge: (places[edge[0][0]], places[edge[0][1]]))
    return Drawing(
        nodes=tuple(replace(node, key=keys[key]) for key, node in nodes.items()),
        edges=tuple(FlowEdge(keys[source], keys[target], label) for (source, target), label in ordered),
        left_out=left_out,
    )
