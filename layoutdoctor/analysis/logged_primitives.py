"""
The kernel list of a oneDNN verbose log alone, with no profile beside it.

A log names no operations. A reorder is placed by the convolutions it stands between, where its sizes and format are
those of one of their tensors and nothing ran at the same time; everything else keeps its layouts and times, but not
what it was for. Faces ``examination``; no torch.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.analysis.kernel_list import add_primitive, summarize
from layoutdoctor.analysis.primitives import annotate_sequence, describe_primitive, problem_shapes
from layoutdoctor.records import Total

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.analysis.primitives import AnnotatedPrimitive
    from layoutdoctor.records import Conversion, Kernel, KernelSummary
    from layoutdoctor.traces.onednn import OnednnLog, Primitive

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
    not_understood = len(log.not_understood)
    not_understood += sum(conversion.source is None or conversion.target is None for conversion in conversions)
    own = [primitive for primitive, is_own in zip(log.primitives, of_convolutions, strict=True) if is_own]
    unplaced = sum(conversion.tensor == "unknown" and conversion.direction != "none" for conversion in conversions)
    summary = summarize(kernels, conversions, not_understood, ("oneDNN verbose log",), _lacks(log, unplaced))
    return msgspec.structs.replace(
        summary,
        convolution_count=len(own),
        convolution_seconds=sum(primitive.seconds for primitive in own),
        totals=_totals(annotated),
    )


def _lacks(log: OnednnLog, unplaced: int) -> tuple[str, ...]:
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


def _totals(annotated: Sequence[AnnotatedPrimitive]) -> tuple[Total, ...]:
    """Sums by kind of primitive, longest first."""
    by_kind: dict[str, list[AnnotatedPrimitive]] = {}
    for item in annotated:
        by_kind.setdefault(item.primitive.kind, []).append(item)
    totals = (_total(kind, items) for kind, items in by_kind.items())
    return tuple(sorted(totals, key=lambda total: (-total.seconds, total.name)))


def _total(kind: str, items: Sequence[AnnotatedPrimitive]) -> Total:
    converting = [item for item in items if kind == "reorder" and item.direction != "none"]
    return Total(
        kind="kernel",
        name=kind,
        count=len(items),
        seconds=sum(item.primitive.seconds for item in items),
        conversion_count=len(converting),
        conversion_seconds=sum(item.primitive.seconds for item in converting),
        library="onednn",
    )
