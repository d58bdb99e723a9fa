"""How a block of calls is timed: on the processor by the wall clock, on a GPU by events on its own clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from layoutdoctor.errors import UsageError
from layoutdoctor.recording.reading import garbage_collection_paused
from layoutdoctor.units import NANOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from layoutdoctor.units import Seconds

    Timer = Callable[[Callable[[], None], int], tuple[Seconds, ...]]
    """Calls a step so many times and gives the seconds of every call, in order."""

SHORTEST_SECONDS = 1e-9
"""A clock may not have moved during the shortest of steps; ratios need times above 0."""

# As in triton.testing.do_bench (3.7): larger than the L2 cache of any GPU yet.
_FLUSH_BYTES = 256 * 2**20
# An idle GPU lowers its clock; other configurations have their turns, so that it never is idle for long.
_WARM_UP_SECONDS = 0.02
# Of such a call the launching that the flush hides is no part worth a second pass.
_LONG_SECONDS = 0.02
_LOOP_SECONDS = 0.01
_MOST_LOOPED = 100


def kind_of(device: str) -> str:
    """A device without its number: ``cuda`` of ``cuda:1``."""
    return device.partition(":")[0]


def cpu_timer(step: Callable[[], None], calls: int) -> tuple[Seconds, ...]:
    """Wall time of every call; no garbage is collected meanwhile."""
    times = []
    with garbage_collection_paused():
        for _ in range(calls):
            start = time.perf_counter_ns()
            step()
            times.append(time.perf_counter_ns() - start)
    return tuple(max(nanoseconds / NANOSECONDS_PER_SECOND, SHORTEST_SECONDS) for nanoseconds in times)


def cuda_timer(device: str, step: Callable[[], None], calls: int) -> tuple[Seconds, ...]:
    """
    Time of calls between events on a GPU, in two passes: each call after the L2 cache was emptied, or all in a loop.

    Some calls that raise the clock come first, and are not timed. Emptying the cache takes about 0.1 ms, in which the
    processor launches ahead: this hides that launching may take longer than the kernels. The longer pass counts: the
    one with cold caches if the kernels take longer, the loop if launching does; each time is then the loop's mean.

    Source:
        ``triton.testing.do_bench`` (triton 3.7): events around every call, one synchronisation at the end.
    """
    with torch.cuda.device(device), garbage_collection_paused():
        cache = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=device)
        end = time.perf_counter() + _WARM_UP_SECONDS
        step()
        torch.cuda.synchronize()  # after each: nothing is queued that would be timed with the first call
        while time.perf_counter() < end:
            step()
            torch.cuda.synchronize()
        seconds = _between_events(step, 1, cache.zero_, calls)
        shortest = min(seconds)
        if shortest < _LONG_SECONDS:
            count = max(calls, min(_MOST_LOOPED, int(_LOOP_SECONDS / shortest)))
            mean = _between_events(step, count, lambda: None, 1)[0] / count
            if mean > shortest:
                return (mean,) * calls
        return seconds


def _between_events(
    step: Callable[[], None], calls: int, before: Callable[[], object], repetitions: int
) -> tuple[Seconds, ...]:
    """Seconds of so many calls without a pause, each time."""
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repetitions)]
    for start, end in events:
        end.record()  # an event is made when it is recorded for the first time
        before()
        start.record()
        for _ in range(calls):
            step()
        end.record()
    torch.cuda.synchronize()
    return tuple(max(start.elapsed_time(end) * 1e-3, SHORTEST_SECONDS) for start, end in events)


def choose_timer(device: str) -> Timer:
    """
    The timer for a device; ROCm calls itself cuda as well.

    Raises:
        UsageError: No timer is known for it.
    """
    if kind_of(device) == "cpu":
        return cpu_timer
    if kind_of(device) == "cuda":
        return partial(cuda_timer, device)
    raise UsageError(f"cannot time a model on device {device!r}: expected cpu or cuda")
