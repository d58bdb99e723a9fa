"""
Lists and sums of the conversions of a trial. Also decides whether layouts can matter to a model at all.

Rules and reports both call these functions, so that their numbers agree.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from layoutdoctor.diagnosis import Conversion, Diagnosis, KernelSummary, RedundantPair, SourceLocation, Trial
from layoutdoctor.diagnosis.answer import FASTER, INCONCLUSIVE
from layoutdoctor.examination.graphs.layout_agnostic import convolves, strided_norms
from layoutdoctor.units import format_share, sum_if_all_known

IRRELEVANT_SHARE = 0.02
"""Conversions that take a smaller share of the kernel time are not worth a change of layout."""


Number = TypeVar("Number", int, float)


def all_conversions_of(trial: Trial) -> tuple[Conversion, ...]:
    """All conversions of a trial that change a layout, including fused conversions; the kernel list's come first."""
    found: dict[str, Conversion] = {}
    for conversion in (*trial.kernel_summary.conversions, *(c for graph in trial.graphs for c in graph.conversions)):
        if conversion.direction != "none":
            found.setdefault(conversion.id, conversion)
    return tuple(found.values())


def conversions_of(trial: Trial) -> tuple[Conversion, ...]:
    """
    The conversions of a call that change a layout.

    Left out: conversions fused into a kernel that also computes, and conversions of graphs that a recompile replaced.
    """
    replaced = _replaced_conversions(trial)
    return tuple(c for c in all_conversions_of(trial) if not c.fused and c.id not in replaced)


def _replaced_conversions(trial: Trial) -> set[str]:
    """Ids of the conversions in graphs that a recompile replaced: no kernel of these graphs ran in the call."""
    ran = {kernel.graph for kernel in trial.kernel_summary.kernels} - {None}
    if not trial.recompile_count or not ran:
        return set()
    return {c.id for graph in trial.graphs if graph.name not in ran for c in graph.conversions}


def counted_conversions(trial: Trial) -> tuple[Conversion, ...]:
    """
    The conversions that ran as separate kernels.

    Fused conversions and library conversions outside the kernel list are left out. A generated kernel of a trace is
    left out if its code was not recorded, because it may be a plain copy.
    """
    ran = {conversion.id for conversion in trial.kernel_summary.conversions}
    was_read = any(graph.buffers for graph in trial.graphs)
    unsure = "compiler" if trial.configuration.backend == "recorded" and not was_read else None
    return tuple(c for c in conversions_of(trial) if (c.owner != "library" or c.id in ran) and c.owner != unsure)


