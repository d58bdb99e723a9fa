"""LD304: a generated reduction that strides in one format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.evidence import takes_at_least
from layoutdoctor.units import format_ratio, format_seconds, sum_if_all_known
from layoutdoctor.words import distinct, joined, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.graph import FxNode, Graph
    from layoutdoctor.diagnosis.trial import Trial

_SLOWER_REDUCTION = 1.5
_LEAST_SHARE_OF_REDUCTION = 0.10

# Direction of the graph, operations with their modules, and elements read: what computes the same.
_Work = tuple[str, tuple[tuple[str, str | None], ...], int]


@dataclass(frozen=True)
class _Reduction:
    """A generated kernel that reduces; ``run``: the fewest neighbouring elements that it reads one after the other."""

    kernel: str
    seconds: float
    op: FxNode
    run: int


def strided_reductions(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per kernel."""
    for first, second in evidence.format_pairs(diagnosis, "inductor"):
        there, here = _reductions(first), _reductions(second)
        for key in (key for key in there if key in here):
            pairs = ((first, there[key]), (second, here[key]))
            (slow_trial, slow), (fast_trial, fast) = sorted(pairs, key=lambda one: -one[1].seconds)
            is_slower = 0 < _SLOWER_REDUCTION * fast.seconds <= slow.seconds
            if not is_slower or not takes_at_least(slow_trial, slow.seconds, _LEAST_SHARE_OF_REDUCTION):
                continue
            if slow.run < fast.run:
                name, place = slow.op.called or base_name(slow.op.target), slow.op.module
                yield LD304.finding(
                    slow_trial.name,
                    f"strided reduction {slow.kernel} ({joined((name, place), ' in ')}): "
                    f"{wording.cost_words(slow_trial, slow.seconds)} in {shown(slow_trial.name)}, "
                    f"{format_seconds(fast.seconds)} in {shown(fast_trial.name)} for the same elements, "
                    f"{format_ratio(slow.seconds / fast.seconds)} slower; no layout conversion",
                    "judge the format by the time of the whole model, not by this kernel",
                    evidence=(slow.kernel, fast.kernel),
                    at=slow.op,
                    seconds=slow.seconds - fast.seconds,
                )


def _reductions(trial: Trial) -> dict[_Work, _Reduction]:
    """By work; what is not unique, is not known whole, or converts a layout besides is left out."""
    found: dict[_Work, list[_Reduction]] = {}
    for graph in trial.graphs:
        nodes = evidence.nodes_by_name(graph)
        for kernel in distinct(buffer.kernel for buffer in graph.buffers if buffer.is_reduction):
            reducing = [buffer for buffer in graph.buffers if buffer.kernel == kernel and buffer.is_reduction]
            origins = [nodes[n] for n in distinct(n for b in reducing for n in b.origins) if n in nodes]
            runs = [read.reduction_run for b in reducing for read in b.accesses if read.reduction_run is not None]
            seconds, count = evidence.seconds_of_kernel(trial, graph, kernel), _elements_read(graph, kernel)
            is_converting = any(conversion.kernel == kernel for conversion in graph.conversions)
            if seconds is None or not count or not origins or not runs or is_converting:
                continue
            key = (graph.direction, tuple(sorted({(base_name(n.target), n.module) for n in origins}, key=str)), count)
            op = next((node for node in origins if node.called is not None), origins[0])
            found.setdefault(key, []).append(_Reduction(kernel, seconds, op, min(runs)))
    return {key: members[0] for key, members in found.items() if len(members) == 1}


def _elements_read(graph: Graph, kernel: str) -> int | None:
    """Elements of everything a kernel reads from memory; None if one of them is not known."""
    layouts = {node.name: node.layout for node in graph.nodes if node.op == "placeholder"}
    layouts.update({buffer.name: buffer.layout for buffer in graph.buffers})
    buffers = [buffer for buffer in graph.buffers if buffer.kernel == kernel]
    read = {name for buffer in buffers for name in buffer.reads} - {buffer.name for buffer in buffers}
    known = [layout.element_count if (layout := layouts.get(name)) is not None else None for name in read]
    return sum_if_all_known(0, *known)


LD304 = Rule("LD304", "strided-reduction", strided_reductions)
