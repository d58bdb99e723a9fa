"""
What a report counts beyond ``analysis.costs``: conversions by kind of tensor, and what redundant pairs waste.

One place for the sums, so that the first lines, the table and the details cannot disagree. Faces the other modules of
reports; imports records and analysis only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.analysis.costs import sum_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from layoutdoctor.records import Conversion, Trial


@dataclass(frozen=True, slots=True)
class Waste:
    """
    What the redundant pairs of one trial cost in one iteration.

    Attributes:
        pair_count: Redundant pairs.
        seconds: Time of all conversions in them, each counted once; None where not measured for every one.
        bytes_moved: Bytes the same conversions move; None where not known for every one.
        owners: Who inserted these conversions, sorted.
        exposed_seconds: In a recorded trace, the part of ``seconds`` in which nothing else ran on the device; None
            where not known for every one.
    """

    pair_count: int
    seconds: float | None
    bytes_moved: int | None
    owners: tuple[str, ...]
    exposed_seconds: float | None = None


def count_by_tensor(conversions: Iterable[Conversion]) -> dict[str, int]:
    """
    How many conversions there are of each kind of tensor, in a fixed order; each as many times as it was launched.

    Args:
        conversions: Any conversions.
    """
    counts: Counter[str] = Counter()
    for conversion in conversions:
        counts[conversion.tensor] += conversion.count
    return {kind: counts[kind] for kind in ("activation", "weight", "gradient", "unknown") if counts[kind]}


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
    exposed = [part.exposed_seconds for part in parts]
    return Waste(
        pair_count=len(trial.redundant_pairs),
        seconds=sum_seconds(parts) if complete else _sum_of_pairs(trial),
        bytes_moved=sum(m for m in moved if m is not None) if complete and None not in moved else None,
        owners=tuple(sorted({part.owner for part in parts})),
        exposed_seconds=sum(e for e in exposed if e is not None) if complete and None not in exposed else None,
    )


def _all_conversions(trial: Trial) -> Iterable[Conversion]:
    for graph in trial.graphs:
        yield from graph.conversions
    if trial.kernels is not None:
        yield from trial.kernels.conversions


def _sum_of_pairs(trial: Trial) -> float | None:
    seconds = [pair.seconds for pair in trial.redundant_pairs]
    return None if None in seconds else sum(s for s in seconds if s is not None)


def is_measured(trial: Trial | None) -> bool:
    """
    Whether a trial has times of its own.

    Args:
        trial: Any trial, or None.
    """
    return trial is not None and trial.measurement is not None
