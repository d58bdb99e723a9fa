"""
Sums of a recorded run: the kernel list of a log or a table alone, totals by name, and how long a device waited.

A log names no operations. A reorder belongs to a convolution next to it if a tensor of the convolution has its sizes
and format; of other reorders, the layouts and times are known, but not the tensor.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from layoutdoctor.diagnosis.conversion import Conversion
from layoutdoctor.diagnosis.kernel import Creations, Kernel, KernelSummary, Total, Waiting
from layoutdoctor.diagnosis.lack import Lack
from layoutdoctor.examination.kernels.attribution import is_convolution
from layoutdoctor.examination.kernels.evidence import kernel_class
from layoutdoctor.examination.kernels.host import add_primitive, lost_count, moves_elements, summarize
from layoutdoctor.examination.kernels.mangled import demangled
from layoutdoctor.examination.kernels.names import (
    GENERATED_POINTWISE,
    MOVES,
    OF_CONVOLUTIONS_ALONE,
    dtypes_of,
    library_of,
    work_of,
)
from layoutdoctor.examination.kernels.primitives import annotate_sequence, describe, problem_shapes
from layoutdoctor.recording.onednn import is_engine
from layoutdoctor.recording.recording import NONE
from layoutdoctor.units import NANOSECONDS_PER_SECOND, format_seconds
from layoutdoctor.words import count_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from layoutdoctor.diagnosis.kernel import TotalKind
    from layoutdoctor.examination.kernels.attribution import Attribution
    from layoutdoctor.examination.kernels.primitives import AnnotatedPrimitive
    from layoutdoctor.recording.onednn import OnednnLog, Primitive
    from layoutdoctor.recording.recording import Column, KernelTotal, KernelTotals, RecordedTrace


_CONVOLUTIONS = ("convolution", "deconvolution")

_MOST_REORDERS_OF_TWO_CONVOLUTIONS = 8
"""The first may convert its results, the second its arguments; more reorders between them prepare something else."""


def summarize_log(log: OnednnLog) -> KernelSummary:
    """
    The kernel list of a log: every executed primitive, every reorder as a conversion.

    Returns:
        ``totals`` are by kind of primitive. ``convolution_seconds`` is a lower bound: it counts the convolutions and
        the reorders that are known to belong to one.
    """
    annotated, of_convolutions = _placed(log.primitives)
    origin = min((item.start_seconds for item in log.primitives if item.start_seconds is not None), default=0.0)
    kernels: list[Kernel] = []
    conversions: list[Conversion] = []
    for item in annotated:
        add_primitive(kernels, conversions, item, None, origin)
    # A log line has the sizes and both formats, so that the direction is proved if they could be read.
    conversions = [
        msgspec.structs.replace(c, confidence="shapes" if c.source and c.target else None) for c in conversions
    ]
    if log.has_timestamps:
        kernels.sort(key=lambda kernel: kernel.start_seconds or 0.0)
    own = [primitive for primitive, is_own in zip(log.primitives, of_convolutions, strict=True) if is_own]
    unplaced = sum(conversion.tensor == "unknown" and conversion.direction != "none" for conversion in conversions)
    lacks = tuple(_logged_lacks(log, unplaced))
    summary = summarize(kernels, conversions, len(log.not_understood), ("onednn_log",), lacks)
    spent = [(1, item.primitive.seconds, item.direction != "none") for item in annotated]
    totals = _totals({"kernel": [item.primitive.kind for item in annotated]}, spent, unit=1.0)
    return msgspec.structs.replace(
        summary,
        convolution_count=len(own),
        convolution_seconds=sum(primitive.seconds for primitive in own),
        totals=tuple(msgspec.structs.replace(total, library="onednn") for total in totals),
        creations=_creations(log),
    )


def _creations(log: OnednnLog) -> Creations | None:
    whole = [creation for creation in log.creations if not creation.how.startswith("create_nested")]
    if not whole:
        return None
    missed = [creation for creation in whole if not creation.how.endswith("cache_hit")]
    longest = max(whole, key=lambda creation: creation.seconds)
    fields = longest.primitive.split(",")
    return Creations(
        count=len(missed),
        distinct_count=len({creation.primitive for creation in missed}),
        hit_count=len(whole) - len(missed),
        seconds=sum(creation.seconds for creation in whole),
        longest=f"{next((text for text in fields if not is_engine(text)), '')} {fields[-1]}",
        longest_seconds=longest.seconds,
    )


def _logged_lacks(log: OnednnLog, unplaced: int) -> Iterator[Lack]:
    reason = "a oneDNN log names no operations, modules or lines; record with torch.profiler for those"
    yield Lack(part="operations", reason=reason)
    if unplaced:
        reason = (
            f"which tensor {unplaced} of the reorders convert: no convolution beside them in the log has a tensor "
            "of that size and format"
        )
        yield Lack(part="tensors", reason=reason)
    if log.primitives and not log.has_timestamps:
        yield Lack(part="times", reason="when each primitive ran; log with ONEDNN_VERBOSE_TIMESTAMP=1")
    if log.partition_seconds:
        seconds = format_seconds(sum(log.partition_seconds))
        count = count_of(len(log.partition_seconds), "partition")
        reason = f"what ran inside {count} of oneDNN Graph ({seconds}), as far as it has no lines of its own"
        yield Lack(part="kernels_of_library", reason=reason)
    if log.errors:
        reason = f"oneDNN reports {count_of(len(log.errors), 'error')}, first: {log.errors[0]}"
        yield Lack(part="kernels_of_library", reason=reason)


def _placed(primitives: Sequence[Primitive]) -> tuple[list[AnnotatedPrimitive], list[bool]]:
    """Every primitive with the tensor that it converts, and whether it ran for a convolution."""
    annotated = [describe(primitive) for primitive in primitives]
    of_convolutions = [primitive.kind in _CONVOLUTIONS for primitive in primitives]
    for is_reorder, run in groupby(range(len(primitives)), lambda index: primitives[index].kind == "reorder"):
        own = list(run)
        if not is_reorder or len(own) > _MOST_REORDERS_OF_TWO_CONVOLUTIONS:
            continue
        # Without the sizes of a convolution a reorder would fit by its format alone, which is not enough.
        beside = [i for i in (own[0] - 1, own[-1] + 1) if 0 <= i < len(primitives) and problem_shapes(primitives[i])]
        chosen = sorted((*own, *beside))
        for index, item in zip(chosen, annotate_sequence([primitives[i] for i in chosen]), strict=True):
            if item.tensor != "unknown" and item.primitive.shape is not None:
                annotated[index], of_convolutions[index] = item, True
    return annotated, of_convolutions


def summarize_table(table: KernelTotals) -> KernelSummary:
    """The kernel list of a table of totals; each conversion in it is one row of the table, with all its launches."""
    of_operations = table.source == "operation_averages"
    rows = [
        replace(row, name=demangled(row.name)) for row in table.rows if not of_operations or moves_elements(row.name)
    ]
    conversions = [_conversion(number, row) for number, row in enumerate(rows)]
    converts = [conversion is not None and conversion.direction != "none" for conversion in conversions]
    copies = next((name for name in _COPIES if any(row.name == name for row in rows)), None)
    unclear = [row.name if row.name == copies or kernel_class(row.name).role in _UNCLEAR else None for row in rows]
    work = [None if name else work_of(row.name) for row, name in zip(rows, unclear, strict=True)]
    count, listed_seconds = _sums(rows)
    unlisted = 0.0 if table.nanoseconds is None else table.nanoseconds / NANOSECONDS_PER_SECOND - listed_seconds
    is_cut = unlisted > _MOST_UNLISTED * listed_seconds  # then convolutions may be missing in the table
    seconds = None if table.is_nested else listed_seconds + (0.0 if of_operations else max(0.0, unlisted))
    conversion_count, conversion_seconds = _sums(row for row, does in zip(rows, converts, strict=True) if does)
    undecided_count, undecided_seconds = _sums(row for row, name in zip(rows, unclear, strict=True) if name)
    copied = _cut_copies(table)
    convolution_count, convolution_seconds = _sums(row for row in rows if _is_of_a_convolution(row))
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
        conversions=tuple(conversion for conversion in conversions if conversion is not None),
        not_understood_count=lost_count(table),
        undecided_count=undecided_count + sum(total.count for total in copied),
        undecided_seconds=undecided_seconds + sum(total.seconds for total in copied),
        sources=("totals_table", table.source),
        lacks=tuple(_lacks(table, listed_seconds, unlisted if is_cut else 0.0)),
        convolution_count=None if of_operations or is_cut else convolution_count,
        convolution_seconds=None if table.is_nested or (is_cut and not of_operations) else convolution_seconds,
        totals=_totals(called, spent) + copied,
    )


def _sums(rows: Iterable[KernelTotal]) -> tuple[int, float]:
    """Launches of some rows, and their seconds."""
    known = list(rows)
    return sum(row.count for row in known), sum(row.nanoseconds for row in known) / NANOSECONDS_PER_SECOND


def _cut_copies(table: KernelTotals) -> tuple[Total, ...]:
    """Eager copies among kernels whose names are cut before they say so: no more than the operation that runs them."""
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
"""Operations that may convert a layout. The later ones call the first, so only the first one in the table counts."""


def _conversion(number: int, row: KernelTotal) -> Conversion | None:
    own = kernel_class(row.name)
    of_weights = _REORDERS_WEIGHTS.fullmatch(row.name) is not None
    if not of_weights and own.role not in ("conversion", "padding"):
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
        direction="to_blocked" if of_weights else own.direction,
        tensor="weight" if of_weights else "unknown",
        seconds=row.nanoseconds / NANOSECONDS_PER_SECOND,
        bytes_moved=None,
        dtype=dtypes[0] if dtypes else None,
        target_dtype=dtypes[1] if dtypes and dtypes[1] != dtypes[0] else None,
        seconds_source="measured",
        count=row.count,
    )


def _is_of_a_convolution(row: KernelTotal) -> bool:
    """Whether a row ran for a convolution, by the operation that the table names, or else by the kernel's name."""
    if row.operation is not None and row.operation.startswith("aten::"):
        return is_convolution(row.operation)
    own = kernel_class(row.name)
    return own.is_main or own.is_helper or own.role in ("conversion", "padding")


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
            "the table lists no kernels, which show what libraries convert: from torch 1.8.1 on, "
            'sort_by="self_cuda_time_total" puts them first'
        )
        yield Lack(part="kernels_of_library", reason=reason)
    if table.is_nested:
        reason = "times of operations include those of the ones that they called, so they have no sum"
        yield Lack(part="times", reason=reason)
    elif unlisted_seconds and table.rows:
        listed, whole = format_seconds(listed_seconds), format_seconds(listed_seconds + unlisted_seconds)
        ran, rest = ("operations", "ranges and Python code, or ") if of_operations else ("kernels", "")
        reason = (
            f"the {ran} that the table lists take {listed} of its total of {whole}; the rest is {rest}not listed "
            "(row_limit=-1 lists all)"
        )
        yield Lack(part="rows", reason=reason)
    if not table.rows:
        yield Lack(part="rows", reason="the table has no kernels, so nothing can be said of conversions")
        return
    reason = (
        "a table of totals holds no order, streams, shapes or lines, so round trips cannot be found in it; a trace of "
        "torch.profiler (export_chrome_trace) does"
    )
    yield Lack(part="order", reason=reason)
    count, seconds = _sums(row for row in table.rows if GENERATED_POINTWISE.match(row.name))
    if count:
        reason = (
            f"which of {count_of(count, 'generated kernel')} ({format_seconds(seconds)}) convert a layout: a table has "
            "no launch grids"
        )
        yield Lack(part="block_sizes", reason=reason)
    cut = sum(row.name.endswith(("...", "…")) for row in table.rows)
    if cut and not of_operations:
        reason = (
            f"{count_of(cut, 'name is', 'names are')} cut short, so kernels are known by their beginning only"
            f"{_WHOLE_NAMES if table.source == 'key_averages' else ''}"
        )
        yield Lack(part="kernel_names", reason=reason)


