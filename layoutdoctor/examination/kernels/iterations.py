"""
Combines several iterations of the same work: each operation gets the median of its shares of a call.

The machine's speed changes between iterations. A call timed close to an iteration shows the speed in that iteration.
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
    from layoutdoctor.recording.onednn import OnednnLog, Primitive
    from layoutdoctor.recording.recording import Iteration, RecordedTrace
    from layoutdoctor.units import Seconds

    Timed = tuple[list[Hashable], list[float]]
    """Names of operations in the order in which they ran, and their times: seconds, or nanoseconds for GPU kernels."""


_MOST_OF_AN_EVENT_SECONDS = 10e-6
"""The profiler and oneDNN's log add at most this time to a call for each operation or primitive that they record."""


class Shares:
    """
    The times of operations in several iterations, as shares of a call.

    An operation's time is divided by the time of its own iteration, because the machine's speed changes between
    iterations. On a CPU, the time that the profiler adds is subtracted from both: an operation's time contains the time
    to record the operations and primitives within it. Each operation gets the median of its shares. If the iterations
    were not timed, each operation gets the shortest of its times, because another program seldom disturbs the same
    operation in all iterations.

    Attributes:
        between_seconds: Time of a call in which no kernel runs; None if the iterations or the call were not timed.

    Args:
        iterations: Iterations of the same work; only operations of the first iteration get combined times.
        call_seconds: Time of a call, as reports show it; None leaves the times unscaled.
    """

    def __init__(self, iterations: Sequence[Iteration], call_seconds: Seconds | None) -> None:
        self._iterations, self._call_seconds = iterations, call_seconds
        # On a GPU the kernels have the times, not the operations that launched them.
        self._trees = [[] if len(one.events.kernels) else operation_tree(one.events) for one in iterations]
        self._factors = [1.0] * len(iterations)
        self._typical: Callable[[Iterable[float]], float] = min
        self.between_seconds: Seconds | None = None
        count = len(self._trees[0]) + len(_logged(iterations[0]))
        added = _profiler_seconds(iterations, count)
        whole = [_call_seconds(one, added) for one in iterations]
        if call_seconds is None or None in whole:
            return
        for one, tree in zip(iterations, self._trees, strict=True):
            if one.log is not None:
                place_primitives(tree, one.log, base_seconds(one.events))
            _subtract(added / max(1, count), tree)
        working = [_working_seconds(one, tree) for one, tree in zip(iterations, self._trees, strict=True)]
        longest = [max(of or 0.0, work) for of, work in zip(whole, working, strict=True)]
        self._factors = [call_seconds / of for of in longest]
        self._typical = statistics.median
        idle = statistics.median(1 - work / of for of, work in zip(longest, working, strict=True))
        self.between_seconds = idle * call_seconds

    def of_primitives(self) -> OnednnLog | None:
        """The oneDNN log of the first iteration, with combined times of its primitives; None if there is no log."""
        log = self._iterations[0].log
        if log is None:
            return None
        times = self._times([_primitives(one) for one in self._iterations])
        return replace(
            log,
            primitives=[replace(one, seconds=seconds) for one, seconds in zip(log.primitives, times, strict=True)],
        )

    def of_kernels(self) -> RecordedTrace:
        """The events of the first iteration; on a GPU, the time of each kernel is combined from all iterations."""
        events = self._iterations[0].events
        if not len(events.kernels):
            return events
        import numpy as np  # late: no saved diagnosis needs it

        times = self._times([_kernels(one.events) for one in self._iterations])
        return replace(events, kernels=replace(events.kernels, duration=np.rint(times).astype(np.int64)))

    def set_times(self, tree: Sequence[HostOperation]) -> None:
        """
        Sets the combined times of the first iteration's operations; their primitives must have combined times already.

        Medians of parts do not sum to the median of the whole. So all times are scaled: the working time and the time
        between kernels then sum to the time of a call.
        """
        times = self._times([_operations(_by_thread(one)) for one in self._trees])
        for entry, seconds in zip(_by_thread(tree), times, strict=True):
            entry.seconds = seconds
        working = working_seconds(tree)
        if self.between_seconds is None or self._call_seconds is None or not working:
            return
        scale = (self._call_seconds - self.between_seconds) / working
        for entry in tree:
            entry.seconds *= scale
            entry.primitives = [replace(one, seconds=scale * one.seconds) for one in entry.primitives]

    def _times(self, timed: Sequence[Timed]) -> list[float]:
        """The median or shortest time of each operation, over iterations with the same operations in the same order."""
        same = [
            [factor * seconds for seconds in times]
            for (names, times), factor in zip(timed, self._factors, strict=True)
            if names == timed[0][0]
        ]
        return [self._typical(times) for times in zip(*same, strict=True)]


