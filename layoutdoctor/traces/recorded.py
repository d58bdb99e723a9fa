"""
What every reader of a recorded run returns: events as columns of numbers, names and arguments once each.

A column is a numpy array; row i of every column of a table is one event. Times are whole nanoseconds from the trace's
own base, ``NONE`` (-1) stands for "not recorded" in every column of identifiers. A million events take some 50 MB this
way, where a million objects would take a gigabyte. Faces ``analysis``; no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Column = NDArray[np.int64]
else:
    Column = np.ndarray  # as a file of a recording is read

NONE = -1
"""In a column of identifiers: not recorded."""


@dataclass(frozen=True, slots=True)
class KernelEvents:
    """
    Device kernels, sorted by start.

    Attributes:
        name: Index into ``RecordedTrace.names``.
        start: Nanoseconds since the trace's base.
        duration: Nanoseconds.
        device: Device index.
        stream: Stream.
        correlation: Of the runtime call that launched it; a graph launch shares one among all of its kernels.
        external: External id as recorded, whether that can be trusted or not.
        grid: Index into ``RecordedTrace.grids``.
        process: Index into ``RecordedTrace.processes``: of which recorded process; 0 where there is one.
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

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class TransferEvents:
    """Copies and fills by the device's own engines (``gpu_memcpy``, ``gpu_memset``), columns as in ``KernelEvents``."""

    name: Column
    start: Column
    duration: Column
    device: Column
    stream: Column
    process: Column

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class OperationEvents:
    """
    Operations on the host (``cpu_op``), sorted by start, longer ones first.

    Attributes:
        name: Index into ``RecordedTrace.names``.
        start: Nanoseconds since the trace's base.
        duration: Nanoseconds, children included.
        thread: Index into ``RecordedTrace.threads``.
        external: External id.
        sequence: Sequence number, which a backward operation shares with its forward one.
        forward_thread: What a backward operation says about its forward's thread; ``NONE`` or 0 in a forward one.
        arguments: Index into ``RecordedTrace.arguments``; ``NONE`` where no shapes were recorded.
    """

    name: Column
    start: Column
    duration: Column
    thread: Column
    external: Column
    sequence: Column
    forward_thread: Column
    arguments: Column

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class LaunchEvents:
    """
    Calls of the device runtime that carry a correlation id (``cuda_runtime``, ``cuda_driver``), sorted by start.

    Attributes:
        name: Index into ``RecordedTrace.names``, such as of ``cudaLaunchKernel``.
        start: Nanoseconds since the trace's base.
        thread: Index into ``RecordedTrace.threads``.
        correlation: Shared with what was launched.
        external: External id of the operation that called.
        process: Index into ``RecordedTrace.processes``.
    """

    name: Column
    start: Column
    thread: Column
    correlation: Column
    external: Column
    process: Column

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class FrameEvents:
    """Python frames and ``nn.Module`` calls, or annotated ranges; sorted by start, longer ones first."""

    name: Column
    start: Column
    duration: Column
    thread: Column

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class OperationArguments:
    """
    What was recorded of an operation's arguments, as the JSON text in the trace; empty where it was not recorded.

    Attributes:
        shapes: ``Input Dims``: a list with one entry per argument, ``[]`` for what is no tensor.
        strides: ``Input Strides``, likewise.
        types: ``Input type``.
        values: ``Concrete Inputs``: the values of numbers and lists of numbers.
        kernel_file: Of a Triton launch: the generated file.
        kernel_options: Of a Triton launch: ``kernel_kwargs``, such as ``XBLOCK=32,YBLOCK=32``.
        call_stack: ``Call stack`` as torch 1.9 to 1.13 wrote it, innermost first, parts separated by ``;``.
    """

    shapes: bytes = b""
    strides: bytes = b""
    types: bytes = b""
    values: bytes = b""
    kernel_file: str = ""
    kernel_options: str = ""
    call_stack: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """
    Something in a file that could not be read, once per kind.

    Attributes:
        what: In words, such as ``"the file ends in the middle of an event"``.
        count: How many events or places.
        is_loss: Whether these events are missing; False for what was mended or is told for information.
    """

    what: str
    count: int = 1
    is_loss: bool = False


@dataclass
class RecordedTrace:
    """
    A recorded run.

    Attributes:
        source: What wrote it, in words: ``"Kineto trace"``, ``"Nsight Systems export"``.
        names: Every name once.
        kernels: Device kernels.
        transfers: Copies and fills by the device's own engines.
        operations: Host operations.
        launches: Runtime calls.
        frames: Module calls and Python frames that name a place; empty where no stack was recorded.
        annotations: ``user_annotation`` ranges, among them the profiler's steps (``ProfilerStep#3``).
        threads: ``(process, thread)`` of each thread index, as text.
        processes: Process ids, as text.
        grids: Launch grids ``(x, y, z)``, each once.
        arguments: Arguments of operations, each combination once.
        metadata: The document's own fields beside the events, such as ``deviceProperties``.
        event_count: Events in the file, whatever their kind.
        problems: What could not be read.
        is_truncated: Whether the file ends before its document does.
        base_nanoseconds: What ``start`` counts from, on the trace's own clock.
        has_stack: Whether Python frames were recorded, also where none of them names a place.
    """

    source: str
    names: list[str]
    kernels: KernelEvents
    transfers: TransferEvents
    operations: OperationEvents
    launches: LaunchEvents
    frames: FrameEvents
    annotations: FrameEvents
    threads: list[tuple[str, str]] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    grids: list[tuple[int, int, int]] = field(default_factory=list)
    arguments: list[OperationArguments] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    event_count: int = 0
    problems: list[Problem] = field(default_factory=list)
    is_truncated: bool = False
    base_nanoseconds: int = 0
    has_stack: bool = False


@dataclass(frozen=True, slots=True)
class KernelTotal:
    """
    One line of a table that sums up kernels by name.

    Attributes:
        name: The kernel; it may be cut short.
        count: Launches.
        nanoseconds: Their time together.
        operation: The operation they ran in; None where the table does not say.
        is_cut: Whether the name ends where the table's column does, so that only its beginning is known.
    """

    name: str
    count: int
    nanoseconds: int
    operation: str | None = None
    is_cut: bool = False


@dataclass
class KernelTotals:
    """
    A table of totals, such as the CSV of ``nsys stats``: no single launch, no order, no shapes.

    Attributes:
        source: What wrote it, in words.
        rows: One per kernel name (and operation).
        problems: What could not be read.
    """

    source: str
    rows: list[KernelTotal] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def column(values: Sequence[int]) -> Column:
    """
    A column from whole numbers.

    Args:
        values: Any that fit 64 bits.
    """
    return np.asarray(values, dtype=np.int64)
