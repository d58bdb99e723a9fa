"""
The layout flows around what costs most: which operations a value passes, in which layouts, where it is converted.

For formats that draw (Mermaid, HTML), so that both draw the same. Redundant pairs and conversions worth a picture are
scenes, the worst first; drawn is a readable neighbourhood of each: the conversions, what is between them, the
convolutions before and after. Only recorded edges are drawn: Inductor's buffers where a graph was compiled, the
operations where it ran in eager, and what a pair itself names where no graph was recorded, as in a trace.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from layoutdoctor.examination.costs import all_conversions_of, counted_conversions
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.reports.flow.graph import (
    FlowEdge,
    FlowNode,
    carries_layout,
    conversion_key,
    conversion_node,
    format_of,
    layout_words,
    redundant_ids,
    value_graph,
)
from layoutdoctor.reports.sections.wording import clean, clean_name
from layoutdoctor.rules.evidence import main_trial, own_trials
from layoutdoctor.units import format_bytes, format_seconds
from layoutdoctor.words import CONFIDENCE_WORDS, count_of, joined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Finding, Graph, RedundantPair, Trial
    from layoutdoctor.reports.flow.graph import ValueGraph

_RECORDED = "recorded"
_SEVERITIES = ("error", "warning", "note")
MOST_BETWEEN = 5
"""Steps drawn one by one between two conversions; of a longer way the middle is one box."""

MOST_HOPS = 3
LONGEST_WAY = 8
MOST_TRIED = 20
MOST_READERS = 2
MOST_BRANCHES = 3
_MIDDLE = "middle"


@dataclass(frozen=True, slots=True)
class Flow:
    """
    The layout flow around one redundant pair or conversion.

    Attributes:
        is_main: Whether it is of the baseline or of what is recommended.
        left_out: Steps next to those drawn that are not drawn: weights, statistics, further readers.
    """

    title: str
    configuration: str
    is_main: bool
    nodes: tuple[FlowNode, ...]
    edges: tuple[FlowEdge, ...]
    left_out: int
    about: str

    @property
    def heading(self) -> str:
        """The title with the configuration; a recorded trace has none to speak of."""
        return self.title if self.configuration == _RECORDED else f"{self.title} under {self.configuration}"

    @property
    def look(self) -> tuple[object, ...]:
        """What a reader sees of it, but for names: equal for two flows that show the same."""
        return tuple((node.kind, node.memory_format, node.label) for node in self.nodes), self.edges


def build_flows(diagnosis: Diagnosis, most: int = 3) -> tuple[Flow, ...]:
    """
    The flows around the worst that was found.

    Returns:
        Those of the baseline and of the recommended trial first, the worst first of these: by severity, seconds, bytes;
        one for all round trips that look alike. Empty where nothing was found, or nothing can be drawn.
    """
    flows: list[Flow] = []
    for scene in _choose_scenes(diagnosis):
        if len(flows) >= most:
            break
        flow = _draw(scene)
        if flow is not None and flow.look not in [other.look for other in flows]:
            flows.append(flow)
    return tuple(flows)


@dataclass(frozen=True, slots=True)
class Scene:
    """
    What one flow is about.

    Attributes:
        pair: The redundant pair; None where it is about a conversion.
        conversions: The conversion to draw, then others of the same finding; those of the pair where there is one.
    """

    title: str
    about: str
    trial: Trial
    pair: RedundantPair | None
    conversions: tuple[Conversion, ...]
    is_main: bool
    rank: tuple[float, ...]

    @property
    def ids(self) -> frozenset[str]:
        """Ids of the conversions that it is about."""
        if self.pair is not None:
            return frozenset((self.pair.first, *self.pair.also, self.pair.second))
        return frozenset(conversion.id for conversion in self.conversions[:1])


def _choose_scenes(diagnosis: Diagnosis) -> tuple[Scene, ...]:
    """Everything worth a picture, the worst first, each conversion in one scene only."""
    found: list[Scene] = []
    paired: set[int] = set()
    for trial in own_trials(diagnosis):
        for finding, pairs in _by_finding(diagnosis, trial):
            found += _of_pairs(diagnosis, trial, pairs, finding)
            paired.add(id(finding))
    for finding in diagnosis.findings:
        if id(finding) not in paired:
            found += _of_finding(diagnosis, finding)
    main = main_trial(diagnosis)
    if not found and main is not None:
        found += _of_conversions(diagnosis, main, counted_conversions(main), None)
    kept: list[Scene] = []
    drawn: set[tuple[str, str]] = set()
    for scene in sorted(found, key=lambda scene: (not scene.is_main, *scene.rank)):
        ids = {(scene.trial.name, id_) for id_ in scene.ids}
        if not ids <= drawn:
            kept.append(scene)
            drawn |= ids
    return tuple(kept)


def _by_finding(diagnosis: Diagnosis, trial: Trial) -> Iterator[tuple[Finding | None, list[RedundantPair]]]:
    """A trial's pairs by the finding that speaks of them most closely: the one with the least other evidence."""
    about = [finding for finding in diagnosis.findings if _trial_of(diagnosis, finding) is trial]
    closest = sorted(about, key=lambda finding: len(finding.evidence))
    evidence = [frozenset(finding.evidence) for finding in closest]
    groups: dict[int, list[RedundantPair]] = {}
    for pair in trial.redundant_pairs:
        places = (place for place, ids in enumerate(evidence) if pair.first in ids and pair.second in ids)
        groups.setdefault(next(places, -1), []).append(pair)
    for place, pairs in sorted(groups.items()):
        yield (closest[place] if place >= 0 else None), pairs


