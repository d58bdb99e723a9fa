"""
A generated kernel that reduces is slower in one memory format, though it moves the same bytes.

What it finds:
    A reduction of the same operation and module, over the same number of elements, whose generated kernel takes at
    least 1.5 times as long with channels_last model and input as without, or the reverse, and 10 % of the kernel time.
    Kernels that convert a layout besides are left out.

Why it costs:
    It reads along a dimension in which its elements lie apart. No layout is converted: the cost is in the loads.

Example:
    GroupNorm in channels_last: mean and variance are taken over a group's channels and pixels, and the decomposition
    walks them in the contiguous order.

What to do:
    Nothing about conversions. Where it outweighs what the convolutions gain, keep the other format; or normalize over
    something that the format has together, such as all channels of one pixel.

When it is fine:
    The whole model is faster in this format.

Source:
    pytorch/pytorch pull request #129556, which made GroupNorm's decomposition reduce in two steps for this reason. The
    times are those of one profiled iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.examination.costs import sum_known
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.evidence import format_pairs
from layoutdoctor.units import format_ratio, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import Buffer, Diagnosis, Finding, Graph, SourceLocation, Trial

_FACTOR = 1.5
_LEAST_SHARE = 0.10

_Key = tuple[str, tuple[tuple[str, str | None], ...], int]


@dataclass(frozen=True)
class _Reduction:
    """One generated kernel that reduces, and its time in the profiled iteration."""

    trial: Trial
    kernel: str
    seconds: float
    op: str
    location: SourceLocation | None
    module: str | None
    run: int | None


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per kernel."""
    for first, second in format_pairs(diagnosis, "inductor"):
        there, here = _reductions(first), _reductions(second)
        for key in (key for key in there if key in here):
            slow, fast = sorted((there[key], here[key]), key=lambda one: -one.seconds)
            share = evidence.share_of_kernels(slow.trial, slow.seconds)
            is_large = share is not None and share >= _LEAST_SHARE
            is_strided = slow.run is not None and fast.run is not None and slow.run < fast.run
            if is_large and is_strided and fast.seconds > 0 and slow.seconds >= _FACTOR * fast.seconds:
                yield _finding(slow, fast)


def _reductions(trial: Trial) -> dict[_Key, _Reduction]:
    """By direction of graph, operations with their modules, and elements read; what is not unique is left out."""
    found: dict[_Key, list[_Reduction]] = {}
    for graph in trial.graphs:
        nodes = {node.name: node for node in graph.nodes}
        for kernel in dict.fromkeys(buffer.kernel for buffer in graph.buffers if buffer.is_reduction):
            together = [buffer for buffer in graph.buffers if buffer.kernel == kernel]
            origins = [nodes[name] for name in _origins(together) if name in nodes]
            seconds, count = _seconds(trial, graph, kernel), _elements_read(graph, together)
            is_converting = any(conversion.kernel == kernel for conversion in graph.conversions)
            if kernel is None or seconds is None or count is None or not origins or is_converting:
                continue
            key = (graph.direction, tuple(sorted({(base_name(n.target), n.module) for n in origins}, key=str)), count)
            op = next((node for node in origins if node.called is not None), origins[0])
            found.setdefault(key, []).append(
                _Reduction(
                    trial, kernel, seconds, op.called or base_name(op.target), op.location, op.module, _run(together)
                )
            )
    return {key: members[0] for key, members in found.items() if len(members) == 1}


def _run(buffers: Sequence[Buffer]) -> int | None:
    """The fewest neighbouring elements that one of a kernel's reductions reads one after the other."""
    runs = [read.reduction_run for buffer in buffers if buffer.is_reduction for read in buffer.accesses]
    return min((run for run in runs if run is not None), default=None)


def _origins(buffers: Sequence[Buffer]) -> list[str]:
    return list(dict.fromkeys(name for buffer in buffers if buffer.is_reduction for name in buffer.origins))


def _seconds(trial: Trial, graph: Graph, kernel: str | None) -> float | None:
    """The kernel's time; None where another graph has one of the same name and the list does not tell them apart."""
    ran = [k for k in (trial.kernels.kernels if trial.kernels is not None else ()) if k.name == kernel]
    graphs = [other for other in trial.graphs if any(buffer.kernel == kernel for buffer in other.buffers)]
    own = [k.seconds for k in ran if k.graph == graph.name or (k.graph is None and len(graphs) == 1)]
    return sum_known(own)


def _elements_read(graph: Graph, buffers: Sequence[Buffer]) -> int | None:
    """Elements of everything a kernel reads from memory; None where one of them is not known."""
    layouts: dict[str, Layout | None] = {node.name: node.layout for node in graph.nodes if node.op == "placeholder"}
    layouts.update({buffer.name: buffer.layout for buffer in graph.buffers})
    own = {buffer.name for buffer in buffers}
    total = 0
    for name in dict.fromkeys(name for buffer in buffers for name in buffer.reads if name not in own):
        layout = layouts.get(name)
        count = layout.element_count if layout is not None else None
        if count is None:
            return None
        total += count
    return total or None


def _finding(slow: _Reduction, fast: _Reduction) -> Finding:
    place = f" in {slow.module}" if slow.module is not None else ""
    cost = evidence.cost_words(slow.trial, slow.seconds)
    return RULE.finding(
        slow.trial.name,
        f"the reduction {slow.kernel} ({slow.op}{place}) takes {cost} in {evidence.shown(slow.trial.name)} and "
        f"{format_seconds(fast.seconds)} in {evidence.shown(fast.trial.name)} for the same elements: "
        f"{format_ratio(slow.seconds / fast.seconds)} slower; a strided reduction, not a layout conversion",
        "judge the format by the time of the whole model, not by this kernel",
        evidence=(slow.kernel, fast.kernel),
        at=slow,
        seconds=slow.seconds - fast.seconds,
    )


RULE = document_rule("LD304", "strided-reduction", check, __doc__)
