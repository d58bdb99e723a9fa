"""Finds outputs that compiled code returns in another layout than eager mode does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from layoutdoctor.diagnosis import Diagnosis, Layout, Trial
from layoutdoctor.diagnosis.layout import stride_order
from layoutdoctor.rules import evidence


@dataclass(frozen=True)
class OutputChange:
    """An output that a compiled trial returns in another layout than the eager trial of the same formats."""

    trial: Trial
    eager: Trial
    number: int
    expected: Layout
    returned: Layout


def output_changes(diagnosis: Diagnosis) -> Iterator[OutputChange]:
    """Yields outputs with right values whose bytes are in another order than in the eager trial of the same formats."""
    for trial in diagnosis.trials:
        equivalence, eager = trial.equivalence, evidence.eager_of_same_formats(diagnosis, trial)
        if equivalence is None or not trial.is_right or eager is None or eager.equivalence is None:
            continue
        pairs = zip(eager.equivalence.output_layouts, equivalence.output_layouts, strict=False)
        for number, (expected, returned) in enumerate(pairs):
            if _is_other_order(expected, returned):
                yield OutputChange(trial, eager, number, expected, returned)


def _is_other_order(first: Layout, second: Layout) -> bool:
    """Whether a copy between two layouts of one shape must reorder bytes; False if not certain."""
    if first.shape != second.shape or first.stride is None or second.stride is None:
        return False
    if first.memory_formats and second.memory_formats:
        return set(first.memory_formats).isdisjoint(second.memory_formats)
    orders = stride_order(first.shape, first.stride), stride_order(second.shape, second.stride)
    return None not in orders and orders[0] != orders[1]