def _trial_of(diagnosis: Diagnosis, finding: Finding) -> Trial | None:
    return diagnosis.measured_trial(finding.configuration) if finding.configuration else main_trial(diagnosis)


def _of_finding(diagnosis: Diagnosis, finding: Finding) -> Iterator[Scene]:
    """The conversions of a finding that is about no pair; those of pairs only where it has no others."""
    trial = _trial_of(diagnosis, finding)
    if trial is None or not finding.evidence:
        return
    ids = frozenset(finding.evidence)
    conversions = [conversion for conversion in all_conversions_of(trial) if conversion.id in ids]
    redundant = redundant_ids(trial)
    alone = [conversion for conversion in conversions if conversion.id not in redundant]
    yield from _of_conversions(diagnosis, trial, alone or conversions, finding)


def _of_pairs(
    diagnosis: Diagnosis, trial: Trial, pairs: Sequence[RedundantPair], finding: Finding | None
) -> Iterator[Scene]:
    """One scene for all pairs that look alike: the costliest of them."""
    conversions = {conversion.id: conversion for conversion in all_conversions_of(trial)}
    told: set[tuple[object, ...]] = set()
    counts = Counter(map(_pattern, pairs))
    ordered = sorted(pairs, key=lambda pair: _cost_rank(pair.seconds, pair.bytes_moved))
    for pair in ordered:
        own = [conversions.get(id_) for id_ in (pair.first, *pair.also, pair.second)]
        if _pattern(pair) in told or None in (own[0], own[-1]):
            continue
        told.add(_pattern(pair))
        yield Scene(
            title=_title(finding) or "Round trip",
            about=_about_pair(pair, counts[_pattern(pair)] - 1),
            trial=trial,
            pair=pair,
            conversions=tuple(conversion for conversion in own if conversion is not None),
            is_main=_is_main(diagnosis, trial),
            rank=_rank(finding, len(told), pair.seconds, pair.bytes_moved),
        )


def _of_conversions(
    diagnosis: Diagnosis, trial: Trial, conversions: Sequence[Conversion], finding: Finding | None
) -> Iterator[Scene]:
    # What has no known place, or moves nothing of its own, is drawn only where there is nothing else.
    ordered = sorted(conversions, key=lambda c: (not _has_place(c), c.fused, *_cost_rank(c.seconds, c.bytes_moved)))
    if not ordered:
        return
    worst = ordered[0]
    yield Scene(
        title=_title(finding) or "Layout conversion",
        about=_about_conversion(worst, len(ordered) - 1),
        trial=trial,
        pair=None,
        conversions=tuple(ordered),
        is_main=_is_main(diagnosis, trial),
        rank=_rank(finding, 1, worst.seconds, worst.bytes_moved),
    )


def _has_place(conversion: Conversion) -> bool:
    """Whether it is known which tensor of which operation was converted."""
    return conversion.node is not None or (conversion.op is not None and conversion.port is not None)


def _pattern(pair: RedundantPair) -> tuple[object, ...]:
    """What makes round trips look alike: the operations between them, in a row counted once."""
    return (pair.kind, tuple(dict.fromkeys(base_name(name) for name in pair.between)), len(pair.also))


def _title(finding: Finding | None) -> str | None:
    return f"{clean_name(finding.code)} {clean_name(finding.rule)}" if finding is not None else None


def _about_pair(pair: RedundantPair, more: int) -> str:
    cost = _cost_clause(pair.seconds, pair.seconds_source, pair.bytes_moved)
    first = ", ".join(clean_name(id_) for id_ in (pair.first, *pair.also))
    others = f"; {count_of(more, 'more round trip')} like it" if more else ""
    sure = f" (rests on {CONFIDENCE_WORDS[pair.confidence]})" if pair.confidence is not None else ""
    return f"{first} and {clean_name(pair.second)} undo each other{sure}{cost}{others}"


def _about_conversion(conversion: Conversion, more: int) -> str:
    cause = clean(conversion.cause, 200) if conversion.cause else None
    cost = _cost_clause(conversion.seconds, conversion.seconds_source, conversion.bytes_moved, cause)
    others = f"; {count_of(more, 'further conversion')} of this kind" if more else ""
    return f"{clean_name(conversion.id)}{cost}{others}"


