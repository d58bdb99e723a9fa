"""Causes of slow generated kernels, found in their source or in the buffers that they write."""

from __future__ import annotations

import re

from layoutdoctor.diagnosis import FxNode, Graph
from layoutdoctor.diagnosis.graph import base_name

_PARALLEL = "#pragma omp parallel"
_LOOP = re.compile(r"for ?\(")
_NUMBERS = re.compile(
    r"=static_cast<int64_t>\((\d+)L?\); \w+<static_cast<int64_t>\((\d+)L?\); \w+\+=static_cast<int64_t>\((\d+)L?\)"
)
_SCATTERS = frozenset({"slice_scatter", "select_scatter"})


def threads_started_in_loops(source: str) -> int | None:
    """
    Counts how often a C++ kernel of Inductor starts its threads inside loops.

    Returns:
        The number of starts; 0 if no loop starts threads. None if the length of a loop that starts threads is a symbol.

    Source:
        ``CppScheduling`` of torch 2.13: if the loops around a reduction are too short for the threads, the reduction
        itself is made parallel, in each step of these loops.
    """
    loops: list[tuple[int, int | None]] = []  # indentation and length
    count = 0
    for line in source.splitlines():
        text = line.lstrip()
        indentation = len(line) - len(text)
        while text and text[0] not in "{}" and loops and indentation <= loops[-1][0]:
            loops.pop()
        if _LOOP.match(text):
            numbers = _NUMBERS.search(text)
            start, end, step = map(int, numbers.groups()) if numbers is not None else (0, 0, 0)
            loops.append((indentation, -(-(end - start) // step) if step else None))
        elif text.startswith(_PARALLEL) and loops:
            starts = 1
            for _, length in loops:
                if length is None:
                    return None
                starts *= length
            count += starts
    return count


def slice_assignments(graph: Graph, kernel: str) -> list[FxNode]:
    """
    Finds slice assignments whose result a generated kernel writes; each is a copy of the whole tensor.

    Source:
        AOTAutograd makes ``x[:, 0] = y`` a ``select_scatter``, which Inductor computes in a separate buffer if later
        operations read it more than once (torch 2.13).
    """
    nodes = {node.name: node for node in graph.nodes}
    written = [buffer for buffer in graph.buffers if buffer.kernel == kernel and not buffer.is_removed]
    made = [nodes[str(buffer.source_node)] for buffer in written if buffer.source_node in nodes]
    return [node for node in made if base_name(node.target) in _SCATTERS]
