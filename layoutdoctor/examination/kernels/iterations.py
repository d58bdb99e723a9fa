"""
Several iterations of the same work: each operation counts with its least time.

Another program may disturb any iteration, but seldom the same operation in all of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.examination.kernels.host import operation_tree

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from layoutdoctor.examination.kernels.host import HostOperation
    from layoutdoctor.recording.onednn import OnednnLog
    from layoutdoctor.recording.recording import Iteration, RecordedTrace

    Timed = tuple[Sequence[Hashable], Sequence[float]]
    """Names in the order in which they ran, and the time of each: seconds, or nanoseconds of a GPU's kernels."""


def _least(own: Timed, others: Iterable[Timed]) -> list[float]:
    """The least time of each name; an iteration in which other names or another order ran does not count."""
    ran, seconds = own
    same = [times for names, times in others if list(names) == list(ran)]
    return [min(times) for times in zip(seconds, *same, strict=True)]


def with_least_times(iteration: Iteration, others: Sequence[Iteration]) -> Iteration:
    """An iteration whose oneDNN primitives and kernels on a GPU have the least of their times in all iterations."""
    log, events = iteration.log, iteration.events
    if log is not None:
        times = _least(_primitives(log), (_primitives(one.log) for one in others if one.log is not None))
        primitives = [replace(one, seconds=seconds) for one, seconds in zip(log.primitives, times, strict=True)]
        log = replace(log, primitives=primitives)
    if len(events.kernels):
        import numpy as np  # late: no saved diagnosis needs it

        least = _least(_kernels(events), (_kernels(one.events) for one in others))
        events = replace(events, kernels=replace(events.kernels, duration=np.array(least, np.int64)))
    return msgspec.structs.replace(iteration, events=events, log=log)


def take_least_times(tree: Sequence[HostOperation], others: Sequence[Iteration]) -> None:
    """Sets the time of each operation of an iteration to its least time in all iterations."""
    ordered = _by_thread(tree)
    times = _least(_operations(ordered), (_operations(_by_thread(operation_tree(one.events))) for one in others))
    for entry, seconds in zip(ordered, times, strict=True):
        entry.seconds = seconds


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
