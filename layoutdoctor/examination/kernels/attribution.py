"""
Finds the origin of each device kernel of a recorded trace: operation, convolution, profiler step, module and line.

A kernel's launch is found by its correlation id, and its operation by its External id. If this id names no operation,
or if External ids only repeat the correlation ids, the innermost operation around the launch is taken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from layoutdoctor.diagnosis import SourceLocation
from layoutdoctor.examination.kernels.mangled import demangled
from layoutdoctor.recording.chrome import FRAME, MODULE_PREFIX, is_module_call, is_user_function
from layoutdoctor.recording.recording import NONE, OperationArguments
from layoutdoctor.recording.steps import STEP_PREFIX

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutdoctor.recording.recording import Column, FrameEvents, LaunchEvents, OperationEvents, RecordedTrace

_MARKED_STEP = re.compile(r"(?i)(?:^|[^a-z])(?:step|iter|iteration|batch)(?:[^a-z]|$)")
_PART_OF_STEP = re.compile(r"(?i)optimi[sz]er|scheduler|zero_grad|scaler|load|fetch")
_DIGITS = re.compile(r"\d+")

# External ids are ignored if more than this share repeat the correlation id, as in files of 2022-08 to 2024-02.
_DEGENERATE_SHARE = 0.9

_CONVOLUTION = re.compile(
    r"^(?:aten::|torch_ipex::|mkldnn::)?(?:"
    r"_?convolution|_?conv[123]d|conv_transpose[123]d|_convolution_mode|convolution_overrideable|convolution_pointwise"
    r"|cudnn_convolution|miopen_(?:depthwise_)?convolution|mkldnn_convolution|mps_convolution|thnn_conv"
    r"|_?slow_conv|_?conv_depthwise|conv_tbc|cudnn_conv"
    r")(?:[._a-z0-9]*)$"
)
_OPERATOR = re.compile(r"^(?!autograd::)[A-Za-z_]\w*::|^triton_")


@dataclass(frozen=True, slots=True)
class Attribution:
    """
    The origin of each kernel of a trace, in columns with one row per kernel or operation; ``NONE`` means not known.

    Attributes:
        launch: Row of the runtime call that launched each kernel.
        operation: Row of the operation that launched each kernel; not known for the kernels of a graph replay, because
            one call launches them all.
        convolution: Row of the outermost convolution around the operation of each kernel.
        convolution_of: Row of the outermost convolution that each operation is or runs in.
        outermost: Row of the outermost operator around each operation, such as ``aten::conv2d``; the operation's own
            row if there is no operator around it, as directly inside a range of autograd or of compiled code.
        step_nanoseconds: Length of each step, up to the start of the next step. The last step has its recorded length.
        replayed_count: Number of kernels that share a launch with others, as in graph replays.
    """

    trace: RecordedTrace
    launch: Column
    operation: Column
    convolution: Column
    step: Column
    step_names: tuple[str, ...]
    step_nanoseconds: Column
    parent: Column
    convolution_of: Column
    outermost: Column
    replayed_count: int
    unlaunched_count: int

    def name_of(self, operation: int) -> str:
        """Name of an operation, by its row."""
        return self.trace.names[int(self.trace.operations.name[operation])]

    def arguments_of(self, operation: int) -> OperationArguments:
        """Arguments of an operation; empty if they were not recorded, or if the operation is not known."""
        row = int(self.trace.operations.arguments[operation]) if operation != NONE else NONE
        return self.trace.arguments[row] if row != NONE else OperationArguments()


def is_convolution_operation(name: str) -> bool:
    """Whether an operation is a convolution, forward or backward."""
    return _CONVOLUTION.match(name) is not None


def attribute(trace: RecordedTrace) -> Attribution:
    """Finds launch, operation, convolution and step of every kernel; names in the result are demangled."""
    trace = replace(trace, names=[demangled(name) for name in trace.names])
    parent, convolution_of, outermost = _nesting(trace)
    launch, is_replayed = _launches(trace)
    operation = _by_external(trace)
    wanted = np.flatnonzero((operation == NONE) & (launch != NONE))
    rows = launch[wanted]
    everything = np.arange(len(trace.operations))
    threads, moments = trace.launches.thread[rows], trace.launches.start[rows]
    operation[wanted] = innermost(trace.operations, everything, threads, moments)
    operation[is_replayed] = NONE
    convolution = np.full(len(trace.kernels), NONE, np.int64)
    known = operation != NONE
    convolution[known] = convolution_of[operation[known]]
    step, names, lengths = _steps(trace, launch)
    return Attribution(
        trace=trace,
        launch=launch,
        operation=operation,
        convolution=convolution,
        step=step,
        step_names=names,
        step_nanoseconds=lengths,
        parent=parent,
        convolution_of=convolution_of,
        outermost=outermost,
        replayed_count=int(is_replayed.sum()),
        unlaunched_count=int((launch == NONE).sum()),
    )


def _nesting(trace: RecordedTrace) -> tuple[Column, Column, Column]:
    """Parent, outermost convolution and outermost operator of each operation; operations are sorted parents first."""
    operations = trace.operations
    parents = np.full(len(operations), NONE, np.int64)
    for thread in sorted(set(operations.thread.tolist())):
        rows = np.flatnonzero(operations.thread == thread)
        around = _parents(operations, rows)
        parents[rows] = np.where(around == NONE, NONE, rows[around])
    convolutions: list[int] = []
    outermost: list[int] = []
    is_convolution_name = [is_convolution_operation(name) for name in trace.names]
    is_operator_name = [_OPERATOR.match(name) is not None for name in trace.names]
    names = operations.name.tolist()
    for row, (name, parent) in enumerate(zip(names, parents.tolist(), strict=True)):
        outer, over = (convolutions[parent], outermost[parent]) if parent != NONE else (NONE, NONE)
        convolutions.append(row if outer == NONE and is_convolution_name[name] else outer)
        outermost.append(row if over == NONE or not is_operator_name[names[over]] else over)
    return parents, np.array(convolutions, np.int64), np.array(outermost, np.int64)


def _launches(trace: RecordedTrace) -> tuple[Column, NDArray[np.bool_]]:
    """Row of each kernel's launch, and whether the kernel shares this launch with other kernels."""
    kernels, launches = trace.kernels, trace.launches
    row = _lookup(launches.correlation, kernels.correlation)
    ambiguous = _shared_across_processes(launches.correlation, launches.process)
    if len(ambiguous):
        row[np.isin(kernels.correlation, ambiguous)] = NONE
    known = row != NONE
    counts = np.bincount(row[known], minlength=1)
    return row, known & (counts[row] > 1)


