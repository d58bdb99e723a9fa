"""
What was seen of one trial of a diagnosis, or of a recorded run: the value that ``examine`` makes facts of.

A live run on a CPU or a GPU, a lowering for a GPU that is not there, a trace file, a table of kernels and a log of
oneDNN all end in this value. It needs no torch, and nothing in it was proved by looking at it.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from layoutdoctor.diagnosis import Environment, Lack, Observed, SourceKind, Subject
from layoutdoctor.diagnosis.record import Magnitude, NonNegativeSeconds, PositiveSeconds, Record
from layoutdoctor.recording.onednn import OnednnLog
from layoutdoctor.units import NANOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Column = NDArray[np.int64]
else:
    Column = np.ndarray  # as a file of a recording is read

NONE = -1
"""In a column of identifiers: not recorded."""


class _Rows:
    """
    A table by columns; as many rows as its column of starts has.

    Names, threads, grids and arguments are indices into the lists of ``RecordedTrace``, processes are numbers; starts
    are nanoseconds since its base, durations nanoseconds. What was not recorded is ``NONE``.
    """

    __slots__ = ()
    start: Column

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class KernelEvents(_Rows):
    """
    Device kernels, sorted by start.

    Attributes:
        correlation: Of the runtime call that launched it; a graph launch shares one among all of its kernels.
        external: External id as recorded, whether that can be trusted or not.
    """

    name: Column
    start: Column
    duration: Column
    device: Column
    stream: Column
    correlation: Column
    external: Column
    grid: Column
    process: Column


@dataclass(frozen=True, slots=True)
class TransferEvents(_Rows):
    """Copies and fills by the device's own engines (``gpu_memcpy``, ``gpu_memset``), columns as in ``KernelEvents``."""

    name: Column
    start: Column
    duration: Column
    device: Column
    process: Column


@dataclass(frozen=True, slots=True)
class OperationEvents(_Rows):
    """
    Operations on the host (``cpu_op``), sorted by start, longer ones first.

    Attributes:
        sequence: Sequence number, which a backward operation shares with its forward one.
        forward_thread: What a backward operation says about its forward's thread; ``NONE`` or 0 in a forward one.
    """

    name: Column
    start: Column
    duration: Column
    thread: Column
    external: Column
    sequence: Column
    forward_thread: Column
    arguments: Column


@dataclass(frozen=True, slots=True)
class LaunchEvents(_Rows):
    """
    Calls of the device runtime that carry a correlation id (``cuda_runtime``, ``cuda_driver``), sorted by start.

    Attributes:
        correlation: Shared with what was launched.
    """

    name: Column
    start: Column
    thread: Column
    correlation: Column
    process: Column


@dataclass(frozen=True, slots=True)
class FrameEvents(_Rows):
    """Python frames and ``nn.Module`` calls, or annotated ranges; sorted by start, longer ones first."""

    name: Column
    start: Column
    duration: Column
    thread: Column


EVENT_TABLES: Mapping[str, type[Any]] = {
    "kernels": KernelEvents,
    "transfers": TransferEvents,
    "operations": OperationEvents,
    "launches": LaunchEvents,
    "frames": FrameEvents,
    "annotations": FrameEvents,
}
"""The tables of a recorded run, by the fields of ``RecordedTrace``."""


def event_tables(columns: Mapping[str, Mapping[str, Column]], base: int) -> dict[str, Any]:
    """
    All tables of a run, each sorted by start, longer ones first; one without columns is empty.

    Args:
        columns: Starts count from zero. A column that is missing was not recorded, and there is one process.
        base: Where starts of the tables count from.
    """
    tables = {}
    for table, kind in EVENT_TABLES.items():
        known = dict(columns.get(table, {}))
        known["start"] = known.get("start", np.zeros(0, np.int64)) - base
        for name in kind.__slots__:
            known.setdefault(name, np.full(len(known["start"]), 0 if name == "process" else NONE, np.int64))
        order = np.lexsort((-known.get("duration", known["start"]), known["start"]))
        tables[table] = kind(**{name: known[name][order] for name in kind.__slots__})
    return tables


