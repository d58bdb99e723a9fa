"""Makes the kernel list of a table of totals."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis import Conversion, KernelSummary, Lack, Total, TotalKind
from layoutdoctor.examination.kernels.attribution import is_convolution_operation
from layoutdoctor.examination.kernels.host import moves_elements
from layoutdoctor.examination.kernels.mangled import demangled
from layoutdoctor.examination.kernels.names import (
    GENERATED_POINTWISE,
    dtypes_of,
    kernel_class,
    work_of,
)
from layoutdoctor.examination.kernels.sums import lost_count
from layoutdoctor.examination.kernels.totals import added_up, work_by_kind
from layoutdoctor.examination.where import Where
from layoutdoctor.units import NANOSECONDS_PER_SECOND, format_seconds
from layoutdoctor.words import count_of

if TYPE_CHECKING:
    from layoutdoctor.recording.recording import KernelTotal, KernelTotals


def summarize_table(table: KernelTotals) -> KernelSummary:
    """Makes the kernel list of a table of totals; a conversion in the list is a row of the table, with all launches."""
    of_operations = table.source == "operation_averages"
    rows = [
        replace(row, name=demangled(row.name))
        for row in table.rows
        if not of_operations or (row.nanoseconds and moves_elements(row.name))
    ]
    conversions = [_conversion(number, row) for number, row in enumerate(rows)]
    converts = [bool(conversion and conversion.direction != "none") for conversion in conversions]
    copies = next((name for name in _COPIES if any(row.name == name for row in rows)), None)
    unclear = [row.name if row.name == copies or kernel_class(row.name).role in _UNCLEAR else None for row in rows]
    work = [None if name else work_of(row.name) for row, name in zip(rows, unclear, strict=True)]
    count, listed_seconds = _sums(rows)
    unlisted = 0.0 if table.nanoseconds is None else table.nanoseconds / NANOSECONDS_PER_SECOND - listed_seconds
    is_cut = is_short = unlisted > _MOST_UNLISTED * listed_seconds  # then convolutions may be missing in the table
    seconds = None if table.is_nested else listed_seconds + (0.0 if of_operations else max(0.0, unlisted))
    conversion_count, conversion_seconds = _sums(row for row, does in zip(rows, converts, strict=True) if does)
    undecided_count, undecided_seconds = _sums(row for row, name in zip(rows, unclear, strict=True) if name)
    copied = _cut_copies(table)
    convolutions = [row for row in rows if _is_of_a_convolution(row)]
    convolution_count, convolution_seconds = _sums(convolutions)
    if of_operations:
        convolution_count, whole_seconds = _whole_convolutions(table.rows)
        if table.misses_operations:
            copied += _inside_convolutions(table.rows)
            convolution_seconds = max(convolution_seconds, whole_seconds)
    elif convolutions and not any(map(_convolves, convolutions)):
        is_cut = True  # only conversions and helpers are listed, so the row of their convolution is missing
    spent = [(row.count, row.nanoseconds, does) for row, does in zip(rows, converts, strict=True)]
    called: dict[TotalKind, Sequence[str | None]] = {
        "kernel": [row.name for row in rows],
        "operation": [row.operation for row in rows],
        "possible": unclear,
        **work_by_kind(zip(work, map(_is_of_a_convolution, rows), strict=True)),
    }
    return KernelSummary(
        count=count,
        seconds=seconds,
        conversion_count=conversion_count,
        conversion_seconds=conversion_seconds,
        share=min(1.0, conversion_seconds / seconds) if seconds else None,
        conversions=tuple(filter(None, conversions)),
        not_understood_count=lost_count(table),
        undecided_count=undecided_count + sum(total.count for total in copied),
        undecided_seconds=undecided_seconds + sum(total.seconds for total in copied),
        sources=("totals_table", table.source),
        lacks=tuple(_lacks(table, listed_seconds, unlisted if is_short else 0.0)),
        convolution_count=None if is_cut and not of_operations else convolution_count,
        convolution_seconds=None if table.is_nested or (is_cut and not of_operations) else convolution_seconds,
        totals=added_up(called, spent) + copied,
    )


def _sums(rows: Iterable[KernelTotal]) -> tuple[int, float]:
    """Number of launches of some rows, and their seconds."""
    known = list(rows)
    return sum(row.count for row in known), sum(row.nanoseconds for row in known) / NANOSECONDS_PER_SECOND


def _cut_copies(table: KernelTotals) -> tuple[Total, ...]:
    """Total of kernels with cut names that may be eager copies; at most the total of the operation that runs copies."""
    cut, copies = _sums(row for row in table.rows if _CUT_COPY.match(row.name)), table.copies
    if copies is None or not cut[0]:
        return ()
    (count, seconds) = map(min, zip(cut, _sums([copies]), strict=True))
    return (Total(kind="possible", name=copies.name, count=int(count), seconds=seconds),)


_CUT_COPY = re.compile(
    r"(?:void )?at::native::(?:\w{1,20}::)?(?:unrolled_)?elementwise_kernel.{0,30}(?:\.\.\.|\u2026)$"
)


_REORDERS_WEIGHTS = re.compile(r"aten::mkldnn_reorder_conv[23]d_weight|mkldnn::_reorder_\w+_weight")


_UNCLEAR = ("possible", "strided_copy")


_COPIES = ("aten::copy_", "aten::clone", "aten::contiguous")
"""Operations that may convert a layout. Each calls the operation before it; only the first in a table counts."""


def _conversion(number: int, row: KernelTotal) -> Conversion | None:
    own = kernel_class(row.name)
    of_weights = _REORDERS_WEIGHTS.fullmatch(row.name) is not None
    if not of_weights and own.role not in ("conversion", "padding"):
        return None
    dtype, target_dtype = dtypes_of(row.name) or (None, None)
    return Conversion(
        id=f"conversion {number}",
        owner="library",
        kernel=row.name,
        **Where(op=row.operation)._asdict(),
        source=None,
        target=None,
        direction="to_blocked" if of_weights else own.direction,
        tensor="weight" if of_weights else "unknown",
        seconds=row.nanoseconds / NANOSECONDS_PER_SECOND,
        bytes_moved=None,
        dtype=dtype,
        target_dtype=None if target_dtype == dtype else target_dtype,
        seconds_source="measured",
        count=row.count,
    )


def _is_of_a_convolution(row: KernelTotal) -> bool:
    """Whether a row ran for a convolution, by the operation that the table names, or else by the kernel's name."""
    if row.operation is not None and row.operation.startswith("aten::"):
        return is_convolution_operation(row.operation)
    own = kernel_class(row.name)
    return own.is_main or own.is_helper or own.role in ("conversion", "padding")


