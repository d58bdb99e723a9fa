"""
Channels-last restored behind the module that lost it, instead of by each module further down.

One conversion takes the place of several.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.examination.graphs.buffers import is_only_channels_last, is_only_contiguous
from layoutdoctor.subjects.copies import CHANNELS_LAST
from layoutdoctor.subjects.cures.cure import READ_AND_WRITTEN, KnownCure, element_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from layoutdoctor.diagnosis.graph import FxNode, Graph
    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.subjects.cures.cure import Seen
    from layoutdoctor.workers.messages import Proposal

HOW = """\
def restored(module, inputs, output):
    return output.contiguous(memory_format={format})
for name in {modules}:
    model.get_submodule(name).register_forward_hook(restored)"""


def _losses(graph: Graph, leaves: set[str]) -> Iterator[tuple[str, Layout]]:
    """Modules without parts that are given channels-last and hand contiguous on, with the layout of the result."""
    nodes = {node.name: node for node in graph.nodes}
    read_by: dict[str, set[str | None]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            read_by.setdefault(name, set()).add(node.module)
    for node in graph.nodes:
        if node.backward or node.module not in leaves or "convolution" in node.target:
            continue
        readers = read_by.get(node.name, set())
        is_handed_on = readers and node.module not in readers
        if not is_handed_on or node.layout is None or not is_only_contiguous(node.layout):
            continue
        if any(is_only_channels_last(given.layout) for given in _given(node, nodes)):
            yield node.module, node.layout


def _given(node: FxNode, nodes: Mapping[str, FxNode]) -> Iterator[FxNode]:
    """What the module of a result was given for it."""
    seen, front = {node.name}, [node]
    while front:
        for source in (nodes[name] for name in front.pop().inputs if name in nodes and name not in seen):
            seen.add(source.name)
            if source.module == node.module and source.op == "call_function":
                front.append(source)
            else:
                yield source


def _propose(seen: Seen) -> Proposal | None:
    leaves = {name for name, module in seen.module.named_modules() if name and not list(module.children())}
    found = dict(loss for graph in seen.graphs for loss in _losses(graph, leaves))
    ranks = {len(layout.shape) for layout in found.values()}
    if len(ranks) != 1:
        return None
    moved = READ_AND_WRITTEN * sum(map(element_count, found.values()))
    return RESTORED_FORMAT.proposal(found, moved, format=str(CHANNELS_LAST[ranks.pop()]))


RESTORED_FORMAT = KnownCure("restored-format", _propose, HOW, "LD104")
