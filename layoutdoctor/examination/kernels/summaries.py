"""
The kernel list of a oneDNN verbose log alone, with no profile beside it.

A log names no operations. A reorder is placed by the convolutions it stands between, where its sizes and format are
those of one of their tensors and nothing ran at the same time; everything else keeps its layouts and times, but not
what it was for.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from layoutdoctor.diagnosis.records import Conversion, Kernel, KernelSummary, Total
from layoutdoctor.examination.kernels.attribution import is_convolution
from layoutdoctor.examination.kernels.host import add_primitive, summarize
from layoutdoctor.examination.kernels.names import (
    dtypes_of,
    is_convolution_kernel,
    kernel_entry,
    library_of,
    looks_like_conversion,
)
from layoutdoctor.examination.kernels.primitives import annotate_sequence, describe_primitive, problem_shapes
from layoutdoctor.recording.recording import NONE
from layoutdoctor.units import NANOSECONDS_PER_SECOND, format_seconds
from layoutdoctor.words import count_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from layoutdoctor.diagnosis.records import TotalKind
    from layoutdoctor.examination.kernels.attribution import Attribution
    from layoutdoctor.examination.kernels.primitives import AnnotatedPrimitive
    from layoutdoctor.recording.onednn import OnednnLog, Primitive
    from layoutdoctor.recording.recording import Column, KernelTotal, KernelTotals, RecordedTrace

_CONVOLUTIONS = ("convolution", "deconvolution")

_MOST_REORDERS_OF_TWO_CONVOLUTIONS = 8
"""One may convert its results, the next its arguments: more reorders than that between them prepare something else."""

_CLOCK_RESOLUTION_SECONDS = 2e-6
"""oneDNN prints whole microseconds in old versions; a start and an end are each off by up to one."""


def summarize_log(log: OnednnLog) -> KernelSummary:
    """
    The kernel list of a log: every executed primitive, every reorder as a conversion.

    Args:
        log: The parsed log; several processes and threads may have written it.

    Returns:
        Totals by kind of primitive are filled. ``convolution_seconds`` counts the convolutions and the reorders placed
        with one of them, so it is the least there can have been.
    """
    annotated, of_convolutions = _placed(log.primitives)
    origin = min((item.start_seconds for item in log.primitives if item.start_seconds is not None), default=0.0)
    kernels: list[Kernel] = []
    conversions: list[Conversion] = []
    for item in annotated:
        add_primitive(kernels, conversions, item, None, origin)
    conversions = [_with_confidence(conversion) for conversion in conversions]
    if log.has_timestamps:
        kernels.sort(key=lambda kernel: kernel.start_seconds or 0.0)
    own = [primitive for primitive, is_own in zip(log.primitives, of_convolutions, strict=True) if is_own]
    unplaced = sum(conversion.tensor == "unknown" and conversion.direction != "none" for conversion in conversions)
    lacks = _logged_lacks(log, unplaced)
    summary = summarize(kernels, conversions, len(log.not_understood), ("oneDNN verbose log",), lacks)
    by_kind = sorted(annotated, key=lambda item: item.primitive.kind)
    spent = _Spent(
        np.ones(len(by_kind), np.int64),
        np.array([item.primitive.seconds for item in by_kind], np.float64),
        np.array([item.primitive.kind == "reorder" and item.direction != "none" for item in by_kind], bool),
    )
    totals = _totals("kernel", *_numbered(item.primitive.kind for item in by_kind), spent)
    return msgspec.structs.replace(
        summary,
        convolution_count=len(own),
        convolution_seconds=sum(primitive.seconds for primitive in own),
        totals=tuple(msgspec.structs.replace(total, library="onednn") for total in totals),
    )


def _logged_lacks(log: OnednnLog, unplaced: int) -> tuple[str, ...]:
    lacks = ["a oneDNN log names no operations, modules or lines; record with torch.profiler for those"]
    if unplaced:
        lacks.append(
            f"which tensor {unplaced} of the reorders convert: no convolution beside them in the log has a tensor "
            "of that size and format"
        )
    if log.primitives and not log.has_timestamps:
        lacks.append("when each primitive ran; log with ONEDNN_VERBOSE_TIMESTAMP=1")
    return tuple(lacks)


def _with_confidence(conversion: Conversion) -> Conversion:
    """A log line has the sizes and both formats, so that the direction is proved where they could be read."""
    if conversion.source is None or conversion.target is None:
        return conversion
    return msgspec.structs.replace(conversion, confidence="shapes")


def _placed(primitives: Sequence[Primitive]) -> tuple[list[AnnotatedPrimitive], list[bool]]:
    """Every primitive with what it converts, and whether it ran for a convolution."""
    annotated = [describe_primitive(primitive) for primitive in primitives]
    of_convolutions = [primitive.kind in _CONVOLUTIONS for primitive in primitives]
    for first, last in _runs(primitives):
        if last - first > _MOST_REORDERS_OF_TWO_CONVOLUTIONS:
            continue
        begin = first - 1 if first > 0 and _is_known_convolution(primitives[first - 1]) else first
        end = last + 1 if last < len(primitives) and _is_known_convolution(primitives[last]) else last
        if end - begin == last - first or not _ran_in_turn(primitives[begin:end]):
            continue
        around = annotate_sequence(primitives[begin:end])[first - begin : last - begin]
        for index, item in enumerate(around, start=first):
            if item.tensor != "unknown" and item.primitive.shape is not None:
                annotated[index], of_convolutions[index] = item, True
    return annotated, of_convolutions


def _runs(primitives: Sequence[Primitive]) -> Iterator[tuple[int, int]]:
    """Reorders that stand together: index of the first and index behind the last."""
    first: int | None = None
    for index, primitive in enumerate(primitives):
        if primitive.kind == "reorder":
            first = index if first is None else first
        elif first is not None:
            yield first, index
            first = None
    if first is not None:
        yield first, len(primitives)


def _is_known_convolution(primitive: Primitive) -> bool:
    """A convolution whose sizes are known; without them a reorder would fit by its format alone: too little."""
    return bool(problem_shapes(primitive))


def _ran_in_turn(primitives: Sequence[Primitive]) -> bool:
    """False where two of them ran at once, so on two threads whose lines only happen to stand side by side."""
    return all(
        before.start_seconds is None
        or after.start_seconds is None
        or after.start_seconds >= before.start_seconds + before.seconds - _CLOCK_RESOLUTION_SECONDS
        for before, after in pairwise(primitives)
    )


_LACKS = (
    "a table of totals holds no order, shapes or lines, so round trips cannot be found in it; a trace of "
    "torch.profiler (export_chrome_trace) does"
)


def summarize_table(table: KernelTotals) -> KernelSummary:
    """The kernel list of a table of totals; each conversion in it stands for all launches of one row."""
    rows = table.rows
    conversions = [_conversion(number, row) for number, row in enumerate(rows)]
    converts = [conversion is not None and conversion.direction != "none" for conversion in conversions]
    real = [row for row, does in zip(rows, converts, strict=True) if does]
    whole, spent = (sum(row.nanoseconds for row in counted) for counted in (rows, real))
    columns = _Spent(
        np.array([row.count for row in rows], object),  # no sum of what a damaged table says runs over
        np.array([row.nanoseconds for row in rows], object),
        np.array(converts, bool),
        NANOSECONDS_PER_SECOND,
    )
    own = [row for row in rows if _is_of_a_convolution(row)]
    unclear = [row for row in rows if _is_unclear(row)]
    lost = sum(problem.count for problem in table.problems if problem.is_loss)
    return KernelSummary(
        count=sum(row.count for row in rows),
        seconds=whole / NANOSECONDS_PER_SECOND,
        conversion_count=sum(row.count for row in real),
        conversion_seconds=spent / NANOSECONDS_PER_SECOND,
        share=spent / whole if whole else None,
        conversions=tuple(conversion for conversion in conversions if conversion is not None),
        not_understood_count=lost + sum(row.count for row in unclear),
        undecided_count=sum(row.count for row in unclear),
        undecided_seconds=sum(row.nanoseconds for row in unclear) / NANOSECONDS_PER_SECOND,
        sources=("table of kernel totals", table.source),
        lacks=tuple(_lacks(table, unclear)),
        convolution_count=sum(row.count for row in own),
        convolution_seconds=sum(row.nanoseconds for row in own) / NANOSECONDS_PER_SECOND,
        totals=(
            *_totals("kernel", *_numbered(row.name for row in rows), columns),
            *_totals("operation", *_numbered(row.operation for row in rows), columns),
        ),
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
        seconds=row.nanoseconds / NANOSECONDS_PER_SECOND,
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
    if match is None:
        return not _is_of_a_convolution(row) and looks_like_conversion(row.name)
    return match.entry.role == "possible"


def _lacks(table: KernelTotals, unclear: Sequence[KernelTotal]) -> Iterator[str]:
    if not table.rows:
        yield "the table has no kernels, so nothing can be said of conversions"
        return
    yield _LACKS
    if unclear:
        seconds = sum(row.nanoseconds for row in unclear) / NANOSECONDS_PER_SECOND
        yield (
            f"{count_of(sum(row.count for row in unclear), 'kernel')} ({format_seconds(seconds)}) may convert a "
            f"layout, which names alone do not say: {max(unclear, key=lambda row: row.nanoseconds).name[:60]}"
        )
    cut = sum(row.is_cut for row in table.rows)
    if cut:
        yield f"{cut} names are cut short, so kernels are known by their beginning only"


MOST_KERNELS_LISTED = 20_000
"""A longer list would only make the saved diagnosis large; sums and conversions are complete all the same."""


def convolution_sums(trace: RecordedTrace, groups: Sequence[int]) -> tuple[int | None, int | None]:
    """Kernels that ran for convolutions, and their nanoseconds; None where the trace has no kernels."""
    if not len(trace.kernels):
        return None, None
    is_own = np.array(groups, np.int64) != NONE
    return int(is_own.sum()), int(trace.kernels.duration[is_own].sum())


def kernel_records(attribution: Attribution, origin: int = 0) -> tuple[Kernel, ...]:
    """
    The kernel list, cut to a length that a saved diagnosis can hold.

    Args:
        origin: Nanoseconds since the trace's base, which starts count from.
    """
    trace = attribution.trace
    kernels, names = trace.kernels, trace.names
    libraries = {index: library_of(names[index]) for index in sorted(set(kernels.name.tolist()))}
    most = MOST_KERNELS_LISTED
    operation_names = trace.operations.name.tolist()
    columns = (kernels.name, kernels.duration, kernels.start, kernels.stream, attribution.operation)
    return tuple(
        Kernel(
            name=names[name],
            seconds=duration / NANOSECONDS_PER_SECOND,
            start_seconds=(start - origin) / NANOSECONDS_PER_SECOND,
            op=names[operation_names[operation]] if operation != NONE else None,
            library=libraries[name],
            stream=stream,
        )
        for name, duration, start, stream, operation in zip(*(c[:most].tolist() for c in columns), strict=True)
    )


def totals_of(
    attribution: Attribution, modules: Sequence[str | None], is_conversion: NDArray[np.bool_]
) -> tuple[Total, ...]:
    """
    Sums by kernel name, outermost operation, module and step; longest first within each kind.

    Args:
        modules: Of each kernel; None where not known.
        is_conversion: Of each kernel, whether a library converts a layout in it.
    """
    trace = attribution.trace
    operations = np.full(len(trace.kernels), NONE, np.int64)
    known = attribution.operation != NONE
    operations[known] = trace.operations.name[attribution.outermost[attribution.operation[known]]]
    spent = _Spent(np.ones(len(trace.kernels), np.int64), trace.kernels.duration, is_conversion, NANOSECONDS_PER_SECOND)
    return (
        *_totals("kernel", trace.kernels.name, trace.names, spent),
        *_totals("operation", operations, trace.names, spent),
        *_totals("module", *_numbered(modules), spent),
        *_totals("step", attribution.step, attribution.step_names, spent),
    )


class _Spent(NamedTuple):
    """What kernels, rows of a table or lines of a log took, by columns: launches, time, and whether they convert."""

    launches: NDArray[Any]
    times: NDArray[Any]
    converts: NDArray[np.bool_]
    units_per_second: float = 1.0


def _numbered(names: Iterable[str | None]) -> tuple[Column, Sequence[str]]:
    """Numbers in place of names, ``NONE`` for none; and the names by number."""
    numbers: dict[str, int] = {}
    keys = [NONE if name is None else numbers.setdefault(name, len(numbers)) for name in names]
    return np.array(keys, np.int64), list(numbers)


def _totals(kind: TotalKind, keys: Column, names: Sequence[str], spent: _Spent) -> list[Total]:
    """Sums by name, longest first."""

    def added(values: NDArray[Any], where: NDArray[np.bool_]) -> NDArray[Any]:
        sums = np.zeros(len(names), values.dtype)
        np.add.at(sums, keys[where], values[where])
        return sums

    whole = keys != NONE
    converting = whole & spent.converts
    times = added(spent.times, whole)
    columns = [times, added(spent.launches, whole), added(spent.times, converting), added(spent.launches, converting)]
    is_there = np.isin(np.arange(len(names)), keys)
    order = [key for key in np.argsort(-times, kind="stable").tolist() if is_there[key]]
    return [
        Total(
            kind=kind,
            name=names[key],
            count=count,
            seconds=time / spent.units_per_second,
            conversion_count=conversion_count,
            conversion_seconds=conversion_time / spent.units_per_second,
            library=library_of(names[key]) if kind == "kernel" else None,
        )
        for key, time, count, conversion_time, conversion_count in zip(
            order, *(column[order].tolist() for column in columns), strict=True
        )
    ]
