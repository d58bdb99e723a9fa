"""
Whether two recorded runs can be compared at all: what they have in common, and whether they did the same work.

Faces ``trace_comparison``; pure functions of records.
"""

from __future__ import annotations

import re
from statistics import median
from typing import TYPE_CHECKING

from layoutdoctor.analysis.layout_regression import format_count
from layoutdoctor.analysis.name_matching import match_exact_names, match_kernel_names
from layoutdoctor.comparison_records import Overlap

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from layoutdoctor.analysis.name_matching import NameMatch
    from layoutdoctor.records import Total, TotalKind

SMALL_OVERLAP = 0.25
"""Two runs with less than this part of their names in common seem to be different ones, if times agree with it."""

LARGE_SHARE = 0.5
"""A change such as ``torch.compile`` leaves few names and much of the time: both runs spend it under common names."""

SAME_COUNT = 0.02
"""Counts of kernels that differ by less than this part are those of the same work."""

FEWEST_OTHERS = 3
"""So many other operations must be there to say that a changed count of convolution kernels is not more work."""

_CONVOLUTION = re.compile(r"conv(?!ert)", re.IGNORECASE)


def totals_by_name(totals: Iterable[Total], kind: TotalKind) -> dict[str, Total]:
    """
    The totals of one kind by their name, in their order.

    Args:
        totals: Those of one run.
        kind: Which of them.
    """
    return {total.name: total for total in totals if total.kind == kind}


def find_overlap(old: Sequence[Total], new: Sequence[Total]) -> Overlap:
    """
    How much two recorded runs have in common.

    Args:
        old: The old run's totals.
        new: The new run's totals.

    Returns:
        By operations, by kernels where a run has no operation. A run without totals has nothing in common with any.
    """
    operations = totals_by_name(old, "operation"), totals_by_name(new, "operation")
    kernels = totals_by_name(old, "kernel"), totals_by_name(new, "kernel")
    modules = totals_by_name(old, "module"), totals_by_name(new, "module")
    by_kernel = match_kernel_names(*kernels)
    if all(operations):
        kind: TotalKind = "operation"
        names, (before, after) = match_exact_names(*operations), operations
    else:
        kind = "kernel"
        names, (before, after) = by_kernel, kernels
    common = [match for match in names if match.match is not None]
    old_share = _share(before, [name for match in common for name in match.old_names])
    new_share = _share(after, [name for match in common for name in match.new_names])
    is_empty = not (
        any(match.match is not None for match in by_kernel)
        or operations[0].keys() & operations[1].keys()
        or modules[0].keys() & modules[1].keys()
    )
    little_time = old_share is None or new_share is None or min(old_share, new_share) < LARGE_SHARE
    return Overlap(
        kind=kind,
        common_count=len(common),
        total_count=len(names),
        old_share=old_share,
        new_share=new_share,
        is_empty=is_empty,
        is_small=is_empty or (len(common) < SMALL_OVERLAP * len(names) and little_time),
    )


def find_unequal_work(old: Sequence[Total], new: Sequence[Total], old_parts: int = 1, new_parts: int = 1) -> str | None:
    """
    Why two runs seem not to have done the same work, by how many kernels ran for the operations that both have.

    Args:
        old: The old run's totals.
        new: The new run's totals.
        old_parts: By how many steps the old run's counts are divided.
        new_parts: The same for the new run.

    Returns:
        A clause; None where nothing says so. Conversions are left out, as these are what may come and go. Convolutions
        decide; where their count alone has changed and other operations' have not, another algorithm runs them.
        Counts cannot tell another batch size.
    """
    kind: TotalKind = "operation"
    before, after = totals_by_name(old, kind), totals_by_name(new, kind)
    matches = [match for match in match_exact_names(before, after) if match.match is not None]
    if not matches:
        kind = "kernel"
        before, after = totals_by_name(old, kind), totals_by_name(new, kind)
        matches = [match for match in match_kernel_names(before, after) if match.match is not None]
    counted = [
        (match, _count(before, match.old_names) / old_parts, _count(after, match.new_names) / new_parts)
        for match in matches
    ]
    counted = [entry for entry in counted if entry[1] and entry[2]]
    of_convolutions = [entry for entry in counted if _CONVOLUTION.search(entry[0].name)]
    others = [now / once for match, once, now in counted if not _CONVOLUTION.search(match.name)]
    others_agree = len(others) >= FEWEST_OTHERS and _is_same(1.0, median(others))
    if of_convolutions:
        once, now = sum(entry[1] for entry in of_convolutions), sum(entry[2] for entry in of_convolutions)
        if _is_same(once, now) or others_agree:
            return None
        return _sentence("convolutions", once, now, [entry[0] for entry in of_convolutions])
    if len(others) < FEWEST_OTHERS or others_agree:
        return None
    once, now = sum(entry[1] for entry in counted), sum(entry[2] for entry in counted)
    return _sentence("operations" if kind == "operation" else "kernels", once, now, [])


def _sentence(what: str, old: float, new: float, matches: Sequence[NameMatch]) -> str:
    names = f" ({', '.join(match.name for match in matches[:2])}{', ...' if len(matches) > 2 else ''})"
    return (
        f"for the {what} that both have{names if matches else ''} {format_count(old)} kernels ran in the old one and "
        f"{format_count(new)} in the new one, conversions left out"
    )


def _count(totals: Mapping[str, Total], names: Iterable[str]) -> int:
    return sum(totals[name].count - totals[name].conversion_count for name in names)


def _share(totals: Mapping[str, Total], names: Iterable[str]) -> float | None:
    whole = sum(total.seconds for total in totals.values())
    return sum(totals[name].seconds for name in names) / whole if whole else None


def _is_same(old: float, new: float) -> bool:
    return abs(new - old) <= SAME_COUNT * max(old, new)
