"""
The recording of one trial of a diagnosis, or of a run from elsewhere: the value that ``examine`` derives facts from.

A live run on a CPU or a GPU, a lowering for a GPU that is not there, a trace file, a table of kernels, and a log of
oneDNN or torch.compile all become a recording. A recording needs no torch; no part is derived from another part.
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
    Column = np.ndarray  # the type for the decoder of saved recordings

NONE = -1
"""Number in a column in place of an identifier or index that was not recorded."""


class _Rows:
    """
    A table that is stored by columns.

    Names, threads, grids and arguments are indices into the lists of ``RecordedTrace``; processes are numbers. Starts
    are nanoseconds since the base of the trace, durations are nanoseconds. A number that was not recorded is ``NONE``.
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
        correlation: Id of the runtime call that launched the kernel; all kernels of a graph launch share one id.
        external: Kineto's ``External id`` of the operation that launched the kernel, as recorded; it may be wrong.
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
    """Copies and fills by the device's own engines (``gpu_memcpy``, ``gpu_memset``); columns are as for kernels."""

    name: Column
    start: Column
    duration: Column
    device: Column
    process: Column


@dataclass(frozen=True, slots=True)
class OperationEvents(_Rows):
    """
    Operations on the host (``cpu_op``), sorted by start; of equal starts, the longer operation comes first.

    Attributes:
        sequence: Sequence number, which a backward operation shares with its forward operation.
        forward_thread: The thread in which a backward operation's forward operation ran, as the recorded number, not as
            an index. It is ``NONE`` or 0 for a forward operation.
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
    Calls of the device's runtime or driver (``cuda_runtime``, ``cuda_driver``...), sorted by start.

    Attributes:
        correlation: Correlation id, shared with the kernels that the call launched.
    """

    name: Column
    start: Column
    thread: Column
    correlation: Column
    process: Column


@dataclass(frozen=True, slots=True)
class FrameEvents(_Rows):
    """Python frames and ``nn.Module`` calls, or annotated ranges; sorted as ``OperationEvents``."""

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
"""The type of each table of a recorded run, by the name of the field in ``RecordedTrace``."""


def event_tables(columns: Mapping[str, Mapping[str, Column]], base: int) -> dict[str, Any]:
    """
    Builds all tables of a run, each sorted by start and, for equal starts, by falling duration.

    Args:
        columns: The columns by table and name; a table without columns is empty. A missing column is filled with
            ``NONE``, a missing column ``process`` with 0.
        base: Nanoseconds that are subtracted from all starts.
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
    """Gives each new key the next number, from 0 on, when the key is looked up."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


@dataclass(frozen=True, slots=True)
class OperationArguments:
    """
    The arguments of an operation. Fields of bytes are JSON text; a field that was not recorded is empty.

    Attributes:
        shapes: ``Input Dims``: a list with one entry per argument, ``[]`` for an argument that is no tensor.
        strides: ``Input Strides``: a list of the same form as ``shapes``.
        types: ``Input type``: a list with one text per argument.
        values: ``Concrete Inputs``: the values of numbers and lists of numbers.
        kernel_options: ``kernel_kwargs`` of a Triton launch, such as ``XBLOCK=32,YBLOCK=32``.
        call_stack: ``Call stack`` as torch 1.9 to 1.13 wrote it: frames separated by ``;``, the innermost first.
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
    One kind of problem that was found while a file was read.

    Attributes:
        what: Description, such as ``"the file ends in the middle of an event"``.
        count: Number of events or places with this problem.
        is_loss: Whether the events are missing; False if they were mended, or if the problem is only information.
        device: Category of events whose device is not understood, such as ``hpu_op``; None for other problems.
    """

    what: str
    count: int = 1
    is_loss: bool = False
    device: str | None = None