def _shared_across_processes(ids: Column, processes: Column) -> Column:
    """Ids that several processes use: in a merged trace, such an id does not identify an event."""
    if len(ids) == 0 or (processes == processes[0]).all():
        return np.zeros(0, np.int64)
    pairs = np.unique(np.stack([ids, processes]), axis=1)
    values, counts = np.unique(pairs[0], return_counts=True)
    shared: Column = values[(counts > 1) & (values != NONE)]
    return shared


def _lookup(keys: Column, wanted: Column) -> Column:
    """Row of the first key that equals each wanted value; ``NONE`` if no key does."""
    found = np.full(len(wanted), NONE, np.int64)
    if len(keys) == 0 or len(wanted) == 0:
        return found
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys[order], wanted)
    place[place == len(keys)] = 0
    row = order[place]
    is_there = (keys[row] == wanted) & (wanted != NONE)
    found[is_there] = row[is_there]
    return found


def _by_external(trace: RecordedTrace) -> Column:
    """Rows of kernels' operations, by External id (0: no id, in 2020); ``NONE`` if most ids repeat correlation ids."""
    operations, external, correlation = trace.operations, trace.kernels.external, trace.kernels.correlation
    both = (external != NONE) & (correlation != NONE)
    if both.any() and (external == correlation)[both].mean() > _DEGENERATE_SHARE:
        return np.full(len(external), NONE, np.int64)
    numbers = {process: number for number, process in enumerate({process for process, _ in trace.threads})}
    processes = np.array([numbers[process] for process, _ in trace.threads] or [NONE], np.int64)
    ambiguous = _shared_across_processes(operations.external, processes[operations.thread])
    is_id = (external != 0) & ~np.isin(external, ambiguous)
    return _lookup(operations.external, np.where(is_id, external, NONE))


