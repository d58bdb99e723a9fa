"""
Several profiled iterations as one: the same operations, kernels and primitives, each with the least time of all.

One iteration may meet another program, or a thread that woke up late; that the same operation meets it in each is rare.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.examination.kernels.host import COMPILED_RANGES, iteration_of, operation_tree
from layoutdoctor.recording.recording import unrest

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from layoutdoctor.examination.kernels.host import HostOperation, ProfiledIteration
    from layoutdoctor.recording.recording import Iteration


@dataclass(frozen=True)
class LeastTimes:
    """
    The quietest of the iterations that agree, with the least times of all of these.

    Attributes:
        iteration: Its kernels and primitives take what they took at least.
        profile: Its operations, as recorded.
        tree: From ``operation_tree``; the operations know what they took at least.
        doubt: Why its times cannot be told; None where they can.
    """

    iteration: Iteration
    profile: ProfiledIteration
    tree: list[HostOperation]
    doubt: str | None = None


def least_times(iterations: Sequence[Iteration]) -> LeastTimes:
    """
    Aligns iterations operation by operation; those that ran something else than most are left out.

    Args:
        iterations: At least one.
    """
    runs, agreeing = _aligned(iterations)
    if len(agreeing) == 1 < len(runs):
        return runs[0].with_least_of(runs[:1], f"{len(runs)} profiled iterations ran different operations")
    return agreeing[0].with_least_of(agreeing)


def ran_the_same(some: Sequence[Iteration], others: Sequence[Iteration]) -> bool:
    """Whether most of both ran the same operations."""
    return _aligned(some)[1][0].sequence() == _aligned(others)[1][0].sequence()


def _aligned(iterations: Sequence[Iteration]) -> tuple[list[_Run], list[_Run]]:
    """Those that tell times, the quietest first, and the most of them that agree."""
    quietest = min(iterations, key=unrest)
    # Where a profiler lost the kernels of some, these say nothing of times.
    usable = [iteration for iteration in iterations if unrest(iteration)[0] == unrest(quietest)[0]]
    runs = [_Run(iteration) for iteration in sorted(usable, key=unrest)]
    groups: dict[Hashable, list[_Run]] = defaultdict(list)
    for run in runs:
        groups[run.sequence()].append(run)
    return runs, max(groups.values(), key=len)


def _in_any_process(name: str) -> str:
    return next((start for start in COMPILED_RANGES if name.startswith(start)), name)


class _Run:
    """An iteration with its operations."""

    def __init__(self, iteration: Iteration) -> None:
        self.iteration = iteration
        self.profile = iteration_of(iteration.events)
        self.tree = operation_tree(self.profile)

    def sequence(self) -> Hashable:
        """What two iterations that ran the same have in common; a thread or a stream stands for itself."""
        if self.iteration.device != "cpu":
            kernels, names = self.iteration.events.kernels, self.iteration.events.names
            grids = self.iteration.events.grids
            return tuple(
                tuple((names[kernels.name[row]], _item(grids, kernels.grid[row])) for row in rows)
                for rows in self.streams()
            )
        threads = tuple(
            tuple((_in_any_process(entry.name), entry.operation.shapes) for entry in entries)
            for entries in self.threads()
        )
        log = self.iteration.log
        return threads, log and tuple((p.kind, p.implementation, p.prop_kind, p.problem) for p in log.primitives)

    def threads(self) -> list[list[HostOperation]]:
        """The operations of each thread, in order."""
        found: dict[str, list[HostOperation]] = defaultdict(list)
        for entry in self.tree:
            found[entry.operation.thread].append(entry)
        return list(found.values())

    def streams(self) -> list[list[int]]:
        """Rows of the kernels of each stream, in order."""
        kernels = self.iteration.events.kernels
        found: dict[tuple[int, ...], list[int]] = defaultdict(list)
        columns = (kernels.process.tolist(), kernels.device.tolist(), kernels.stream.tolist())
        for row, stream in enumerate(zip(*columns, strict=True)):
            found[stream].append(row)
        return [found[stream] for stream in sorted(found)]

    def with_least_of(self, runs: Sequence[_Run], doubt: str | None = None) -> LeastTimes:
        """This one, with the least times of some that ran the same, of which it is one."""
        is_cpu = self.iteration.device == "cpu"
        iteration = self._with_least_primitives(runs) if is_cpu else self._with_least_kernels(runs)
        return LeastTimes(iteration, self.profile, self.tree, doubt)

    def _with_least_kernels(self, runs: Sequence[_Run]) -> Iteration:
        kernels = self.iteration.events.kernels
        duration, own = kernels.duration.copy(), [row for rows in self.streams() for row in rows]
        for run in runs:
            rows = [row for rows in run.streams() for row in rows]
            duration[own] = duration[own].clip(max=run.iteration.events.kernels.duration[rows])
        kernels = dataclasses.replace(kernels, duration=duration)
        events = dataclasses.replace(self.iteration.events, kernels=kernels)
        return msgspec.structs.replace(self.iteration, events=events)

    def _with_least_primitives(self, runs: Sequence[_Run]) -> Iteration:
        """With the operations' least times noted in the tree."""
        entries = [[entry for own in run.threads() for entry in own] for run in (self, *runs)]
        for entry, *same in zip(*entries, strict=True):
            whole, own = min(one.operation.seconds for one in same), min(one.self_seconds() for one in same)
            entry.least_seconds, entry.least_self_seconds = whole, own
        logs = [run.iteration.log for run in runs]
        known = [log.primitives for log in logs if log is not None]
        if self.iteration.log is None or len(known) < len(runs):
            return self.iteration
        primitives = [
            dataclasses.replace(first, seconds=min(one.seconds for one in same))
            for first, *same in zip(self.iteration.log.primitives, *known, strict=True)
        ]
        log = dataclasses.replace(self.iteration.log, primitives=primitives)
        return msgspec.structs.replace(self.iteration, log=log)


def _item(grids: Sequence[tuple[int, int, int]], index: int) -> tuple[int, int, int] | None:
    return grids[index] if 0 <= index < len(grids) else None