@dataclass
class RecordedTrace:
    """
    A recorded run: one table for each kind of event, and the lists that the columns' indices lead to.

    Attributes:
        frames: Calls of modules and of the user's functions; empty if no stack was recorded.
        annotations: ``user_annotation`` or NVTX ranges, among them the profiler's steps (``ProfilerStep#3``).
        threads: ``(process, thread)`` of each thread index, as text.
        grids: Launch grids ``(x, y, z)``, each once.
        arguments: Arguments of operations, each combination once.
        metadata: Fields of the document outside its events, such as ``deviceProperties``; without the machine's name.
        base_nanoseconds: Time on the trace's own clock from which ``start`` counts.
        has_stack: Whether Python frames were recorded. ``frames`` may be empty all the same: it has no library frames.
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
    """Collects the rows of a run one by one; each number takes 8 bytes."""

    def __init__(self) -> None:
        self.names, self.threads, self.processes, self.grids, self.arguments = (Numbered() for _ in range(5))
        self._columns: dict[str, dict[str, array[int]]] = {}

    def add(self, table: str, **row: int) -> None:
        """Adds a row; all rows of one table have the same columns."""
        columns = self._columns.setdefault(table, {name: array("q") for name in row})
        for name, value in row.items():
            columns[name].append(value)

    def trace(self, source: SourceKind, **fields: Any) -> RecordedTrace:
        """Builds the trace. Start times count from its first event; ``fields`` are further fields of the trace."""
        base = min((min(columns["start"]) for columns in self._columns.values()), default=0)
        columns = {
            table: {
                name: np.array(values, np.int64)
                for name, values in of_table.items()
                if name != "process" or len(self.processes) > 1  # a single process needs no column
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
        nanoseconds: Time of the row's kernels. In a table of operations, the operation's own time; if the table is
            nested, the time including all operations that it called.
        operation: The operation that the kernels ran in; None if the table does not say.
        total_nanoseconds: Time of an operation including all operations that it called; None if not recorded.
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
        heading: The line of text above the table; empty if there is no such line.
        nanoseconds: Total time of all kernels or operations, with the rows that the table leaves out. It is read from a
            line below the table, else from percentages. For kernels, percentages count only if they show missing rows.
            None if not known.
        is_nested: Whether the time of an operation includes the operations that it called; times cannot be summed then.
        misses_operations: Whether the own times in a table of operations add up to less than the total time.
        copies: ``aten::copy_`` with its time on the device, if a table of kernels lists it; else None.
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
    The facts that all recordings of a diagnosis share. Each recording has a copy, so that it can be examined alone.

    Attributes:
        layoutdoctor_version: Version of layoutdoctor that made the recording.
        created_at: Time of the diagnosis; UTC, ISO 8601.
        environment: The machine and versions, including the device's copy bandwidth.
        subject: The model, or the file, that was diagnosed.
        configurations: Names of all trials, in the order of the report.
        other_cores: Cores that other programs used while the configurations were timed; None if not recorded.
        interrupted: The reason why the diagnosis stopped early; None if it was finished.
        stage_seconds: Time that each stage of the diagnosis took, in the order of the stages.
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
        events: The events that the profiler recorded.
        device: Type of the device that the kernels ran on: ``cpu``, ``cuda``...; None if a trace shows no work.
        log: oneDNN's log of the iteration; None if it was not requested or not available.
        call_seconds: Time of a call without the profiler, measured close to the iteration; None if not measured.
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
    The raw observations of one trial.

    Attributes:
        head: The facts about the diagnosis that the trial belongs to.
        trial: The trial, with the compiler's graphs. Conversions and layout breakers in the graphs are found later.
        iterations: The profiled iterations; a trace file has only one.
        totals: A table of kernels, if the table is all that was recorded.
        log: A log of oneDNN, if the log is all that was recorded.
        was_profiled: Whether the trial was profiled or lowered, or its compiles were logged. Only then are round trips
            looked for in its graphs.
        how: Lines to paste that apply the configuration to the user's model; None for a trace.
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
    """Returns the time of the kernels on a GPU; without kernels, the time of the outermost operations and ranges."""
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
    """Whether the busy time is over ``MOST_OF_A_CALL`` times the call's time; False if no call was timed."""
    seconds = busy_nanoseconds(iteration.events) / NANOSECONDS_PER_SECOND
    return iteration.call_seconds is not None and seconds > MOST_OF_A_CALL * iteration.call_seconds


def busy_time(iteration: Iteration) -> tuple[bool, int]:
    """Returns a key that sorts iterations by busy time, shortest first, and GPU iterations without kernels last."""
    kernels_are_missing = iteration.device != "cpu" and not len(iteration.events.kernels)
    return kernels_are_missing, busy_nanoseconds(iteration.events)
