"""The operations of one profiled iteration as objects, with their sizes: what an examination walks through."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from layoutdoctor.recording.recording import RecordedTrace

_SECONDS_PER_NANOSECOND = 1e-9
GENERATED_PREFIX = "layoutdoctor::"
"""Annotated ranges around generated kernels are called ``layoutdoctor::<graph>::<kernel>``."""


@dataclass(frozen=True)
class Operation:
    """
    One operation or annotated range on the host.

    Attributes:
        name: Such as ``aten::convolution``.
        start_seconds: Since the trace's base time, so that small differences keep their precision.
        seconds: Duration, children included.
        thread: Process and thread id, as text.
        shapes: Sizes of its arguments; empty entries for what is no tensor.
        strides: Strides of its arguments.
        sequence_number: Links an operation with the autograd node it made.
        external_id: Links device kernels with it.
        is_annotation: True for a ``record_function`` range.
        row: Its row among the operations of the trace that it was taken from; None for an annotated range.
    """

    name: str
    start_seconds: float
    seconds: float
    thread: str
    shapes: tuple[tuple[int, ...], ...] = ()
    strides: tuple[tuple[int, ...], ...] = ()
    sequence_number: int | None = None
    external_id: int | None = None
    is_annotation: bool = False
    row: int | None = None

    @property
    def end_seconds(self) -> float:
        """Its end, since the trace's base time."""
        return self.start_seconds + self.seconds


@dataclass
class ProfiledIteration:
    """
    What the profiler recorded.

    Attributes:
        operations: Sorted by start, parents before their children.
        base_seconds: Unix time the starts count from.
        not_understood_count: Events that could not be read.
    """

    operations: list[Operation] = field(default_factory=list)
    base_seconds: float = 0.0
    not_understood_count: int = 0


def iteration_of(trace: RecordedTrace) -> ProfiledIteration:
    """The operations and annotated ranges of one iteration, which know their rows in it."""
    # Numbers of nanoseconds until they are in order: two events within one may be a parent and its child.
    found = [*_annotations(trace), *_operations(trace)]
    found.sort(key=lambda item: (item[0], -item[1]))
    lost = sum(problem.count for problem in trace.problems if problem.is_loss)
    base = trace.metadata.get("baseTimeNanoseconds")
    return ProfiledIteration(
        operations=[operation for _, _, operation in found],
        base_seconds=((base if isinstance(base, int) else 0) + trace.base_nanoseconds) * _SECONDS_PER_NANOSECOND,
        not_understood_count=lost,
    )


_Timed = tuple[int, int, Operation]
"""Start and duration in nanoseconds, and the operation."""


def _annotations(trace: RecordedTrace) -> list[_Timed]:
    ranges = trace.annotations
    columns = (ranges.name.tolist(), ranges.start.tolist(), ranges.duration.tolist(), ranges.thread.tolist())
    return [
        _timed(trace, name, start, duration, thread, is_annotation=True)
        for name, start, duration, thread in zip(*columns, strict=True)
    ]


def _operations(trace: RecordedTrace) -> list[_Timed]:
    from layoutdoctor.recording.recording import NONE  # late: it brings numpy, which rules and saved diagnoses need not

    shapes = [_tuples_of(arguments.shapes) for arguments in trace.arguments]
    strides = [_tuples_of(arguments.strides) for arguments in trace.arguments]
    own = trace.operations
    columns = (own.name, own.start, own.duration, own.thread, own.external, own.sequence, own.arguments)
    return [
        _timed(
            trace,
            name,
            start,
            duration,
            thread,
            shapes=shapes[arguments] if arguments != NONE else (),
            strides=strides[arguments] if arguments != NONE else (),
            sequence_number=sequence if sequence != NONE else None,
            external_id=external if external != NONE else None,
            row=row,
        )
        for row, (name, start, duration, thread, external, sequence, arguments) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        )
    ]


def _timed(trace: RecordedTrace, name: int, start: int, duration: int, thread: int, **more: Any) -> _Timed:
    operation = Operation(
        name=trace.names[name],
        start_seconds=start * _SECONDS_PER_NANOSECOND,
        seconds=duration * _SECONDS_PER_NANOSECOND,
        thread=" ".join(trace.threads[thread]),
        **more,
    )
    return start, duration, operation


def _tuples_of(text: bytes) -> tuple[tuple[int, ...], ...]:
    return _tuples(msgspec.json.decode(text)) if text else ()


def _tuples(value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list):
        return ()
    return tuple(
        tuple(item) if isinstance(item, list) and all(isinstance(size, int) for size in item) else () for item in value
    )
