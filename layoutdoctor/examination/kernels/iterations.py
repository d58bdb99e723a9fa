"""
Several iterations of the same work: each operation counts with the median of its shares of a call.

The machine may be faster or slower during any iteration, and so is the call that was timed beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from layoutdoctor.examination.kernels.host import working_seconds
from layoutdoctor.examination.kernels.operations import base_seconds, operation_tree
from layoutdoctor.examination.kernels.placing import place_primitives
from layoutdoctor.units import NANOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from layoutdoctor.examination.kernels.operations import HostOperation
    from layoutdoctor.recording.onednn import OnednnLog
    from layoutdoctor.recording.recording import Iteration, RecordedTrace
    from layoutdoctor.units import Seconds

    Timed = tuple[Sequence[Hashable], Sequence[float]]
    """Names in the order in which they ran, and the time of each: seconds, or nanoseconds of a GPU's kernels."""


_MOST_OF_AN_EVENT_SECONDS = 10e-6
"""The profiler and oneDNN's log slow a call by at most so much for each operation or primitive that they record."""


class Shares:
    """
    The times of several iterations as shares of a call.

    An operation's time is divided by that of its own iteration, because the machine's speed changes between iterations.
    On a CPU this is the profiled call, less the time that the profiler adds to it. The median share counts. If the
    iterations were not timed, the least time counts: another program seldom disturbs the same operation in all of them.

    Attributes:
        between_seconds: Time of a call in which no kernel runs; None if the iterations were not timed.

    Args:
        iterations: The first one is the one whose times are set.
        call_seconds: Time of a call, as reports show it; None leaves the times as they were recorded.
    """

    def __init__(self, iterations: Sequence[Iteration], call_seconds: Seconds | None) -> None:
        self._iterations, self._call_seconds = iterations, call_seconds
        # On a GPU the kernels have the times, not the operations that launched them.
        self._trees = [[] if len(one.events.kernels) else operation_tree(one.events) for one in iterations]
        self._factors = [1.0] * len(iterations)
        self._typical: Callable[[Iterable[float]], float] = min
        self.between_seconds: Seconds | None = None
        added = _profiler_seconds(iterations)
        whole = [_call_seconds(one, added) for one in iterations]
        if call_seconds is None or None in whole:
            return
        working = [_working_seconds(one, tree) for one, tree in zip(iterations, self._trees, strict=True)]
        longest = [max(of or 0.0, work) for of, work in zip(whole, working, strict=True)]
        self._factors = [call_seconds / of for of in longest]
        self._typical = statistics.median
        idle = statistics.median(1 - work / of for of, work in zip(longest, working, strict=True))
        self.between_seconds = idle * call_seconds

    def of_primitives(self) -> OnednnLog | None:
        """The first iteration's log of oneDNN, with the times of its primitives."""
        log = self._iterations[0].log
        if log is None:
            return None
        times = self._times([None if one.log is None else _primitives(one.log) for one in self._iterations])
        return replace(
            log,
            primitives=[replace(one, seconds=seconds) for one, seconds in zip(log.primitives, times, strict=True)],
        )

    def of_kernels(self) -> RecordedTrace:
        """The first iteration's events, with the times of its kernels on a GPU."""
        events = self._iterations[0].events
        if not len(events.kernels):
            return events
        import numpy as np  # late: no saved diagnosis needs it

        times = self._times([_kernels(one.events) for one in self._iterations])
        return replace(events, kernels=replace(events.kernels, duration=np.rint(times).astype(np.int64)))

    def set_times(self, tree: Sequence[HostOperation]) -> None:
        """
        Sets the times of the first iteration's operations, whose primitives have theirs.

        Medians of parts do not sum to the median of their sum: all are scaled, so that a call is what works and what is
        between.
        """
        ordered = _by_thread(tree)
        others = [_operations(_by_thread(other)) for other in self._trees[1:]]
        for entry, seconds in zip(ordered, self._times([_operations(ordered), *others]), strict=True):
            entry.seconds = seconds
        working = working_seconds(tree)
        if self.between_seconds is None or self._call_seconds is None or not working:
            return
        scale = (self._call_seconds - self.between_seconds) / working
        for entry in tree:
            entry.seconds *= scale
            entry.primitives = [replace(one, seconds=scale * one.seconds) for one in entry.primitives]

    def _times(self, timed: Sequence[Timed | None]) -> list[float]:
        """The typical time of each operation. Only iterations that ran the same operations in the same order count."""
        own = timed[0]
        assert own is not None
        known = [(one, factor) for one, factor in zip(timed, self._factors, strict=True) if one is not None]
        same = [
            [factor * seconds for seconds in times] for (names, times), factor in known if list(names) == list(own[0])
        ]
        return [self._typical(times) for times in zip(*same, strict=True)]


def _call_seconds(iteration: Iteration, profiler_seconds: Seconds) -> Seconds | None:
    """Time of an iteration without what the profiler adds; on a GPU of the call beside it. None if not timed."""
    if iteration.device != "cpu" or iteration.profiled_seconds is None:
        return iteration.call_seconds
    return iteration.profiled_seconds - profiler_seconds


def _profiler_seconds(iterations: Sequence[Iteration]) -> Seconds:
    """The time that the profiler adds to an iteration, as far as it can be explained by the number of events."""
    added = [
        one.profiled_seconds - one.call_seconds
        for one in iterations
        if one.profiled_seconds is not None and one.call_seconds is not None
    ]
    first = iterations[0]
    count = len(first.events.operations) + (0 if first.log is None else len(first.log.primitives))
    return min(max(0.0, statistics.median(added)), count * _MOST_OF_AN_EVENT_SECONDS) if added else 0.0


def _working_seconds(iteration: Iteration, tree: Sequence[HostOperation]) -> Seconds:
    """Time in which kernels ran, and the calls of a library around its kernels."""
    kernels = iteration.events.kernels
    if len(kernels):
        total = end = 0
        for start, duration in zip(kernels.start.tolist(), kernels.duration.tolist(), strict=True):
            total += max(0, start + duration - max(start, end))
            end = max(end, start + duration)
        return total / NANOSECONDS_PER_SECOND
    if iteration.log is not None:
        place_primitives(tree, iteration.log, base_seconds(iteration.events))
    return working_seconds(tree)


def _by_thread(tree: Sequence[HostOperation]) -> list[HostOperation]:
    """Operations thread by thread, each in the order in which they ran: the order across threads varies."""
    return sorted(tree, key=lambda entry: entry.thread)


def _operations(ordered: Sequence[HostOperation]) -> Timed:
    return [entry.name for entry in ordered], [entry.seconds for entry in ordered]


def _primitives(log: OnednnLog) -> Timed:
    return [(one.kind, one.implementation, one.problem) for one in log.primitives], [
        one.seconds for one in log.primitives
    ]


def _kernels(events: RecordedTrace) -> Timed:
    kernels = events.kernels
    return [events.names[name] for name in kernels.name.tolist()], kernels.duration.tolist()