_WHOLE_NAMES = " (max_name_column_width=None prints them whole)"
_MOST_UNLISTED = 0.01
"""As a share of the listed time; a smaller difference comes from rounding."""

MOST_KERNELS_LISTED = 20_000
"""A longer list would only make the saved diagnosis large; sums and conversions are complete all the same."""


def kernel_records(attribution: Attribution, origin: int = 0) -> tuple[Kernel, ...]:
    """
    The kernel list, cut to a length that a saved diagnosis can hold.

    Args:
        origin: The moment from which starts count, in nanoseconds since the trace's base.
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


def work_by_kind(work: Iterable[tuple[str | None, bool]]) -> dict[TotalKind, Sequence[str | None]]:
    """
    The kinds of work beside convolutions, and of other work that moves data.

    Args:
        work: Of each kernel, its kind of work, and whether it ran for a convolution.
    """
    known = [(kind, is_own or kind in OF_CONVOLUTIONS_ALONE) for kind, is_own in work]
    return {
        "beside": [kind if is_own else None for kind, is_own in known],
        "moved": [None if is_own or kind not in MOVES else kind for kind, is_own in known],
    }


def totals_of(
    attribution: Attribution, others: Mapping[TotalKind, Sequence[str | None]], is_conversion: NDArray[np.bool_]
) -> tuple[Total, ...]:
    """Sums by kernel name, operation, step and the given ``others``; longest first within each kind."""
    trace, names = attribution.trace, attribution.trace.names
    operations = trace.operations.name.tolist()
    outermost = [operations[row] for row in attribution.outermost.tolist()]
    called: dict[TotalKind, Sequence[str | None]] = {
        "kernel": [names[name] for name in trace.kernels.name.tolist()],
        "operation": [names[outermost[row]] if row != NONE else None for row in attribution.operation.tolist()],
        **others,
        "step": [attribution.step_names[step] if step != NONE else None for step in attribution.step.tolist()],
    }
    spent = [(1, *facts) for facts in zip(trace.kernels.duration.tolist(), is_conversion.tolist(), strict=True)]
    moves = (work_of(names[name]) for name in trace.transfers.name.tolist())
    moved = [*called.pop("moved"), *(work if work in MOVES else None for work in moves)]
    transferred = [(1, time, False) for time in trace.transfers.duration.tolist()]
    return (*_totals(called, spent), *_totals({"moved": moved}, [*spent, *transferred]))


def _totals(
    names: Mapping[TotalKind, Sequence[str | None]],
    spent: Sequence[tuple[int, float, bool]],
    unit: float = NANOSECONDS_PER_SECOND,
) -> tuple[Total, ...]:
    """
    Sums by name, longest first within each kind.

    Args:
        spent: Of each entry, its launches, their time, and whether they convert a layout; the same for all kinds.
        unit: How many units of time make a second: 1e9 if times are in nanoseconds.
    """
    found: list[Total] = []
    for kind, own in names.items():
        sums: dict[str, list[float]] = {}
        for name, (count, time, converts) in zip(own, spent, strict=True):
            if name is not None:
                amounts = sums.setdefault(name, [0, 0, 0, 0])
                for place in (0, 2) if converts else (0,):
                    amounts[place] += count
                    amounts[place + 1] += time
        found += [
            Total(
                kind=kind,
                name=name,
                count=int(count),
                seconds=time / unit,
                conversion_count=int(conversion_count),
                conversion_seconds=conversion_time / unit,
                library=library_of(name) if kind == "kernel" else None,
            )
            for name, (count, time, conversion_count, conversion_time) in sorted(
                sums.items(), key=lambda item: -item[1][1]
            )
        ]
    return tuple(found)


_COLLECTIVE = re.compile(r"^(?:void )?(?:\w{0,20}nccl(?:Dev)?Kernel|nccl|rccl|msccl|deep_ep::|mori::|ishmem|oneccl)")
# A kernel that starts this soon after its launch found an empty queue.
_SHORT_LAG_SECONDS = 1e-4
_HARDLY_BUSY, _MOSTLY_IDLE, _MOSTLY_BUSY = 0.3, 0.6, 0.9


def waiting_of(attribution: Attribution, exposed_nanoseconds: int) -> Waiting | None:
    """
    The waiting of a run, on the busiest device; None if no kernel ran.

    Args:
        exposed_nanoseconds: Time in which only kernels ran that convert, or may convert, a layout.
    """
    trace = attribution.trace
    if not len(trace.kernels):
        return None
    everything = np.ones(len(trace.kernels), bool)
    devices = _devices(trace, everything)
    ran = [_ran_on(trace, *device, everything) for device in devices]
    busy, first, last = max((int((end - begin).sum()), int(begin[0]), int(end[-1])) for begin, end in ran)
    names = np.array([_COLLECTIVE.match(name) is not None for name in trace.names] or [False])
    is_collective = names[trace.kernels.name]
    steps = _step_nanoseconds(attribution)
    whole = max(sum(steps), last - first) if steps else last - first
    step = sorted(steps)[len(steps) // 2] if steps else None
    lag = _lag(attribution, is_collective)
    return Waiting(
        span_seconds=whole / NANOSECONDS_PER_SECOND,
        busy_seconds=busy / NANOSECONDS_PER_SECOND,
        device_count=len(devices),
        collective_seconds=int(trace.kernels.duration[is_collective].sum()) / NANOSECONDS_PER_SECOND,
        copy_seconds=int(trace.transfers.duration.sum()) / NANOSECONDS_PER_SECOND,
        step_count=len(steps) or None,
        step_seconds=None if step is None else step / NANOSECONDS_PER_SECOND,
        conversion_bound_seconds=exposed_nanoseconds / NANOSECONDS_PER_SECOND / (len(steps) or 1),
        launch_lag_seconds=lag,
        waits_for=_waits_for(busy / whole if whole else 1.0, lag),
    )


def waiting_in_calls(waiting: Waiting, call_seconds: float) -> Waiting:
    """The waiting of a call that was timed without the profiler, because the profiler slows the launches."""
    waits_for = _waits_for(waiting.busy_seconds / call_seconds, waiting.launch_lag_seconds)
    return msgspec.structs.replace(waiting, span_seconds=call_seconds, waits_for=waits_for)


def _step_nanoseconds(attribution: Attribution) -> list[int]:
    """
    The length of each profiler step, up to the start of the next step; of the last step, as recorded.

    Steps in which nothing was launched on the device are left out.
    """
    starts, ends = attribution.step_starts, attribution.step_ends
    if not len(starts):
        return []
    until = np.concatenate([starts[1:], ends[-1:]])
    ran = np.isin(np.arange(len(starts)), attribution.step)
    return [int(length) for length in (until - starts)[ran].tolist() if length > 0]


def _lag(attribution: Attribution, is_collective: NDArray[np.bool_]) -> float | None:
    """Median seconds from launch to start of kernels with a known operation; collectives wait for other devices."""
    trace, launch = attribution.trace, attribution.launch
    known = (launch != NONE) & (attribution.operation != NONE) & ~is_collective
    if not known.any():
        return None
    lags = trace.kernels.start[known] - trace.launches.start[launch[known]]
    return float(np.median(np.maximum(lags, 0))) / NANOSECONDS_PER_SECOND


def _waits_for(busy_share: float, lag: float | None) -> Literal["device", "host"] | None:
    if busy_share >= _MOSTLY_BUSY:
        return "device"
    finds_empty_queue = lag is not None and lag <= _SHORT_LAG_SECONDS
    return "host" if busy_share <= _HARDLY_BUSY or (busy_share <= _MOSTLY_IDLE and finds_empty_queue) else None


def exposed_nanoseconds(trace: RecordedTrace, is_asked: NDArray[np.bool_]) -> tuple[int, Column]:
    """
    Time in which only the asked kernels ran on their device: no other kernel, no copy by the device's own engines.

    Returns:
        The time of all asked kernels together, overlaps counted once; and the time of each alone, 0 if not asked.
    """
    kernels = trace.kernels
    exposed = np.zeros(len(kernels), np.int64)
    total = 0
    for process, device in _devices(trace, is_asked):
        asked = (kernels.process == process) & (kernels.device == device) & is_asked
        busy = _ran_on(trace, process, device, ~is_asked)
        start, end = kernels.start[asked], kernels.start[asked] + kernels.duration[asked]
        mine = _union(start, end)
        total += int((mine[1] - mine[0] - _covered(mine[0], mine[1], *busy)).sum())
        exposed[asked] = end - start - _covered(start, end, *busy)
    return total, exposed


def _devices(trace: RecordedTrace, is_asked: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Process and device of the kernels that are asked for, each once."""
    kernels = trace.kernels
    return sorted(set(zip(kernels.process[is_asked].tolist(), kernels.device[is_asked].tolist(), strict=True)))