def _steps(trace: RecordedTrace, launch: Column) -> tuple[Column, tuple[str, ...], Column]:
    """
    The profiler step in which each kernel was launched, or in which it started if its launch is not known.

    If the profiler recorded no steps, ranges that the program marked as steps (NVTX, ``record_function``) are taken
    instead, provided that they contain at least half of the kernels.

    Returns:
        The step of each kernel; the name and length of each step.
    """
    is_step = np.array([name.startswith(STEP_PREFIX) for name in trace.names] or [False])
    step = np.full(len(trace.kernels), NONE, np.int64)
    ranges: FrameEvents | OperationEvents = trace.annotations
    rows = np.flatnonzero(is_step[ranges.name])
    if not len(rows):  # torch 1.8 to 1.9 recorded steps as operations
        ranges = trace.operations
        rows = np.flatnonzero(is_step[ranges.name])
    is_marked = not len(rows)
    if is_marked:
        ranges, rows = trace.annotations, _marked_steps(trace)
    if not len(rows):
        return step, (), rows
    starts, ends = ranges.start[rows], ranges.start[rows] + ranges.duration[rows]
    moments = trace.kernels.start.copy()
    known = launch != NONE
    moments[known] = trace.launches.start[launch[known]]
    place = np.searchsorted(starts, moments, side="right") - 1
    inside = (place >= 0) & (moments <= ends[np.maximum(place, 0)])
    if is_marked and 2 * inside.sum() < len(step):
        return step, (), rows[:0]
    step[inside] = place[inside]
    names = [trace.names[name] for name in ranges.name[rows].tolist()]
    if len(set(names)) < len(names):
        names = [f"{name} #{number}" for number, name in enumerate(names, 1)]
    return step, tuple(names), np.concatenate([starts[1:], ends[-1:]]) - starts


def _marked_steps(trace: RecordedTrace) -> Column:
    """Rows of the longest series of annotations named like steps: equal names except digits, one thread, no overlap."""
    ranges = trace.annotations
    families: dict[str, list[int]] = {}
    for number, name in enumerate(trace.names):
        if _MARKED_STEP.search(name) and not _PART_OF_STEP.search(name):
            families.setdefault(_DIGITS.sub("", name), []).append(number)
    best, longest = np.zeros(0, np.int64), 0
    for numbers in families.values():
        rows = np.flatnonzero(np.isin(ranges.name, numbers))
        starts, ends = ranges.start[rows], ranges.start[rows] + ranges.duration[rows]
        spent = int((ends - starts).sum())
        is_sequence = len(rows) > 1 and bool((starts[1:] >= ends[:-1]).all())
        if is_sequence and spent > longest and len(set(ranges.thread[rows].tolist())) == 1:
            best, longest = rows, spent
    return best


_ALWAYS = -(1 << 62)  # the start if there is no backward operation: before every range


