"""
A table of kernel totals as a kernel list: counts and sums, no order and no operations beyond what the table names.

Faces ``examination``; no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.analysis.trace_attribution import is_convolution
from layoutdoctor.kernel_names import dtypes_of, is_convolution_kernel, kernel_entry, library_of
from layoutdoctor.records import Conversion, KernelSummary, Total
from layoutdoctor.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from layoutdoctor.records import TotalKind
    from layoutdoctor.traces.recorded import KernelTotal, KernelTotals

_SECONDS_PER_NANOSECOND = 1e-9
_LACKS = (
    "a table of totals holds no order, shapes or lines, so round trips cannot be found in it; a trace of "
    "torch.profiler (export_chrome_trace) does"
)


def summarize_table(table: KernelTotals) -> KernelSummary:
    """
    The kernel list of a table of totals; each conversion in it stands for all launches of one row.

    Args:
        table: Any table.
    """
    rows = table.rows
    conversions = [(row, conversion) for number, row in enumerate(rows) if (conversion := _conversion(number, row))]
    real = [conversion for _, conversion in conversions if conversion.direction != "none"]
    whole = sum(row.nanoseconds for row in rows)
    spent = sum(row.nanoseconds for row, conversion in conversions if conversion.direction != "none")
    own = [row for row in rows if _is_of_a_convolution(row)]
    unclear = [row for row in rows if _is_unclear(row)]
    lost = sum(problem.count for problem in table.problems if problem.is_loss)
    return KernelSummary(
        count=sum(row.count for row in rows),
        seconds=whole * _SECONDS_PER_NANOSECOND,
        conversion_count=sum(conversion.count for conversion in real),
        conversion_seconds=spent * _SECONDS_PER_NANOSECOND,
        share=spent / whole if whole else None,
        conversions=tuple(conversion for _, conversion in conversions),
        not_understood_count=lost + sum(row.count for row in unclear),
        sources=("table of kernel totals", table.source),
        lacks=tuple(_lacks(table, unclear)),
        convolution_count=sum(row.count for row in own),
        convolution_seconds=sum(row.nanoseconds for row in own) * _SECONDS_PER_NANOSECOND,
        totals=(*_totals("kernel", rows, lambda row: row.name), *_totals("operation", rows, lambda row: row.operation)),
    )


def _conversion(number: int, row: KernelTotal) -> Conversion | None:
    match = kernel_entry(row.name, is_cut=row.is_cut)
    if match is None or match.entry.role not in ("conversion", "padding"):
        return None
    dtypes = dtypes_of(row.name)
    return Conversion(
        id=f"conversion {number}",
        owner="library",
        kernel=row.name,
        node=None,
        op=row.operation,
        location=None,
        module=None,
        source=None,
        target=None,
        direction=match.entry.direction if match.entry.role == "conversion" else "none",
        tensor="unknown",
        seconds=row.nanoseconds * _SECONDS_PER_NANOSECOND,
        bytes_moved=None,
        dtype=dtypes[0] if dtypes else None,
        target_dtype=dtypes[1] if dtypes and dtypes[1] != dtypes[0] else None,
        seconds_source="measured",
        count=row.count,
        cause=None if match.is_certain else "the name is cut short; what is left of it begins as this kernel's does",
    )


def _is_of_a_convolution(row: KernelTotal) -> bool:
    """By the operation that the table names, else by the kernel's name."""
    if row.operation is not None and row.operation.startswith("aten::"):
        return is_convolution(row.operation)
    match = kernel_entry(row.name, is_cut=row.is_cut)
    return is_convolution_kernel(row.name) or (match is not None and match.entry.role in ("conversion", "padding"))


def _is_unclear(row: KernelTotal) -> bool:
    match = kernel_entry(row.name, is_cut=row.is_cut)
    return match is not None and match.entry.role == "possible"


def _lacks(table: KernelTotals, unclear: Sequence[KernelTotal]) -> Iterator[str]:
    if not table.rows:
        yield "the table has no kernels, so nothing can be said of conversions"
        return
    yield _LACKS
    if unclear:
        seconds = sum(row.nanoseconds for row in unclear) * _SECONDS_PER_NANOSECOND
        yield (
            f"{sum(row.count for row in unclear)} kernels ({format_seconds(seconds)}) may convert a layout, their "
            f"names do not say: {unclear[0].name[:60]}"
        )
    cut = sum(row.is_cut for row in table.rows)
    if cut:
        yield f"{cut} names are cut short, so kernels are known by their beginning only"


def _totals(kind: TotalKind, rows: Sequence[KernelTotal], key: Callable[[KernelTotal], str | None]) -> list[Total]:
    groups: dict[str, list[KernelTotal]] = {}
    for row in rows:
        name = key(row)
        if name is not None:
            groups.setdefault(name, []).append(row)
    found = []
    for name, members in groups.items():
        converting = [row for row in members if (c := _conversion(0, row)) is not None and c.direction != "none"]
        found.append(
            Total(
                kind=kind,
                name=name,
                count=sum(row.count for row in members),
                seconds=sum(row.nanoseconds for row in members) * _SECONDS_PER_NANOSECOND,
                conversion_count=sum(row.count for row in converting),
                conversion_seconds=sum(row.nanoseconds for row in converting) * _SECONDS_PER_NANOSECOND,
                library=library_of(name) if kind == "kernel" else None,
            )
        )
    return sorted(found, key=lambda total: -total.seconds)