def sum_of_known(values: Iterable[Number | None]) -> Number | None:
    """The sum of the values that were recorded, all in one unit; None if no value was recorded."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def sum_seconds(conversions: Iterable[Conversion]) -> float | None:
    """The time of all conversions; None if any of their times is not known, 0 if there is no conversion."""
    return sum_if_all_known(0.0, *(conversion.seconds for conversion in conversions))


def parts_of_pairs(
    pairs: Sequence[RedundantPair], conversions: Iterable[Conversion]
) -> Sequence[RedundantPair] | Sequence[Conversion]:
    """
    Splits round trips into parts whose costs can be added up.

    The parts are the pairs, unless some pairs share a conversion: then each conversion of the pairs is one part, if all
    are in ``conversions``. A pair's time does not include conversions fused into kernels that compute.
    """
    ids = [id_ for pair in pairs for id_ in (pair.first, *pair.also, pair.second)]
    once = dict.fromkeys(ids)
    known = {conversion.id: conversion for conversion in conversions}
    return [known[id_] for id_ in once] if len(once) < len(ids) and known.keys() >= once.keys() else pairs


def launch_count(conversions: Iterable[Conversion]) -> int:
    """The number of launches of conversions; only a table of totals has several launches in one conversion."""
    return sum(conversion.count for conversion in conversions)


def count_by_tensor(conversions: Iterable[Conversion]) -> dict[str, int]:
    """The number of launches of conversions for each kind of tensor, in a fixed order."""
    counts: Counter[str] = Counter()
    for conversion in conversions:
        counts[conversion.tensor] += conversion.count
    return {kind: counts[kind] for kind in ("activation", "weight", "gradient", "unknown") if counts[kind]}


@dataclass(frozen=True)
class Hotspot:
    """A module and line of the model, with the known cost of the conversions or round trips there."""

    module: str | None
    location: SourceLocation | None
    seconds: float | None = None
    bytes_moved: int = 0


def places_of(costs: Iterable[Conversion | RedundantPair]) -> list[Hotspot]:
    """
    Adds up conversions or round trips by module and line, the most expensive first.

    A conversion or round trip with neither module nor line is left out.
    """
    groups: dict[tuple[str | None, SourceLocation | None], list[Conversion | RedundantPair]] = defaultdict(list)
    for one in costs:
        if one.module is not None or one.location is not None:
            groups[one.module, one.location].append(one)
    found = [
        Hotspot(*key, sum_of_known(one.seconds for one in own), sum(one.bytes_moved or 0 for one in own))
        for key, own in groups.items()
    ]
    return sorted(found, key=lambda place: (-(place.seconds or 0.0), -place.bytes_moved))


def dearest_of(conversions: Iterable[Conversion]) -> Conversion | None:
    """The conversion that takes most time, or moves most bytes if times are not known; None without conversions."""
    return max(conversions, key=lambda c: (c.seconds or 0.0, c.bytes_moved or 0), default=None)


def conversion_share(trial: Trial) -> float | None:
    """
    The time of all counted conversions over the time of all kernels.

    None unless kernels and graphs were recorded completely and every counted conversion has a known time.
    """
    kernels = trial.kernel_summary
    if not kernels.seconds or not kernels.is_complete or kernels.not_understood_count:
        return None
    if any(graph.hook_failure or graph.not_understood for graph in trial.graphs):
        return None
    seconds = sum_seconds(counted_conversions(trial))
    return None if seconds is None else seconds / kernels.seconds


def convolution_seconds(kernels: KernelSummary) -> float | None:
    """Time of all kernels that ran for convolutions, including conversions for them; None if not known."""
    if kernels.convolution_seconds is not None:
        return kernels.convolution_seconds
    called = [
        kernel for kernel in kernels.kernels if kernel.library != "inductor"
    ]  # a generated name lists fused operations
    own = [kernel.seconds for kernel in called if "conv" in kernel.name or "conv" in (kernel.op or "")]
    return sum_if_all_known(0.0, *own) if kernels.kernels else None


def of_convolutions(kernels: KernelSummary, conversions: Sequence[Conversion]) -> Sequence[Conversion]:
    """The conversions whose time is in the convolution time; for a oneDNN log, the conversions of known tensors."""
    if not kernels.convolution_count:
        return ()
    if "onednn_log" in kernels.sources:
        return [conversion for conversion in conversions if conversion.tensor != "unknown"]
    return [conversion for conversion in conversions if conversion.op is None or "conv" in conversion.op]


def convolution_count(diagnosis: Diagnosis) -> int | None:
    """The largest count of convolutions among the trials and the model's modules; None if no count was recorded."""
    counts = [count for trial in diagnosis.trials for count in _trial_convolution_counts(trial)]
    modules = diagnosis.subject.convolution_module_count
    if modules:
        counts.append(modules)
    return max(counts, default=None)


def irrelevance(diagnosis: Diagnosis) -> str | None:
    """The reason why layouts do not matter to this model; None if they may matter, or too little was recorded."""
    baseline, ratios = diagnosis.baseline, diagnosis.ratios.values()
    if baseline is None or not ratios or any(ratio.verdict == FASTER for ratio in ratios):
        return None
    share = conversion_share(baseline)
    if share is not None and share >= IRRELEVANT_SHARE:
        return None
    if convolution_count(diagnosis) == 0:
        graphs = (graph for trial in diagnosis.trials for graph in trial.graphs)
        # A batch norm whose input is not contiguous runs another kernel: layouts matter without any convolution.
        return None if any(any(strided_norms(graph)) for graph in graphs) else "it has no convolution"
    if share is None or any(ratio.verdict == INCONCLUSIVE and ratio.median > 1 for ratio in ratios):
        return None
    if any(trial.status in ("failed", "crashed", "timed_out") for trial in diagnosis.trials):
        return None  # the failed configuration might have been faster
    return (
        f"layout conversions take {format_share(share)} of the kernel time" if share else "it runs no layout conversion"
    )


def _trial_convolution_counts(trial: Trial) -> Iterable[int]:
    if trial.graphs and len(trial.decisions) == len(trial.graphs):
        yield sum(card.convolution_count for card in trial.decisions)
    for graph in trial.graphs:
        if graph.nodes:
            yield sum(node.op == "call_function" and convolves(node.target) for node in graph.nodes)
    if trial.graphs:  # quantised convolutions may run between the graphs
        ran = sum(kernel.library != "inductor" and convolves(kernel.name) for kernel in trial.kernel_summary.kernels)
        if ran:
            yield ran