def _call_seconds(iteration: Iteration, profiler_seconds: Seconds) -> Seconds | None:
    """
    The time of an iteration, minus the time that the profiler adds. On a GPU, or if the iteration was not timed: the
    time of an unprofiled call, or None if no such call was timed.
    """
    if iteration.device != "cpu" or iteration.profiled_seconds is None:
        return iteration.call_seconds
    return iteration.profiled_seconds - profiler_seconds


def _profiler_seconds(iterations: Sequence[Iteration], event_count: int) -> Seconds:
    """
    The time that the profiler adds to an iteration: the lower quartile, because a disturbed iteration shows more.

    The number of events limits the time to ``_MOST_OF_AN_EVENT_SECONDS`` for each event.
    """
    added = sorted(
        one.profiled_seconds - one.call_seconds
        for one in iterations
        if one.profiled_seconds is not None and one.call_seconds is not None
    )
    return min(max(0.0, added[len(added) // 4]), event_count * _MOST_OF_AN_EVENT_SECONDS) if added else 0.0


def _logged(iteration: Iteration) -> Sequence[Primitive]:
    return [] if iteration.log is None else iteration.log.primitives


def _subtract(seconds_per_event: Seconds, tree: Sequence[HostOperation]) -> None:
    """Subtracts from each operation the time that it takes to record the operations and primitives within it."""
    counts: dict[int, int] = {}
    for entry in reversed(tree):  # children before their parents
        count = len(entry.primitives) + sum(1 + counts[id(child)] for child in entry.children)
        counts[id(entry)] = count
        least = sum(child.seconds for child in entry.children) + sum(one.seconds for one in entry.primitives)
        entry.seconds = max(min(least, entry.seconds), entry.seconds - count * seconds_per_event)


def _working_seconds(iteration: Iteration, tree: Sequence[HostOperation]) -> Seconds:
    """Time in which kernels ran; on a CPU, including library calls around their kernels."""
    kernels = iteration.events.kernels
    if len(kernels):
        total = end = 0
        for start, duration in zip(kernels.start.tolist(), kernels.duration.tolist(), strict=True):
            total += max(0, start + duration - max(start, end))
            end = max(end, start + duration)
        return total / NANOSECONDS_PER_SECOND
    return working_seconds(tree)


def _by_thread(tree: Sequence[HostOperation]) -> list[HostOperation]:
    """Sorts operations by thread, each thread in the order of its operations: the order across threads varies."""
    return sorted(tree, key=lambda entry: entry.thread)


def _operations(ordered: Sequence[HostOperation]) -> Timed:
    return [entry.name for entry in ordered], [entry.seconds for entry in ordered]


def _primitives(iteration: Iteration) -> Timed:
    own = _logged(iteration)
    return [(one.kind, one.implementation, one.problem) for one in own], [one.seconds for one in own]


def _kernels(events: RecordedTrace) -> Timed:
    kernels = events.kernels
    return [events.names[name] for name in kernels.name.tolist()], kernels.duration.tolist()
