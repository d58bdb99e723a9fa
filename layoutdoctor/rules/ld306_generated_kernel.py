"""LD306: generated kernels that are slower than the operations they replace."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from layoutdoctor.diagnosis import Account, AccountRow, Diagnosis, Finding, FxNode, Size, Trial
from layoutdoctor.examination.account import called_name, is_computed
from layoutdoctor.examination.counts import Hotspot
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.examination.kernels.causes import slice_assignments, threads_started_in_loops
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.accounts import large_rows, place_of_row, severity_of_rows, work_words
from layoutdoctor.rules.advice import Times, severity_of_loss, use_faster
from layoutdoctor.rules.base import Rule
from layoutdoctor.units import format_ratio, format_seconds
from layoutdoctor.words import count_of, distinct, joined, listing, phrase, shape_words, shown

_LEAST_SHARE_OF_KERNELS = 0.10
_SLOWER_KERNEL = 1.5
_SEVERAL = 2


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
    assigning = list(evidence.first_showing(trials, _dear_assignments))
    for trial, found in assigning:
        yield _assignment_finding(diagnosis, trial, found)
    seen = set[tuple[str, ...]]()
    for account in diagnosis.accounts:
        slower = diagnosis.find_trial(account.slower)
        known = {one.kernel for one in _dear_assignments(slower)} if assigning and slower is not None else set()
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
    elsewhere = _missing_operations(diagnosis, account, worst)
    more = distinct(name for row in others for name in row.slower_kernels if name not in worst.slower_kernels)
    number = len(worst.slower_kernels)
    facts = (
        f"{'' if number == 1 else f'{number} '}generated kernel{'' if number == 1 else 's'} for {work_words(worst)}: "
        f"{format_seconds(slower)}, in {shown(account.faster)}{phrase(', without {},', elsewhere, listing)} "
        f"{format_seconds(faster)} ({format_ratio(slower / faster)} slower)",
        None if threads == 0 else f"threads started inside its loops{times}",
        f"{count_of(len(more), 'more kernel')}: {format_seconds(sum(row.seconds for row in others))} lost"
        if others
        else None,
    )
    source = ": its source is in the JSON" if worst.source else ""
    use = use_faster(diagnosis, account)
    return LD306.finding(
        account.slower,
        joined(facts),
        joined((use, "" if use and elsewhere else f"report the kernel to PyTorch{source}")),
        severity=severity_of_rows(diagnosis, account, rows),
        at=_place_of_kernel(diagnosis, account, worst),
        evidence=[name for row in rows for name in row.slower_kernels],
        seconds=sum(row.seconds for row in rows),
    )


def _place_of_kernel(diagnosis: Diagnosis, account: Account, row: AccountRow) -> Hotspot:
    """Returns module and line of the largest operation in a row's costliest kernel; else the row's module and line."""
    trial = diagnosis.find_trial(account.slower)
    fused = _fused_nodes(trial, row.slower_kernels[:1]) if trial is not None else ()
    placed = [one for one in fused if one[0].location is not None and is_computed(one[0])]
    if not placed:
        return place_of_row(row)
    node, _ = max(placed, key=lambda one: _elements(*one))
    return Hotspot(node.module, node.location)


def _missing_operations(diagnosis: Diagnosis, account: Account, row: AccountRow) -> list[str]:
    """Returns operations of a row that its faster generated kernels do not compute: they are folded or fused there."""
    trial = diagnosis.find_trial(account.faster)
    nodes = _fused_nodes(trial, row.faster_kernels) if trial is not None else ()
    computed = {called_name(node) for node, _ in nodes if is_computed(node)}
    return [name for name in row.operations if name not in computed] if computed else []


def _fused_nodes(trial: Trial, kernels: Collection[str]) -> Iterator[tuple[FxNode, Mapping[str, FxNode]]]:
    """Yields the nodes that generated kernels compute, each with the nodes of its graph."""
    for graph in trial.graphs:
        nodes = evidence.nodes_by_name(graph)
        names = distinct(name for buffer in graph.buffers if buffer.kernel in kernels for name in buffer.origins)
        yield from ((nodes[name], nodes) for name in names if name in nodes)


def _elements(node: FxNode, nodes: Mapping[str, FxNode]) -> int:
    """Counts the elements of the largest tensor that an operation reads or writes; symbolic sizes do not count."""
    touched = [node, *(nodes[name] for name in node.inputs if name in nodes)]
    shapes = [one.layout.shape for one in touched if one.layout is not None]
    return max((math.prod(size for size in shape if isinstance(size, int)) for shape in shapes), default=0)


def _assignments(trial: Trial) -> list[_Assignments]:
    """Returns kernels with several slice assignments, the costliest first; one without a known time takes 0 seconds."""
    found = []
    for graph in trial.graphs:
        for kernel in distinct(buffer.kernel for buffer in graph.buffers):
            nodes = slice_assignments(graph, kernel)
            if len(nodes) >= _SEVERAL:
                seconds = evidence.seconds_of_kernel(trial, graph, kernel) or 0.0
                found.append(_Assignments(kernel, nodes, seconds))
    return sorted(found, key=lambda one: -one.seconds)


def _dear_assignments(trial: Trial) -> list[_Assignments]:
    """Returns kernels with several slice assignments, the costliest first, without kernels that take little time."""
    found = _assignments(trial)
    return [one for one in found if evidence.takes_at_least(trial, one.seconds, _LEAST_SHARE_OF_KERNELS)]


def _assignment_finding(diagnosis: Diagnosis, trial: Trial, found: Sequence[_Assignments]) -> Finding:
    nodes, seconds = [node for one in found for node in one.nodes], sum(one.seconds for one in found)
    shape: tuple[Size, ...] = max((n.layout.shape for n in nodes if n.layout is not None), key=len, default=())
    share = evidence.share_of_kernels(trial, seconds)
    fused = (node for node, _ in _fused_nodes(trial, [one.kernel for one in found]))
    copies = (node for node in fused if base_name(node.target) == "copy" and node.location is not None)
    return LD306.finding(
        trial.name,
        f"slice assignments in generated code, which writes the whole tensor ({shape_words(shape)}) "
        f"{count_of(len(nodes), 'time')}: {wording.cost_words(trial, seconds)}",
        "write the tensor once: pad the parts with torch.nn.functional.pad, and join them by torch.stack or torch.cat",
        severity=severity_of_loss(Times(diagnosis), trial, share, lambda other: not _assignments(other)),
        at=next(copies, None),
        evidence=[one.kernel for one in found],
        seconds=seconds,
    )


LD306 = Rule("LD306", "slower-generated-kernel", slower_kernels)