def _convolves(row: KernelTotal) -> bool:
    """Whether a row that ran for a convolution may compute, because it is neither a conversion nor a helper."""
    own = kernel_class(row.name)
    return own.is_main or (
        row.operation is not None and not own.is_helper and own.role not in ("conversion", "padding")
    )


_LEVELS = (
    r"aten::conv(?:_transpose)?[123]d",
    r"aten::convolution",
    r"aten::_convolution",
    r"(?!.*backward)(?!aten::(?:_?convolution|conv(?:_transpose)?[123]d|_convolution_mode)$).*",
)
"""Operations of a forward convolution, from the outermost: each calls the next, so one call counts in each level."""


def _whole_convolutions(rows: Sequence[KernelTotal]) -> tuple[int, float]:
    """
    The number of forward convolutions, or else of backward convolutions; and the seconds of both. The seconds
    include called operations. Nested rows count once.
    """
    own = [row for row in rows if row.operation is not None and is_convolution_operation(row.operation)]
    levels = [[row for row in own if re.fullmatch(level, str(row.operation))] for level in _LEVELS]
    backward = [[row for row in own if row.operation == "aten::convolution_backward"]]
    backward.append([row for row in own if "backward" in str(row.operation) and row not in backward[0]])
    counts = [max(sum(row.count for row in level) for level in group) for group in (levels, backward)]
    times = [max(sum(row.total_nanoseconds or 0 for row in level) for level in group) for group in (levels, backward)]
    return counts[0] or counts[1], sum(times) / NANOSECONDS_PER_SECOND


