"""
Which recorded eager operation each profiled operation is: the two were recorded in different iterations.

A dispatch mode records the operations below autograd; the profiler records these and all around and inside them. The
operations that both saw form the same sequence, so they are matched in order. Faces doctor; no torch.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.analysis.kernel_list import HostOperation, outermost_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.records import FxNode, Graph


def align_eager(tree: Sequence[HostOperation], graph: Graph) -> Graph:
    """
    Joins the operations of a profiled eager iteration with its recorded graph.

    Args:
        tree: The profiled operations; ``node`` and ``graph`` are set where the match is certain.
        graph: What another iteration recorded.

    Returns:
        The graph, whose nodes know what the user's line called.
    """
    nodes = [node for node in graph.nodes if node.op == "call_function" and "getitem" not in node.target]
    wanted = {operation_name(node.target) for node in nodes}
    entries = _recorded_entries(tree, wanted)
    called: dict[str, str] = {}
    for node, entry in _matches(nodes, entries):
        if entry.node is None:
            entry.node, entry.graph = node, graph.name
        called[node.name] = outermost_name(entry).removeprefix("aten::")
    return msgspec.structs.replace(
        graph,
        nodes=tuple(
            msgspec.structs.replace(node, called=called[node.name]) if node.name in called else node
            for node in graph.nodes
        ),
    )


def operation_name(target: str) -> str:
    """
    The profiler's name of an operator: ``aten.clone.default`` is ``aten::clone``.

    Args:
        target: As in ``FxNode.target``.
    """
    parts = target.removeprefix("torch.ops.").split(".")
    return "::".join(parts[:2])


def _recorded_entries(tree: Sequence[HostOperation], wanted: set[str]) -> list[HostOperation]:
    """The profiled operations that a dispatch mode would have seen, in order: none of them runs inside another."""
    found: list[HostOperation] = []
    covered: set[int] = set()
    for entry in tree:  # parents stand before their children
        if entry.parent is not None and id(entry.parent) in covered:
            covered.add(id(entry))
        elif entry.name in wanted:
            covered.add(id(entry))
            found.append(entry)
    return found


def _matches(nodes: Sequence[FxNode], entries: Sequence[HostOperation]) -> list[tuple[FxNode, HostOperation]]:
    names = [operation_name(node.target) for node in nodes]
    others = [entry.name for entry in entries]
    if names == others:
        return list(zip(nodes, entries, strict=True))
    matcher = difflib.SequenceMatcher(None, names, others, autojunk=False)
    return [
        (nodes[block.a + offset], entries[block.b + offset])
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
    ]
