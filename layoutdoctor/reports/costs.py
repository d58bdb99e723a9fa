"""
What a report counts: the conversions of a trial, their time, and what redundant pairs waste.

One place for the sums, so that the first lines, the table and the details cannot disagree. Faces the other modules of
reports; imports records only.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from layoutdoctor.records import Conversion, Diagnosis, Trial

IRRELEVANT_SHARE = 0.02
"""Conversions that take less of the kernel time than this cannot be worth a change of layout."""

_CONVOLUTION_OPERATOR = re.compile(r"conv(olution|[123]d|_transpose)")


@dataclass(frozen=True, slots=True)
class Waste:
    """
    What the redundant pairs of one trial cost in one iteration.

    Attributes:
        pair_count: Redundant pairs.
        seconds: Time of all conversions in them, each counted once; None where not measured for every one.
        bytes_moved: Bytes the same conversions move; None where not known for every one.
        owners: Who inserted these conversions, sorted.
    """

    pair_count: int
    seconds: float | None
    bytes_moved: int | None
    owners: tuple[str, ...]


def counted_conversions(trial: Trial) -> tuple[Conversion, ...]:
    """
    The conversions of one iteration that run on their own and change a layout, each once.

    Args:
        trial: Any trial.

    Returns:
        Library conversions from the kernel list, then those of compiler, user and framework from the graphs. What is
        fused into a kernel that computes as well, or changes no layout, is left out.
    """
    recorded = [] if trial.kernels is None else list(trial.kernels.conversions)
    in_graphs = [c for graph in trial.graphs for c in graph.conversions if c.owner != "library"]
    found: dict[str, Conversion] = {}
    for conversion in (*recorded, *in_graphs):
        if conversion.direction != "none" and not conversion.fused:
            found.setdefault(conversion.id, conversion)
    return tuple(found.values())


def count_by_tensor(conversions: Iterable[Conversion]) -> dict[str, int]:
    """
    How many conversions there are of each kind of tensor, in a fixed order.

    Args:
        conversions: Any conversions.
    """
    counts = Counter(conversion.tensor for conversion in conversions)
    return {kind: counts[kind] for kind in ("activation", "weight", "gradient", "unknown") if counts[kind]}


def sum_seconds(conversions: Iterable[Conversion]) -> float | None:
    """
    Time of all; None where one of them was not measured.

    Args:
        conversions: Any conversions; the sum of none is zero.
    """
    total = 0.0
    for conversion in conversions:
        if conversion.seconds is None:
            return None
        total += conversion.seconds
    return total


def waste_of(trial: Trial) -> Waste | None:
    """
    What the redundant pairs of a trial cost; None where it has none.

    Args:
        trial: Any trial.
    """
    if not trial.redundant_pairs:
        return None
    known = {conversion.id: conversion for conversion in _all_conversions(trial)}
    ids = dict.fromkeys(id_ for pair in trial.redundant_pairs for id_ in (pair.first, pair.second))
    parts = [known[id_] for id_ in ids if id_ in known]
    complete = len(parts) == len(ids)
    moved = [part.bytes_moved for part in parts]
    return Waste(
        pair_count=len(trial.redundant_pairs),
        seconds=sum_seconds(parts) if complete else _sum_of_pairs(trial),
        bytes_moved=sum(m for m in moved if m is not None) if complete and None not in moved else None,
        owners=tuple(sorted({part.owner for part in parts})),
    )


def _all_conversions(trial: Trial) -> Iterable[Conversion]:
    for graph in trial.graphs:
        yield from graph.conversions
    if trial.kernels is not None:
        yield from trial.kernels.conversions


def _sum_of_pairs(trial: Trial) -> float | None:
    seconds = [pair.seconds for pair in trial.redundant_pairs]
    return None if None in seconds else sum(s for s in seconds if s is not None)


def conversion_share(trial: Trial | None) -> float | None:
    """
    Time of all counted conversions over the time of all kernels.

    Args:
        trial: Any trial.

    Returns:
        None unless kernels were recorded in full and every counted conversion has a time: an unknown is no zero.
    """
    if trial is None or trial.kernels is None or not trial.kernels.seconds or trial.kernels.lacks:
        return None
    if trial.kernels.not_understood_count or any(graph.hook_failure for graph in trial.graphs):
        return None
    seconds = sum_seconds(counted_conversions(trial))
    return None if seconds is None else seconds / trial.kernels.seconds


def convolution_count(diagnosis: Diagnosis) -> int | None:
    """
    How many convolutions the model has, as far as was recorded: in a graph, else as modules.

    Args:
        diagnosis: Any diagnosis.

    Returns:
        The most that any trial shows; None where nothing was recorded that could tell.
    """
    counts = [count for trial in diagnosis.trials for count in _trial_convolution_counts(trial)]
    modules = diagnosis.subject.convolution_module_count
    if modules:
        counts.append(modules)
    return max(counts) if counts else None


def _trial_convolution_counts(trial: Trial) -> Iterable[int]:
    cards = [graph.decision for graph in trial.graphs if graph.decision is not None]
    if cards and len(cards) == len(trial.graphs):
        yield sum(card.convolution_count for card in cards)
    for graph in trial.graphs:
        if graph.nodes:
            yield sum(_CONVOLUTION_OPERATOR.search(node.target) is not None for node in graph.nodes)


def is_measured(trial: Trial | None) -> bool:
    """
    Whether a trial has times of its own.

    Args:
        trial: Any trial, or None.
    """
    return trial is not None and trial.measurement is not None