class Numbered(dict[Any, int]):
    """Numbers things in the order in which they are first asked for."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


@dataclass(frozen=True, slots=True)
class OperationArguments:
    """
    What was recorded of an operation's arguments, as the JSON text in the trace; empty if it was not recorded.

    Attributes:
        shapes: ``Input Dims``: a list with one entry per argument, ``[]`` for what is no tensor.
        strides: ``Input Strides``, likewise.
        types: ``Input type``.
        values: ``Concrete Inputs``: the values of numbers and lists of numbers.
        kernel_options: Of a Triton launch: ``kernel_kwargs``, such as ``XBLOCK=32,YBLOCK=32``.
        call_stack: ``Call stack`` as torch 1.9 to 1.13 wrote it, innermost first, parts separated by ``;``.
    """

    shapes: bytes = b""
    strides: bytes = b""
    types: bytes = b""
    values: bytes = b""
    kernel_options: str = ""
    call_stack: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """
    Something in a file that could not be read, once per kind.

    Attributes:
        what: In words, such as ``"the file ends in the middle of an event"``.
        count: How many events or places.
        is_loss: Whether these events are missing; False for what was mended or is said for information.
        device: Of events of a device that is not understood: its name in the file.
    """

    what: str
    count: int = 1
    is_loss: bool = False
    device: str | None = None


@dataclass
class RecordedTrace:
    """
    A recorded run.

    Attributes:
        frames: Module calls and Python frames that name a place; empty if no stack was recorded.
        annotations: ``user_annotation`` ranges, among them the profiler's steps (``ProfilerStep#3``).
        threads: ``(process, thread)`` of each thread index, as text.
        grids: Launch grids ``(x, y, z)``, each once.
        arguments: Arguments of operations, each combination once.
        metadata: The document's own fields beside the events, such as ``deviceProperties``.
        base_nanoseconds: What ``start`` counts from, on the trace's own clock.
        has_stack: Whether Python frames were recorded, also if none of them names a place.
    """

    source: SourceKind
    names: list[str]
    kernels: KernelEvents
    transfers: TransferEvents
    operations: OperationEvents
    launches: LaunchEvents
    frames: FrameEvents
    annotations: FrameEvents
    threads: list[tuple[str, str]] = field(default_factory=list)
    grids: list[tuple[int, int, int]] = field(default_factory=list)
    arguments: list[OperationArguments] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    base_nanoseconds: int = 0
    has_stack: bool = False


class TraceBuilder:
    """A run while its rows are read one by one; 8 bytes for each number."""

    def __init__(self) -> None:
        self.names, self.threads, self.processes, self.grids, self.arguments = (Numbered() for _ in range(5))
        self._columns: dict[str, dict[str, array[int]]] = {}

    def add(self, table: str, **row: int) -> None:
        """Adds a row; all rows of one table have the same columns."""
        columns = self._columns.setdefault(table, {name: array("q") for name in row})
        for name, value in row.items():
            columns[name].append(value)

    def trace(self, source: SourceKind, **fields: Any) -> RecordedTrace:
        """The run; starts count from its first event, and ``fields`` are further ones of the trace."""
        base = min((min(columns["start"]) for columns in self._columns.values()), default=0)
        columns = {
            table: {
                name: np.array(values, np.int64)
                for name, values in of_table.items()
                if name != "process" or len(self.processes) > 1  # of one process, every row is
            }
            for table, of_table in self._columns.items()
        }
        tables = event_tables(columns, base)
        return RecordedTrace(
            source, list(self.names), **tables, grids=list(self.grids), base_nanoseconds=base, **fields
        )


@dataclass(frozen=True, slots=True)
class KernelTotal:
    """
    One line of a table that sums up kernels by name.

    Attributes:
        nanoseconds: Their time together.
        operation: The operation they ran in; None if the table does not say.
        total_nanoseconds: Of an operation, its time with that of all operations that it called; None if not recorded.
    """

    name: str
    count: int
    nanoseconds: int
    operation: str | None = None
    total_nanoseconds: int | None = None


@dataclass
class KernelTotals:
    """
    A table of totals, such as the CSV of ``nsys stats``: no single launch, no order, no shapes.

    Attributes:
        device: The device that the rows ran on, as torch or the table names it.
        heading: The line of text above the table; empty without one.
        nanoseconds: Of all kernels or operations, those that are not listed as well, by a line of the table, or by its
            percentages if they show that rows are missing; None without these.
        is_nested: Whether the time of an operation has that of the operations which it called, so that no sum is right.
        misses_operations: Whether the own times of all that a table of operations lists are less than its whole.
        copies: The operation that runs eager copies, with its time on the device, if the table has kernels as well.
    """

    source: SourceKind
    rows: list[KernelTotal] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    device: str = "cuda"
    nanoseconds: int | None = None
    is_nested: bool = False
    misses_operations: bool = False
    copies: KernelTotal | None = None
    heading: str = ""


class Head(Record, frozen=True, kw_only=True):
    """
    What all recordings of one diagnosis share; each holds it, so that any of them can be examined alone.

    Attributes:
        layoutdoctor_version: What recorded it.
        created_at: UTC, ISO 8601.
        environment: The machine and versions, the device's copy bandwidth among them.
        subject: What was diagnosed.
        configurations: Names of all trials, in the order of the report.
        other_cores: Cores that other programs used while the configurations were timed; None if not recorded.
        interrupted: What stopped the diagnosis; None if it came to its end.
        stage_seconds: How long each stage of the diagnosis took, in their order.
    """

    layoutdoctor_version: str
    created_at: str
    environment: Environment
    subject: Subject
    configurations: tuple[str, ...]
    other_cores: Magnitude | None = None
    interrupted: str | None = None
    stage_seconds: dict[str, NonNegativeSeconds] = msgspec.field(default_factory=dict)


class Iteration(Record, frozen=True, kw_only=True):
    """
    One profiled iteration, or the whole of a trace file.

    Attributes:
        events: Everything the profiler recorded.
        device: Where its kernels ran: ``cpu``, ``cuda``...; None if a trace does not say.
        log: oneDNN's log of it; None if it was not asked for or could not be had.
        call_seconds: Time of a call without the profiler, at the same moment; None if not measured.
        profiled_seconds: Time of the call under the profiler; None if not measured.
    """

    events: RecordedTrace
    device: str | None
    log: OnednnLog | None = None
    lacks: tuple[Lack, ...] = ()
    call_seconds: PositiveSeconds | None = None
    profiled_seconds: PositiveSeconds | None = None


class Recording(Record, frozen=True, kw_only=True):
    """
    What was seen of one trial.

    Attributes:
        head: The diagnosis it is a part of.
        trial: Its graphs are as the compiler had them, without conversions and breakers.
        iterations: Profiled iterations; of a trace file the only one.
        totals: A table of kernels, if there is nothing else.
        log: A log of oneDNN, if there is nothing else.
        was_profiled: Whether it came as far as its profile, or was lowered: round trips are looked for then.
        how: Lines to paste that apply the configuration to the user's model; None in a trace.
    """

    head: Head
    trial: Observed
    iterations: tuple[Iteration, ...] = ()
    totals: KernelTotals | None = None
    log: OnednnLog | None = None
    was_profiled: bool = False
    how: str | None = None

    @property
    def name(self) -> str:
        """The configuration's name."""
        return self.trial.configuration.name


