"""
Where in the user's program a recorded kernel comes from: the nn.Module and the Python line around its launch.

For a backward kernel these are the ones around the forward operation of the same sequence number. Faces
``trace_conversions``; no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutdoctor.records import SourceLocation
from layoutdoctor.traces.chrome import FRAME, MODULE_PREFIX, is_module_call, is_user_function
from layoutdoctor.traces.recorded import NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from layoutdoctor.analysis.trace_attribution import Attribution
    from layoutdoctor.traces.recorded import Column, FrameEvents, RecordedTrace

_ALWAYS = -(1 << 62)  # what runs in the forward is in no backward operation


class Places:
    """
    Answers where kernels come from.

    Attributes:
        has_frames: Whether the trace holds Python frames or call stacks at all.
    """

    def __init__(self, trace: RecordedTrace, attribution: Attribution) -> None:
        self.trace, self.attribution = trace, attribution
        self.has_frames = trace.has_stack or len(trace.frames) > 0 or any(a.call_stack for a in trace.arguments)
        self._is_user_name = np.array([is_user_function(name) for name in trace.names] or [False])
        self._is_module_name = np.array([is_module_call(name) for name in trace.names] or [False])
        self._forward = _ForwardOperations(trace)
        self._forward_thread: list[int] = trace.operations.forward_thread.tolist()
        self._parent: list[int] = attribution.parent.tolist()
        self._backwards: dict[int, int] = {}
        self._forwards: dict[int, int] = {}

    def modules(self, rows: Sequence[int]) -> list[str | None]:
        """
        The innermost nn.Module around each kernel's origin, such as ``Conv2d_11``.

        Args:
            rows: Rows of kernels.
        """
        frames = self.trace.frames
        own = np.flatnonzero(self._is_module_name[frames.name]) if len(frames) else np.zeros(0, np.int64)
        return [
            self.trace.names[int(frames.name[row])].removeprefix(MODULE_PREFIX) if row != NONE else None
            for row in self._around(own, rows).tolist()
        ]

    def locations(self, rows: Sequence[int]) -> list[SourceLocation | None]:
        """
        The innermost line of code that is not torch's own around each kernel's origin.

        The profiler records where a function begins, not the line in it that was running.

        Args:
            rows: Rows of kernels.
        """
        frames = self.trace.frames
        own = np.flatnonzero(self._is_user_name[frames.name]) if len(frames) else np.zeros(0, np.int64)
        return [
            _location(self.trace.names[int(frames.name[frame])]) if frame != NONE else self._from_call_stack(row)
            for frame, row in zip(self._around(own, rows).tolist(), rows, strict=True)
        ]

    def _around(self, own: Column, rows: Sequence[int]) -> Column:
        """
        Of some ranges, the innermost one around each kernel's launch, or else around its forward operation.

        In a backward operation a range around the launch counts only if it began within that operation, as those of a
        recomputed forward do: what lies around it is the call of ``backward()``.
        """
        frames = self.trace.frames
        if not len(own):
            return np.full(len(rows), NONE, np.int64)
        threads, moments, begins = self._launch_moments(rows)
        own_nearby = own[_holds_any(frames, own, threads, moments)]
        found = _innermost_range(frames, own_nearby, threads, moments)
        is_outside = (found != NONE) & (frames.start[found] < begins)
        found[is_outside] = NONE
        missing = np.flatnonzero((found == NONE) & (begins != _ALWAYS))
        threads, moments = self._forward_moments([rows[place] for place in missing.tolist()])
        own_nearby = own[_holds_any(frames, own, threads, moments)]
        found[missing] = _innermost_range(frames, own_nearby, threads, moments)
        return found

    def _launch_moments(self, rows: Sequence[int]) -> tuple[Column, Column, Column]:
        """Thread and time of each launch, and when the backward operation around it began."""
        operations, launches = self.trace.operations, self.trace.launches
        chosen = np.fromiter(rows, np.int64, len(rows))
        launch, operation = self.attribution.launch[chosen], self.attribution.operation[chosen]
        threads, moments = np.full(len(rows), NONE, np.int64), np.zeros(len(rows), np.int64)
        by_operation = (launch == NONE) & (operation != NONE)
        threads[by_operation] = operations.thread[operation[by_operation]]
        moments[by_operation] = operations.start[operation[by_operation]]
        threads[launch != NONE] = launches.thread[launch[launch != NONE]]
        moments[launch != NONE] = launches.start[launch[launch != NONE]]
        begins = np.full(len(rows), _ALWAYS, np.int64)
        for place, row in enumerate(operation.tolist()):
            backward = self._backward(row)
            if backward != NONE:
                begins[place] = operations.start[backward]
        return threads, moments, begins

    def _forward_moments(self, rows: Sequence[int]) -> tuple[Column, Column]:
        """Thread and time of the forward operation of each kernel; ``NONE`` where there is none."""
        operations = self.trace.operations
        forward = np.array([self.forward_of(int(self.attribution.operation[row])) for row in rows], np.int64)
        threads, moments = np.full(len(rows), NONE, np.int64), np.zeros(len(rows), np.int64)
        known = forward != NONE
        threads[known], moments[known] = operations.thread[forward[known]], operations.start[forward[known]]
        return threads, moments

    def _backward(self, operation: int) -> int:
        """The innermost backward operation around one, or itself; ``NONE`` for what runs in the forward."""
        if operation == NONE:
            return NONE
        found = self._backwards.get(operation)
        if found is None:
            found = operation
            while found != NONE and self._forward_thread[found] <= 0:
                found = self._parent[found]
            self._backwards[operation] = found
        return found

    def forward_of(self, operation: int) -> int:
        """
        The forward operation that a backward one belongs to.

        Args:
            operation: Row of an operation.

        Returns:
            Its row; ``NONE`` where there is none, or it is not in the trace.
        """
        backward = self._backward(operation)
        if backward == NONE:
            return NONE
        if backward not in self._forwards:
            self._forwards[backward] = self._forward.of(backward)
        return self._forwards[backward]

    def _from_call_stack(self, row: int) -> SourceLocation | None:
        """The same from the call stack that torch 1.9 to 1.13 wrote into the operation, or into its forward one."""
        own = int(self.attribution.operation[row])
        for operation in (own, self.forward_of(own)):
            while operation != NONE:
                arguments = int(self.trace.operations.arguments[operation])
                stack = self.trace.arguments[arguments].call_stack if arguments != NONE else ""
                frame = next((part for part in stack.split(";") if is_user_function(part)), None)
                if frame is not None:
                    return _location(frame)
                operation = self._parent[operation]
        return None


class _ForwardOperations:
    """Forward operations by sequence number, which each thread counts for itself."""

    def __init__(self, trace: RecordedTrace) -> None:
        self.operations = trace.operations
        self.processes = [process for process, _ in trace.threads]
        self.homes: dict[tuple[int, str], int] = {}
        operations = trace.operations
        rows = np.flatnonzero((operations.sequence != NONE) & (operations.forward_thread <= 0))
        order = np.lexsort((operations.start[rows], operations.sequence[rows]))
        self.rows = rows[order]
        self.sequences = operations.sequence[self.rows]

    def of(self, operation: int) -> int:
        """The last one that began before a backward operation and has its sequence number."""
        operations = self.operations
        sequence, start = operations.sequence[operation], operations.start[operation]
        low, high = (
            np.searchsorted(self.sequences, sequence, "left"),
            np.searchsorted(self.sequences, sequence, "right"),
        )
        earlier = self.rows[low:high]
        earlier = earlier[operations.start[earlier] < start]
        home = self._home(operation)
        if home != NONE:
            earlier = earlier[operations.thread[earlier] == home]
        return int(earlier[-1]) if len(earlier) else NONE

    def _home(self, operation: int) -> int:
        """
        The thread that a backward operation's forward ran on; ``NONE`` where several may be it.

        The number that it gives is none of those that the trace calls threads by, so it is the thread on which most of
        the backward operations with that number find their forward. A recomputed forward runs on another one.
        """
        number = int(self.operations.forward_thread[operation])
        key = (number, self.processes[int(self.operations.thread[operation])])
        if key not in self.homes:
            self.homes[key] = self._find_home(*key)
        return self.homes[key]

    def _find_home(self, number: int, process: str) -> int:
        operations, threads = self.operations, self.operations.thread[self.rows]
        own = [thread for thread in sorted(set(threads.tolist())) if self.processes[thread] == process]
        is_asking = (operations.forward_thread == number) & (operations.sequence != NONE)
        asking = np.unique(operations.sequence[is_asking])
        counts = [int(np.isin(asking, self.sequences[threads == thread]).sum()) for thread in own]
        return own[counts.index(max(counts))] if counts and counts.count(max(counts)) == 1 else NONE


def _holds_any(frames: FrameEvents, own: Column, threads: Column, moments: Column) -> NDArray[np.bool_]:
    """Which of the ranges hold any of the moments, whatever the thread."""
    asked = np.sort(moments[threads != NONE])
    ends = frames.start[own] + frames.duration[own]
    return np.searchsorted(asked, ends, "right") > np.searchsorted(asked, frames.start[own], "left")


def _innermost_range(frames: FrameEvents, own: Column, threads: Column, moments: Column) -> Column:
    """The innermost of some ranges around each moment of a thread; they are sorted by start, longer ones first."""
    found = np.full(len(moments), NONE, np.int64)
    for thread in sorted(set(threads.tolist())):
        rows = own[frames.thread[own] == thread]
        asked = np.flatnonzero(threads == thread)
        if thread == NONE or not len(rows):
            continue
        starts, ends = frames.start[rows], frames.start[rows] + frames.duration[rows]
        parents = _parents(starts.tolist(), ends.tolist())
        place = np.searchsorted(starts, moments[asked], side="right") - 1
        over = (place >= 0) & (ends[np.maximum(place, 0)] < moments[asked])
        while over.any():
            place[over] = parents[place[over]]
            over = (place >= 0) & (ends[np.maximum(place, 0)] < moments[asked])
        found[asked] = np.where(place >= 0, rows[np.maximum(place, 0)], NONE)
    return found


def _parents(starts: Sequence[int], ends: Sequence[int]) -> Column:
    parents: list[int] = []
    stack: list[int] = []
    for place, start in enumerate(starts):
        while stack and ends[stack[-1]] <= start:
            stack.pop()
        parents.append(stack[-1] if stack else NONE)
        stack.append(place)
    return np.array(parents, np.int64)


def _location(frame: str) -> SourceLocation | None:
    match = FRAME.match(frame)
    return SourceLocation(file=match["file"], line=int(match["line"])) if match else None
