"""How busy others keep the machine while configurations take turns, as far as the system says."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from layoutdoctor.diagnosis.records import MachineLoad

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.units import Seconds

# Others may use this much of a core before claims are doubted...
_MOST_OTHER_CORES = 1 / 3
# ...or this share of the cores that the model leaves free, where that is more.
_SHARE_OF_FREE_CORES = 0.5
_STATISTICS = Path("/proc/stat")
_IDLE_COLUMNS = (3, 4)  # idle, and waiting for a disk
_COUNTED_COLUMNS = 8  # user, nice, system, idle, iowait, irq, softirq, steal; guests are in user


class Reading(NamedTuple):
    """
    The state of the clocks at one moment.

    Attributes:
        busy_seconds: CPU seconds of all that ran on the cores this process may use, time that other machines took from
            them included; None where the system does not say.
        own_seconds: CPU seconds of this process, all threads.
        involuntary_switches: How often a thread of it had to make room; None where the system does not say.
    """

    wall_seconds: Seconds
    busy_seconds: Seconds | None
    own_seconds: Seconds
    involuntary_switches: int | None


def read_load() -> Reading:
    """What the system says now."""
    return Reading(time.perf_counter(), _busy_seconds(), time.process_time(), involuntary_switches())


def core_count() -> int:
    """Cores this process may use."""
    return len(_own_cores()) or os.cpu_count() or 1


class LoadMeter:
    """
    Reads the clocks after every round.

    Args:
        thread_count: Threads the model uses.
        cores: Cores it may use.
    """

    def __init__(self, thread_count: int, cores: int, read: Callable[[], Reading] = read_load) -> None:
        self.thread_count, self.cores = thread_count, cores
        self._read = read
        self._readings: list[Reading] = []

    def look(self) -> None:
        """Called before the first round and after each."""
        self._readings.append(self._read())

    def load(self) -> MachineLoad | None:
        """What it has seen; None where there was no round."""
        steps = list(zip(self._readings, self._readings[1:], strict=False))
        if not steps:
            return None
        whole = (self._readings[0], self._readings[-1])
        others = _other_cores(*whole)
        rounds = [_other_cores(*step) for step in steps]
        switches = [
            after.involuntary_switches - before.involuntary_switches
            for before, after in steps
            if before.involuntary_switches is not None and after.involuntary_switches is not None
        ]
        return MachineLoad(
            other_cores=others,
            is_too_busy=others is not None and self._is_too_much(others, whole[1].wall_seconds - whole[0].wall_seconds),
            round_other_cores=tuple(cores for cores in rounds if cores is not None) if others is not None else (),
            round_involuntary_switches=tuple(switches),
        )

    def _is_too_much(self, others: float, seconds: Seconds) -> bool:
        free = max(self.cores - self.thread_count, 0)
        # The system counts in ticks, each core on its own: what a few ticks make of a short time proves nothing.
        rounding = self.cores * _tick_seconds() / seconds if seconds > 0 else float("inf")
        return others - rounding > max(_MOST_OTHER_CORES, _SHARE_OF_FREE_CORES * free)


def _other_cores(before: Reading, after: Reading) -> float | None:
    seconds = after.wall_seconds - before.wall_seconds
    if before.busy_seconds is None or after.busy_seconds is None or seconds <= 0:
        return None
    others = after.busy_seconds - before.busy_seconds - (after.own_seconds - before.own_seconds)
    return max(others, 0.0) / seconds


def _busy_seconds() -> Seconds | None:
    try:
        lines = _STATISTICS.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeError):
        return None
    names = {f"cpu{core}" for core in _own_cores()}
    ticks = 0
    for line in lines:
        name, *columns = line.split()
        if name in names:
            counted = columns[:_COUNTED_COLUMNS]
            ticks += sum(int(column) for place, column in enumerate(counted) if place not in _IDLE_COLUMNS)
    return ticks * _tick_seconds() if ticks else None


def _own_cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _tick_seconds() -> Seconds:
    return 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01


def involuntary_switches() -> int | None:
    """How often a thread of this process had to make room; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