def busy_nanoseconds(events: RecordedTrace) -> int:
    """Time of the kernels on a GPU, else of the operations and annotated ranges that no other one called."""
    if len(events.kernels):
        return int(events.kernels.duration.sum())
    tables = (events.annotations, events.operations)
    spans = [span for table in tables for span in zip(table.start.tolist(), table.duration.tolist(), strict=True)]
    total, end = 0, min((start for start, _ in spans), default=0)
    for start, duration in sorted(spans, key=lambda span: (span[0], -span[1])):
        if start >= end:
            total += duration
            end = start + duration
    return total


MOST_OF_A_CALL = 1.15


def contradicts_call(iteration: Iteration) -> bool:
    """Whether the iteration was busy for longer than a call without the profiler takes, at the same moment."""
    seconds = busy_nanoseconds(iteration.events) / NANOSECONDS_PER_SECOND
    return iteration.call_seconds is not None and seconds > MOST_OF_A_CALL * iteration.call_seconds


def busy_time(iteration: Iteration) -> tuple[bool, int]:
    """Sort key: least for the iteration with the shortest busy time; a GPU's iteration without kernels comes last."""
    kernels_are_missing = iteration.device != "cpu" and not len(iteration.events.kernels)
    return kernels_are_missing, busy_nanoseconds(iteration.events)
