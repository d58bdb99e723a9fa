"""
Sums over the kernels of a recorded trace: by name, operation, module and step, and those of convolutions.

Faces ``trace_conversions``; no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutdoctor.kernel_names import library_of
from layoutdoctor.records import Kernel, Total
from layoutdoctor.traces.recorded import NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from layoutdoctor.analysis.trace_attribution import Attribution
    from layoutdoctor.records import TotalKind
    from layoutdoctor.traces.recorded import Column, RecordedTrace

MOST_KERNELS_LISTED = 20_000
"""A longer list would only make the saved diagnosis large; sums and conversions are complete all the same."""

_SECONDS_PER_NANOSECOND = 1e-9


def convolution_sums(trace: RecordedTrace, groups: Sequence[int]) -> tuple[int | None, int | None]:
    """
    Kernels that ran for convolutions, and their nanoseconds; None where the trace has no kernels.

    Args:
        trace: Any recorded trace.
        groups: From ``trace_convolutions.groups_of``.
    """
    if not len(trace.kernels):
        return None, None
    is_own = np.array(groups, np.int64) != NONE
    return int(is_own.sum()), int(trace.kernels.duration[is_own].sum())


def kernel_records(trace: RecordedTrace, attribution: Attribution) -> tuple[Kernel, ...]:
    """
    The kernel list, cut to a length that a saved diagnosis can hold.

    Args:
        trace: Any recorded trace.
        attribution: Its attribution.
    """
    kernels, names = trace.kernels, trace.names
    libraries = {index: library_of(names[index]) for index in sorted(set(kernels.name.tolist()))}
    most = MOST_KERNELS_LISTED
    operation_names = trace.operations.name.tolist()
    columns = (kernels.name, kernels.duration, kernels.start, kernels.stream, attribution.operation)
    return tuple(
        Kernel(
            name=names[name],
            seconds=duration * _SECONDS_PER_NANOSECOND,
            start_seconds=start * _SECONDS_PER_NANOSECOND,
            op=names[operation_names[operation]] if operation != NONE else None,
            library=libraries[name],
            stream=stream,
        )
        for name, duration, start, stream, operation in zip(*(c[:most].tolist() for c in columns), strict=True)
    )


def totals_of(
    trace: RecordedTrace,
    attribution: Attribution,
    modules: Sequence[str | None],
    is_conversion: NDArray[np.bool_],
) -> tuple[Total, ...]:
    """
    Sums by kernel name, outermost operation, module and step; longest first within each kind.

    Args:
        trace: Any recorded trace.
        attribution: Its attribution.
        modules: Of each kernel; None where not known.
        is_conversion: Of each kernel, whether a library converts a layout in it.
    """
    operations = np.full(len(trace.kernels), NONE, np.int64)
    known = attribution.operation != NONE
    operations[known] = trace.operations.name[attribution.outermost[attribution.operation[known]]]
    numbers: dict[str, int] = {}
    module = np.array([NONE if m is None else numbers.setdefault(m, len(numbers)) for m in modules], np.int64)
    kinds: tuple[tuple[TotalKind, Column, Sequence[str]], ...] = (
        ("kernel", trace.kernels.name, trace.names),
        ("operation", operations, trace.names),
        ("module", module, list(numbers)),
        ("step", attribution.step, attribution.step_names),
    )
    return tuple(
        total
        for kind, keys, names in kinds
        for total in _totals(kind, keys, names, trace.kernels.duration, is_conversion)
    )


def _totals(
    kind: TotalKind, keys: Column, names: Sequence[str], duration: Column, is_conversion: NDArray[np.bool_]
) -> list[Total]:
    known = keys != NONE
    keys, duration, is_conversion = keys[known], duration[known], is_conversion[known]
    size = len(names)
    counts = np.bincount(keys, minlength=size)
    spent = np.zeros(size, np.int64)
    np.add.at(spent, keys, duration)
    conversions = np.bincount(keys[is_conversion], minlength=size)
    in_conversions = np.zeros(size, np.int64)
    np.add.at(in_conversions, keys[is_conversion], duration[is_conversion])
    return [
        Total(
            kind=kind,
            name=names[key],
            count=int(counts[key]),
            seconds=int(spent[key]) * _SECONDS_PER_NANOSECOND,
            conversion_count=int(conversions[key]),
            conversion_seconds=int(in_conversions[key]) * _SECONDS_PER_NANOSECOND,
            library=library_of(names[key]) if kind == "kernel" else None,
        )
        for key in np.argsort(-spent, kind="stable").tolist()
        if counts[key]
    ]