class Places:
    """
    Finds the module and the line of code that kernels come from.

    Attributes:
        has_frames: Whether the trace holds Python frames or call stacks at all.
    """

    def __init__(self, attribution: Attribution) -> None:
        trace = attribution.trace
        self.trace, self.attribution = trace, attribution
        self.has_frames = trace.has_stack or len(trace.frames) > 0 or any(a.call_stack for a in trace.arguments)
        self._is_user_name = np.array([is_user_function(name) for name in trace.names] or [False])
        self._is_module_name = np.array([is_module_call(name) for name in trace.names] or [False])
        self._forward = cache(_ForwardOperations(trace).of)
        self._backward = cache(self._find_backward)
        self._forward_thread: list[int] = trace.operations.forward_thread.tolist()
        self._parent: list[int] = attribution.parent.tolist()

    def modules(self, rows: Sequence[int]) -> list[str | None]:
        """The innermost nn.Module around each kernel's origin, such as ``Conv2d_11``; None if not in the trace."""
        frames = self.trace.frames
        own = np.flatnonzero(self._is_module_name[frames.name])
        return [
            self.trace.names[int(frames.name[row])].removeprefix(MODULE_PREFIX) if row != NONE else None
            for row in self._around(own, rows).tolist()
        ]

    def locations(self, rows: Sequence[int]) -> list[SourceLocation | None]:
        """
        The innermost line of code outside of torch around each kernel's origin; None if the trace shows no such line.

        The profiler records where a function begins, not the line in it that was running.
        """
        frames = self.trace.frames
        own = np.flatnonzero(self._is_user_name[frames.name])
        return [
            _location(self.trace.names[int(frames.name[frame])]) if frame != NONE else self._from_call_stack(row)
            for frame, row in zip(self._around(own, rows).tolist(), rows, strict=True)
        ]

    def _around(self, own: Column, rows: Sequence[int]) -> Column:
        """
        The innermost of the ranges ``own`` around each kernel's launch, or else around its forward operation.

        If a backward operation launched the kernel, a range counts only if it began within this operation, as in a
        recomputed forward. Ranges around the backward operation belong to the call of ``backward()``.
        """
        frames = self.trace.frames
        if not len(own):
            return np.full(len(rows), NONE, np.int64)
        threads, moments, begins = self._launch_moments(rows)
        own_nearby = own[_holds_any(frames, own, threads, moments)]
        found = innermost(frames, own_nearby, threads, moments)
        is_outside = (found != NONE) & (frames.start[found] < begins)
        found[is_outside] = NONE
        missing = np.flatnonzero((found == NONE) & (begins != _ALWAYS))
        operations = [int(self.attribution.operation[rows[place]]) for place in missing.tolist()]
        forward = np.array([self.forward_of(operation) for operation in operations], np.int64)
        threads, moments = _moments(self.trace.operations, forward)
        own_nearby = own[_holds_any(frames, own, threads, moments)]
        found[missing] = innermost(frames, own_nearby, threads, moments)
        return found

    def _launch_moments(self, rows: Sequence[int]) -> tuple[Column, Column, Column]:
        """Threads and times of launches, or else of operations; starts of the backward operations around these."""
        operations = self.trace.operations
        chosen = np.fromiter(rows, np.int64, len(rows))
        launch, operation = self.attribution.launch[chosen], self.attribution.operation[chosen]
        is_launched = launch != NONE
        ways = zip(_moments(self.trace.launches, launch), _moments(operations, operation), strict=True)
        threads, moments = (np.where(is_launched, launched, called) for launched, called in ways)
        backward = np.array([self._backward(row) for row in operation.tolist()], np.int64)
        _, began = _moments(operations, backward)
        return threads, moments, np.where(backward == NONE, _ALWAYS, began)

    def _find_backward(self, operation: int) -> int:
        """The innermost backward operation that an operation is or runs in; ``NONE`` if it runs in the forward."""
        while operation != NONE and self._forward_thread[operation] <= 0:
            operation = self._parent[operation]
        return operation

    def forward_of(self, operation: int) -> int:
        """Row of the forward operation that a backward operation belongs to; ``NONE`` if the trace does not show it."""
        backward = self._backward(operation)
        return self._forward(backward) if backward != NONE else NONE

    def _from_call_stack(self, row: int) -> SourceLocation | None:
        """The user's line in a call stack (torch 1.9 to 1.13) around a kernel's operation or its forward; else None."""
        own = int(self.attribution.operation[row])
        for operation in (own, self.forward_of(own)):
            while operation != NONE:
                stack = self.attribution.arguments_of(operation).call_stack
                frame = next((part for part in stack.split(";") if is_user_function(part)), None)
                if frame is not None:
                    return _location(frame)
                operation = self._parent[operation]
        return None


