"""LD306: generated kernels that are slower than the operations they replace."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from layoutdoctor.diagnosis import Account, AccountRow, Diagnosis, Finding, FxNode, Size, Trial
from layoutdoctor.examination.counts import Hotspot
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.examination.kernels.causes import slice_assignments, threads_started_in_loops
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.accounts import large_rows, place_of_row, severity_of_rows, work_words
from layoutdoctor.rules.advice import Times, severity_of_loss, use_faster
from layoutdoctor.rules.base import Rule
from layoutdoctor.units import format_ratio, format_seconds
from layoutdoctor.words import count_of, distinct, joined, phrase, shape_words, shown

_LEAST_SHARE_OF_KERNELS = 0.10
_SLOWER_KERNEL = 1.5
_SEVERAL = 2
_NO_PLACE = frozenset(
    "full arange iota scalar_tensor constant view reshape expand permute select slice unsqueeze".split()
)
"""Operations that cost nothing themselves: their lines are not reported as the place of a slow kernel."""


class _Assignments(NamedTuple):
    """A generated kernel that writes a whole tensor again for each assignment to a slice of the tensor."""

    kernel: str
    nodes: list[FxNode]
    seconds: float


def slower_kernels(diagnosis: Diagnosis) -> Iterator[Finding]:
    """
    Yields one finding per account (two compared configurations), for kernels slower than the operations they replace.

    Slice assignments get a finding of their own, for the recommended configuration or else for the baseline.
    """
    recommended = diagnosis.measured_trial(diagnosis.recommended_name)
    trials = [trial for trial in (recommended, evidence.main_trial(diagnosis)) if trial is not None]
    assigning = list(evidence.first_showing(trials, _assignments))
    for trial, found in assigning:
        yield _assignment_finding(diagnosis, trial, found)
    seen = set[tuple[str, ...]]()
    for account in diagnosis.accounts:
        slower = diagnosis.find_trial(account.slower)
        known = {one.kernel for one in _assignments(slower)} if assigning and slower is not None else set()
        rows = [
            row
            for row in large_rows(diagnosis, account)
            if row.kind == "generated_kernel"
            and (row.slower_seconds or 0.0) >= _SLOWER_KERNEL * (row.faster_seconds or 0.0) > 0
            and row.slower_kernels not in seen
            and known.isdisjoint(row.slower_kernels)
        ]
        seen.update(row.slower_kernels for row in rows)
        if rows:
            yield _kernel_finding(diagnosis, account, sorted(rows, key=lambda row: -row.seconds))


def _kernel_finding(diagnosis: Diagnosis, account: Account, rows: Sequence[AccountRow]) -> Finding:
    worst, *others = rows
    slower, faster = worst.slower_seconds or 0.0, worst.faster_seconds or 0.0
    threads = threads_started_in_loops(worst.source or "")
    times = phrase(", {}", threads, lambda count: f"{count:,} {'time' if count == 1 else 'times'}")
    facts = (
        f"generated kernel for {work_words(worst)}: {format_seconds(slower)}, in {shown(account.faster)} "
        f"{format_seconds(faster)} ({format_ratio(slower / faster)} slower)",
        None if threads == 0 else f"threads started inside its loops{times}",
        f"{count_of(len(others), 'more kernel')}: {format_seconds(sum(row.seconds for row in others))} lost"
        if others
        else None,
    )
    source = ": its source is in the JSON" if worst.source else ""
    return LD306.finding(
        account.slower,
        joined(facts),
        joined((use_faster(diagnosis, account), f"report the kernel to PyTorch{source}")),
        severity=severity_of_rows(diagnosis, account, rows),
        at=_place_of_kernel(diagnosis, account, worst),
        evidence=[name for row in rows for name in row.slower_kernels],
        seconds=sum(row.seconds for row in rows),
    )


def _place_of_kernel(diagnosis: Diagnosis, account: Account, row: AccountRow) -> Hotspot:
    """Returns module and line of the largest operation in a row's costliest kernel; else the row's module and line."""
    trial, first = diagnosis.find_trial(account.slower), next(iter(row.slower_kernels), None)
    fused = []
    for graph in trial.graphs if trial is not None else ():
        nodes = evidence.nodes_by_name(graph)
        origins = distinct(name for buffer in graph.buffers if buffer.kernel == first for name in buffer.origins)
        fused += [(_elements(nodes[name], nodes), nodes[name]) for name in origins if name in nodes]
    placed = [one for one in fused if one[1].location is not None and base_name(one[1].target) not in _NO_PLACE]
    if not placed:
        return place_of_row(row)
    _, node = max(placed, key=lambda one: one[0])
    return Hotspot(node.module, node.location)


def _elements(node: FxNode, nodes: Mapping[str, FxNode]) -> int:
    """Counts the elements of the largest tensor that an operation reads or writes; symbolic sizes do not count."""
    touched = [node, *(nodes[name] for name in node.inputs if name in nodes)]
    shapes = [one.layout.shape for one in touched if one.layout is not None]
    return max((math.prod(size for size in shape if isinstance(size, int)) for shape in shapes), default=0)


def _assignments(trial: Trial) -> list[_Assignments]:
    """Returns kernels with slice assignments, the costliest first, without kernels that take little time."""
    found = []
    for graph in trial.graphs:
        for kernel in distinct(buffer.kernel for buffer in graph.buffers):
            nodes, seconds = slice_assignments(graph, kernel), evidence.seconds_of_kernel(trial, graph, kernel)
            if len(nodes) >= _SEVERAL and evidence.takes_at_least(trial, seconds, _LEAST_SHARE_OF_KERNELS):
                found.append(_Assignments(kernel, nodes, seconds or 0.0))
    return sorted(found, key=lambda one: -one.seconds)


def _assigns_nothing(trial: Trial) -> bool:
    """Whether no generated kernel of a trial has several slice assignments, whatever time they take."""
    pairs = ((graph, name) for graph in trial.graphs for name in distinct(b.kernel for b in graph.buffers))
    return all(len(slice_assignments(graph, name)) < _SEVERAL for graph, name in pairs)


def _assignment_finding(diagnosis: Diagnosis, trial: Trial, found: Sequence[_Assignments]) -> Finding:
    nodes, seconds = [node for one in found for node in one.nodes], sum(one.seconds for one in found)
    shape: tuple[Size, ...] = max((n.layout.shape for n in nodes if n.layout is not None), key=len, default=())
    share = evidence.share_of_kernels(trial, seconds)
    return LD306.finding(
        trial.name,
        f"slice assignments in generated code, which writes the whole tensor ({shape_words(shape)}) "
        f"{count_of(len(nodes), 'time')}: {wording.cost_words(trial, seconds)}",
        "write the tensor once: pad the parts with torch.nn.functional.pad, and join them by torch.stack or torch.cat",
        severity=severity_of_loss(Times(diagnosis), trial, share, _assigns_nothing),
        at=_line_of_assignment(trial, found),
        evidence=[one.kernel for one in found],
        seconds=seconds,
    )


def _line_of_assignment(trial: Trial, found: Sequence[_Assignments]) -> FxNode | None:
    """Returns the node of the first slice assignment whose line is known; None without such a node."""
    kernels = {one.kernel for one in found}
    for graph in trial.graphs:
        nodes = evidence.nodes_by_name(graph)
        origins = (nodes.get(name) for buffer in graph.buffers if buffer.kernel in kernels for name in buffer.origins)
        copies = (node for node in origins if node is not None and base_name(node.target) == "copy")
        if (first := next((node for node in copies if node.location is not None), None)) is not None:
            return first
    return None


LD306 = Rule("LD306", "slower-generated-kernel", slower_kernels)