def _cost_clause(seconds: float | None, source: str | None, moved: int | None, cause: str | None = None) -> str:
    """What is known of the cost, and why it is there, behind a colon; empty where nothing is."""
    estimated = " (estimated)" if source == "estimated" else ""
    time = None if seconds is None else format_seconds(seconds) + estimated
    parts = joined((time, None if moved is None else f"{format_bytes(moved)} moved", cause), ", ")
    return f": {parts}" if parts else ""


def _cost_rank(seconds: float | None, moved: int | None) -> tuple[float, float]:
    return -(seconds or 0.0), -float(moved or 0)


def _is_main(diagnosis: Diagnosis, trial: Trial) -> bool:
    """Whether it is what the user has, or is told to use."""
    advised = diagnosis.recommendation.configuration if diagnosis.recommendation is not None else None
    return trial is main_trial(diagnosis) or (advised is not None and trial is diagnosis.measured_trial(advised))


def _rank(finding: Finding | None, number: int, seconds: float | None, moved: int | None) -> tuple[float, ...]:
    """Severity, then one picture of each finding, then the cost."""
    severity = _SEVERITIES.index(finding.severity if finding is not None else "note")
    return severity, number, *_cost_rank(seconds, moved)


def _draw(scene: Scene) -> Flow | None:
    """The boxes and edges of a scene; None where nothing was recorded around its conversions."""
    graph = _graph_of(scene)
    if graph is not None:
        values = value_graph(scene.trial, graph, scene.ids)
        keys = _pair_keys(scene, values) if scene.pair is not None else _conversion_keys(scene, values)
        if keys:
            return _cut_out(scene, values, keys)
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


def _cut_out(scene: Scene, values: ValueGraph, keys: Sequence[str]) -> Flow:
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
    return _flow(scene, nodes, {ends: layout_words(layout) for ends, layout in edges.items()}, len(near - set(keys)))


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


def _recorded(scene: Scene) -> Flow | None:
    """What the pair or the conversion itself names, where no graph holds it."""
    redundant = redundant_ids(scene.trial)
    boxes = [conversion_node(c, is_redundant=c.id in redundant) for c in scene.conversions]
    if scene.pair is None:
        return _recorded_conversion(scene, boxes)
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
    return _flow(scene, {box.key: box for box in chain}, edges, len(scene.pair.also))


def _between(names: Sequence[str]) -> Iterable[FlowNode]:
    shown = [clean_name(name) for name in names]
    if len(shown) > MOST_BETWEEN:
        middle = shown[2:-2]
        joined = f"{count_of(len(middle), 'operation')}: {', '.join(middle)}"
        shown = [*shown[:2], clean(joined, 120), *shown[-2:]]
    for number, name in enumerate(shown):
        yield FlowNode(f"between {number}", name, None, "operation", "unknown")


def _recorded_conversion(scene: Scene, boxes: Sequence[FlowNode]) -> Flow | None:
    """A conversion that a library made of one tensor of a call, and others that were made of the same tensor."""
    first = scene.conversions[0]
    if first.port is None or not _names_a_call(first):
        return None
    is_result = first.port.startswith("output")
    name = first.source_value if first.source_value is not None and not is_result else first.port
    layout = first.target if is_result else first.source
    tensor = FlowNode("tensor", clean_name(name), None, "output" if is_result else "input", format_of(layout))
    nodes = {} if is_result else {tensor.key: tensor}
    edges: dict[tuple[str, str], str] = {}
    for conversion, box in zip(scene.conversions, boxes, strict=True):
        if len(nodes) > MOST_READERS * 2 or not _is_of_the_same(conversion, first):
            continue
        call = replace(_call(conversion, "before" if is_result else "after"), key=f"call of {conversion.id}")
        chain = (call, box, tensor) if is_result else (tensor, box, call)
        nodes.update((node.key, node) for node in chain)
        edges[chain[0].key, chain[1].key] = layout_words(conversion.source)
        edges[chain[1].key, chain[2].key] = layout_words(conversion.target)
    return _flow(scene, nodes, edges, 0)


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


def _flow(scene: Scene, nodes: dict[str, FlowNode], edges: dict[tuple[str, str], str], left_out: int) -> Flow:
    """The flow of a scene, with short keys in place of those that are data, so that no format has to escape them."""
    keys = {key: f"n{number}" for number, key in enumerate(nodes)}
    places = {key: number for number, key in enumerate(nodes)}
    ordered = sorted(edges.items(), key=lambda edge: (places[edge[0][0]], places[edge[0][1]]))
    return Flow(
        title=scene.title,
        configuration=clean_name(scene.trial.name),
        is_main=scene.is_main,
        nodes=tuple(replace(node, key=keys[key]) for key, node in nodes.items()),
        edges=tuple(FlowEdge(keys[source], keys[target], label) for (source, target), label in ordered),
        left_out=left_out,
        about=scene.about,
    )