def _ran_on(trace: RecordedTrace, process: int, device: int, is_asked: NDArray[np.bool_]) -> tuple[Column, Column]:
    """Intervals in which an asked kernel, or a copy by the device's own engines, ran on a device."""
    kernels, transfers = trace.kernels, trace.transfers
    own = (kernels.process == process) & (kernels.device == device) & is_asked
    beside = (transfers.process == process) & (transfers.device == device)
    starts = np.concatenate([kernels.start[own], transfers.start[beside]])
    return _union(starts, starts + np.concatenate([kernels.duration[own], transfers.duration[beside]]))


def _union(starts: Column, ends: Column) -> tuple[Column, Column]:
    """Intervals in order; those that touch or overlap are merged."""
    if not len(starts):
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    is_first = np.concatenate([[True], starts[1:] > reach[:-1]])
    first = np.flatnonzero(is_first)
    return starts[first], reach[np.concatenate([first[1:] - 1, [len(starts) - 1]])]


def _covered(starts: Column, ends: Column, busy_starts: Column, busy_ends: Column) -> Column:
    """Time of each interval that is inside the busy intervals, which are disjoint and in order."""
    if not len(busy_starts):
        return np.zeros(len(starts), np.int64)
    before = np.concatenate([[0], np.cumsum(busy_ends - busy_starts)])
    return _busy_until(ends, before, busy_starts, busy_ends) - _busy_until(starts, before, busy_starts, busy_ends)


def _busy_until(moments: Column, before: Column, busy_starts: Column, busy_ends: Column) -> Column:
    place = np.searchsorted(busy_starts, moments, side="right") - 1
    inside = np.maximum(place, 0)
    partial = np.clip(moments - busy_starts[inside], 0, busy_ends[inside] - busy_starts[inside])
    sums: Column = np.where(place >= 0, before[inside] + partial, 0)
    return sums
