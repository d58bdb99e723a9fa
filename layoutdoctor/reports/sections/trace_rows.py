"""
The tables of a report of a recorded trace: the places where conversions cost most, and the steps side by side.

Faces the view; imports records, units and the sums only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutdoctor.records import Total
from layoutdoctor.reports.sections.rows import Table, TableRow
from layoutdoctor.reports.sections.trace_wording import precise_share, recorded_trial
from layoutdoctor.reports.sections.wording import NAME_LENGTH, clean
from layoutdoctor.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from layoutdoctor.records import Diagnosis, KernelSummary, TotalKind

MOST_PLACES = 8
KERNEL_LENGTH = 60
"""Kernel names run to thousands of characters; what tells one from another stands at their beginning."""

WORTH_A_MODULE = 0.5
"""Modules are shown in place of operations where they hold at least this part of the operations' conversion time."""

_HEADS = ("kernels", "time", "conversions", "in conversions", "share")
_KERNEL_HEADS = ("launches", "time", "conversions")


def build_trace_tables(diagnosis: Diagnosis) -> tuple[Table, ...]:
    """
    The tables of a report of a recorded trace.

    Args:
        diagnosis: One of a trace.

    Returns:
        The places where conversions cost most, the costliest first, and the steps in their order where there are
        several; nothing where no place has a conversion.
    """
    trial = recorded_trial(diagnosis)
    if trial is None or trial.kernels is None:
        return ()
    totals = trial.kernels.totals
    kind = _kind_to_show(totals)
    tables = [] if kind is None else [_table(trial.kernels, kind, _by_cost(_with_conversions(totals, kind)))]
    steps = [total for total in totals if total.kind == "step"]
    if len(steps) > 1 and any(step.conversion_count for step in steps):
        ordered = sorted(steps, key=lambda step: _natural_order(step.name))
        tables.append(_table(trial.kernels, "step", ordered))
    return tuple(tables)


def total_heads(kind: TotalKind) -> tuple[str, ...]:
    """
    The heads of a table of totals, without that of the names.

    Args:
        kind: What the totals have in common. A kernel converts or does not, so it has no share.
    """
    return _KERNEL_HEADS if kind == "kernel" else _HEADS


def total_name(total: Total) -> str:
    """
    The name of a total, cut where it is long.

    Args:
        total: Any.
    """
    return clean(total.name, KERNEL_LENGTH if total.kind == "kernel" else NAME_LENGTH)


def total_cells(total: Total) -> tuple[str, ...]:
    """
    What stands behind a total's name, under ``total_heads``.

    Args:
        total: Any.
    """
    if total.kind == "kernel":
        return (str(total.count), format_seconds(total.seconds), str(total.conversion_count))
    return (
        str(total.count),
        format_seconds(total.seconds),
        str(total.conversion_count),
        format_seconds(total.conversion_seconds),
        precise_share(total.conversion_seconds, total.seconds) if total.seconds else "",
    )


def _kind_to_show(totals: Sequence[Total]) -> TotalKind | None:
    """Modules are what a reader can change; but only where enough of the kernels could be laid to them."""
    cost = {kind: _conversion_seconds(totals, kind) for kind in ("module", "operation")}
    if _with_conversions(totals, "module") and cost["module"] >= WORTH_A_MODULE * cost["operation"]:
        return "module"
    kinds: tuple[TotalKind, ...] = ("operation", "kernel")
    return next((kind for kind in kinds if _with_conversions(totals, kind)), None)


def _with_conversions(totals: Iterable[Total], kind: TotalKind) -> list[Total]:
    return [total for total in totals if total.kind == kind and total.conversion_count]


def _conversion_seconds(totals: Iterable[Total], kind: str) -> float:
    return sum(total.conversion_seconds for total in totals if total.kind == kind)


def _by_cost(totals: Iterable[Total]) -> list[Total]:
    return sorted(totals, key=lambda total: -total.conversion_seconds)


def _natural_order(name: str) -> list[tuple[int, str]]:
    """``ProfilerStep#10`` after ``ProfilerStep#9``."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"([0-9]{1,18})", name)]


def _table(kernels: KernelSummary, kind: TotalKind, totals: Sequence[Total]) -> Table:
    rows = [TableRow((total_name(total), *total_cells(total))) for total in totals[:MOST_PLACES]]
    rest = totals[MOST_PLACES:]
    if rest:
        rows.append(TableRow((f"{len(rest)} more", *total_cells(_sum(kind, rest)))))
    rows += _unplaced(kernels, kind, totals)
    return Table((kind, *total_heads(kind)), tuple(rows), wraps_names=True)


def _unplaced(kernels: KernelSummary, kind: TotalKind, totals: Sequence[Total]) -> list[TableRow]:
    """The conversions of which the place was not recorded, so that the table adds up."""
    count = kernels.conversion_count - sum(total.conversion_count for total in totals)
    if count <= 0 or kernels.conversion_seconds is None:
        return []
    seconds = max(0.0, kernels.conversion_seconds - sum(total.conversion_seconds for total in totals))
    text = format_seconds(seconds)
    cells = (str(count), text, str(count)) if kind == "kernel" else ("", "", str(count), text, "")
    return [TableRow((f"no {kind} known", *cells))]


def _sum(kind: TotalKind, totals: Sequence[Total]) -> Total:
    return Total(
        kind=kind,
        name="",
        count=sum(total.count for total in totals),
        seconds=sum(total.seconds for total in totals),
        conversion_count=sum(total.conversion_count for total in totals),
        conversion_seconds=sum(total.conversion_seconds for total in totals),
    )