def _inside_convolutions(rows: Sequence[KernelTotal]) -> tuple[Total, ...]:
    """Totals of unlisted calls inside convolutions of a library: such a call may copy a tensor for the library."""
    found = []
    for row in rows:
        inside = (row.total_nanoseconds or 0) - row.nanoseconds
        if _OF_A_LIBRARY.match(str(row.operation)) and inside > _MOST_UNLISTED * row.nanoseconds:
            seconds = inside / NANOSECONDS_PER_SECOND
            found.append(Total(kind="possible", name=f"inside {row.name}", count=row.count, seconds=seconds))
    return tuple(found)


_OF_A_LIBRARY = re.compile(r"aten::(?:cudnn|miopen|mkldnn)_convolution(?!_backward)")


def _lacks(table: KernelTotals, listed_seconds: float, unlisted_seconds: float) -> Iterator[Lack]:
    of_operations = table.source == "operation_averages"
    if of_operations and not table.rows:
        reason = "the table has times of the host alone: kernels were not recorded (ProfilerActivity.CUDA)"
        yield Lack(part="kernels", reason=reason)
        return
    if of_operations and table.device == "cpu":
        reason = "what oneDNN converts within its operations is in its own log (ONEDNN_VERBOSE=1), not in a table"
        yield Lack(part="kernels_of_library", reason=reason)
    elif of_operations:
        reason = (
            "the table lists no kernels, so it does not show what libraries convert: from torch 1.8.1 on, "
            'sort_by="self_cuda_time_total" puts kernels first'
        )
        yield Lack(part="kernels_of_library", reason=reason)
    if table.is_nested:
        reason = "times of operations include the operations that they called, so they cannot be added up"
        yield Lack(part="times", reason=reason)
    elif unlisted_seconds and table.rows:
        all_rows = _ALL_ROWS if table.source in ("key_averages", "operation_averages") else ""
        listed, whole = format_seconds(listed_seconds), format_seconds(listed_seconds + unlisted_seconds)
        ran, rest = ("operations", "ranges and Python code, or ") if of_operations else ("kernels", "")
        reason = (
            f"the {ran} that the table lists take {listed} of its total of {whole}; the rest is {rest}not listed"
            f"{all_rows}"
        )
        yield Lack(part="rows", reason=reason)
    if not table.rows:
        yield Lack(part="rows", reason="the table has no kernels, so nothing can be said of conversions")
        return
    reason = (
        "a table of totals holds no order, streams, shapes or lines; to find round trips, record a trace of "
        "torch.profiler (export_chrome_trace)"
    )
    yield Lack(part="order", reason=reason)
    count, seconds = _sums(row for row in table.rows if GENERATED_POINTWISE.match(row.name))
    if count:
        reason = (
            f"it is not known which of {count_of(count, 'generated kernel')} ({format_seconds(seconds)}) convert a "
            "layout, as a table has no launch grids"
        )
        yield Lack(part="block_sizes", reason=reason)
    cut = sum(row.name.endswith(("...", "…")) for row in table.rows)
    if cut and not of_operations:
        reason = (
            f"{count_of(cut, 'name is', 'names are')} cut short, so kernels are known by their beginning only"
            f"{_WHOLE_NAMES if table.source == 'key_averages' else ''}"
        )
        yield Lack(part="kernel_names", reason=reason)


_ALL_ROWS = " (row_limit=-1 lists all)"
_WHOLE_NAMES = " (max_name_column_width=None prints them whole)"


_MOST_UNLISTED = 0.01
"""Share of the listed time; a smaller difference comes from rounding."""