class _ForwardOperations:
    """Forward operations by sequence number; each thread has its own sequence numbers."""

    def __init__(self, trace: RecordedTrace) -> None:
        self.operations = trace.operations
        self.processes = [process for process, _ in trace.threads]
        self._home = cache(self._find_home)
        operations = trace.operations
        rows = np.flatnonzero((operations.sequence != NONE) & (operations.forward_thread <= 0))
        order = np.lexsort((operations.start[rows], operations.sequence[rows]))
        self.rows = rows[order]
        self.sequences = operations.sequence[self.rows]

    def of(self, operation: int) -> int:
        """Row of the last forward operation before a backward operation, with the same sequence number; or ``NONE``."""
        operations = self.operations
        sequence, start = operations.sequence[operation], operations.start[operation]
        first, end = (np.searchsorted(self.sequences, sequence, side) for side in ("left", "right"))
        earlier = self.rows[first:end]
        earlier = earlier[operations.start[earlier] < start]
        thread = int(operations.thread[operation])
        home = self._home(int(operations.forward_thread[operation]), self.processes[thread])
        if home != NONE:
            earlier = earlier[operations.thread[earlier] == home]
        return int(earlier[-1]) if len(earlier) else NONE

    def _find_home(self, number: int, process: str) -> int:
        """
        The thread on which the forward of backward operations ran; ``NONE`` if no thread or several threads fit.

        Backward operations give a number for their forward's thread, but a trace does not name threads by this number.
        So the thread that ran the most forwards of backward operations with this number is taken. A recomputed
        forward runs on another thread.
        """
        operations, threads = self.operations, self.operations.thread[self.rows]
        own = [thread for thread in sorted(set(threads.tolist())) if self.processes[thread] == process]
        is_asking = (operations.forward_thread == number) & (operations.sequence != NONE)
        asking = np.unique(operations.sequence[is_asking])
        counts = [int(np.isin(asking, self.sequences[threads == thread]).sum()) for thread in own]
        return own[counts.index(max(counts))] if counts and counts.count(max(counts)) == 1 else NONE


def _moments(events: OperationEvents | LaunchEvents, rows: Column) -> tuple[Column, Column]:
    """Threads and starts of the events in some rows; ``NONE`` and 0 for row ``NONE``."""
    threads, moments = np.full(len(rows), NONE, np.int64), np.zeros(len(rows), np.int64)
    known = rows != NONE
    threads[known], moments[known] = events.thread[rows[known]], events.start[rows[known]]
    return threads, moments


def _holds_any(frames: FrameEvents, own: Column, threads: Column, moments: Column) -> NDArray[np.bool_]:
    """Whether each of the ranges contains any of the moments; threads are not compared."""
    asked = np.sort(moments[threads != NONE])
    ends = frames.start[own] + frames.duration[own]
    return np.searchsorted(asked, ends, "right") > np.searchsorted(asked, frames.start[own], "left")


def innermost(ranges: FrameEvents | OperationEvents, own: Column, threads: Column, moments: Column) -> Column:
    """Row of the innermost range around each moment on its thread, or ``NONE``; ``own`` is in the order of starts."""
    found = np.full(len(moments), NONE, np.int64)
    for thread in sorted(set(threads.tolist())):
        rows = own[ranges.thread[own] == thread]
        asked = np.flatnonzero(threads == thread)
        if thread == NONE or not len(rows):
            continue
        starts, ends = ranges.start[rows], ranges.start[rows] + ranges.duration[rows]
        parents = _parents(ranges, rows)
        place = np.searchsorted(starts, moments[asked], side="right") - 1
        over = (place >= 0) & (ends[np.maximum(place, 0)] < moments[asked])
        while over.any():
            place[over] = parents[place[over]]
            over = (place >= 0) & (ends[np.maximum(place, 0)] < moments[asked])
        found[asked] = np.where(place >= 0, rows[np.maximum(place, 0)], NONE)
    return found


def _parents(ranges: FrameEvents | OperationEvents, rows: Column) -> Column:
    """Index in ``rows`` of the range directly around each range; ``NONE`` for outermost ranges. One thread only."""
    ends: list[int] = (ranges.start[rows] + ranges.duration[rows]).tolist()
    parents: list[int] = []
    stack: list[int] = []
    for place, start in enumerate(ranges.start[rows].tolist()):
        while stack and ends[stack[-1]] <= start:
            stack.pop()
        parents.append(stack[-1] if stack else NONE)
        stack.append(place)
    return np.array(parents, np.int64)


def _location(frame: str) -> SourceLocation | None:
    match = FRAME.match(frame)
    return SourceLocation(file=match["file"], line=int(match["line"])) if match else None
