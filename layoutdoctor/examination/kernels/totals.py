"""The kernels of a recorded run as records, and their sums by name, operation, module and step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis import Kernel, Total, TotalKind
from layoutdoctor.examination.kernels.names import (
    MOVES,
    OF_CONVOLUTIONS_ALONE,
    library_of,
    work_of,
)
from layoutdoctor.recording.recording import NONE
from layoutdoctor.units import NANOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from layoutdoctor.examination.kernels.attribution import Attribution

MOST_KERNELS_LISTED = 20_000
"""Longest kernel list, which limits the size of a saved diagnosis. Sums and conversions cover all kernels."""


def kernel_records(attribution: Attribution, origin: int) -> tuple[Kernel, ...]:
    """
    The kernel list, cut to a length that a saved diagnosis can hold.

    Args:
        origin: The moment at which starts are 0, in nanoseconds after the trace's base time.
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
    Sorts kernels' work into ``beside`` (side work of convolutions) and ``moved`` (other work that moves data).

    Args:
        work: The kind of work of each kernel, and whether the kernel ran for a convolution.
    """
    known = [(kind, is_own or kind in OF_CONVOLUTIONS_ALONE) for kind, is_own in work]
    return {
        "beside": [kind if is_own else None for kind, is_own in known],
        "moved": [None if is_own or kind not in MOVES else kind for kind, is_own in known],
    }


def totals_of(
    attribution: Attribution, others: Mapping[TotalKind, Sequence[str | None]], is_conversion: NDArray[np.bool_]
) -> tuple[Total, ...]:
    """Sums by name, operation, step and ``others``, longest first in each kind; ``moved`` includes device copies."""
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
    return (*added_up(called, spent), *added_up({"moved": moved}, [*spent, *transferred]))


def added_up(
    names: Mapping[TotalKind, Sequence[str | None]],
    spent: Sequence[tuple[int, float, bool]],
    unit: float = NANOSECONDS_PER_SECOND,
) -> tuple[Total, ...]:
    """
    Sums by name, longest first within each kind.

    Args:
        spent: The number of launches of each entry, their time, and whether they convert a layout; used for all kinds.
        unit: The number of time units in a second: 1e9 if times are in nanoseconds.
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
