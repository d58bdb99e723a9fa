"""Times calls: on a CPU by the wall clock, on a GPU by CUDA events."""

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
    """Function of a step and a number of calls; returns the seconds of every call, in order."""

SHORTEST_SECONDS = 1e-9
"""Least time that is reported: a clock may not advance during a very short step, and ratios need times above 0."""

# As in triton.testing.do_bench (3.7): larger than the L2 cache of any present GPU.
_FLUSH_BYTES = 256 * 2**20
# An idle GPU lowers its clock. It is never idle for long here, because configurations are timed in turn.
_WARM_UP_SECONDS = 0.02
# Calls of this length get only the first pass of ``cuda_timer``: the launch time that it hides is short beside them.
_LONG_SECONDS = 0.02
_LOOP_SECONDS = 0.01
_MOST_LOOPED = 100


def kind_of(device: str) -> str:
    """Returns the type of a device without its index: ``cuda`` for ``cuda:1``."""
    return device.partition(":")[0]


def cpu_timer(step: Callable[[], None], calls: int) -> tuple[Seconds, ...]:
    """Measures the wall time of every call; garbage collection is paused."""
    times = []
    with garbage_collection_paused():
        for _ in range(calls):
            start = time.perf_counter_ns()
            step()
            times.append(time.perf_counter_ns() - start)
    return tuple(max(nanoseconds / NANOSECONDS_PER_SECOND, SHORTEST_SECONDS) for nanoseconds in times)


def cuda_timer(device: str, step: Callable[[], None], calls: int) -> tuple[Seconds, ...]:
    """
    Times calls by events on a GPU, in two passes: first with an empty L2 cache before each call, then all in a loop.

    A few untimed calls first raise the GPU's clock. Emptying the cache takes about 0.1 ms, during which the processor
    launches kernels ahead. So the first pass hides launches that take longer than their kernels, and the loop does not.
    If the mean time in the loop is longer than the shortest time of the first pass, the mean is returned for every
    call. Otherwise the times of the first pass are returned. Long calls have no second pass.

    Source:
        ``triton.testing.do_bench`` (triton 3.7): events around every call, one synchronisation at the end.
    """
    with torch.cuda.device(device), garbage_collection_paused():
        cache = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=device)
        end = time.perf_counter() + _WARM_UP_SECONDS
        step()
        torch.cuda.synchronize()  # after each call: queued work would be timed with the first call
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
    """Times ``calls`` calls without a pause, ``repetitions`` times; returns the seconds of each repetition."""
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repetitions)]
    for start, end in events:
        end.record()  # the first record of an event creates it
        before()
        start.record()
        for _ in range(calls):
            step()
        end.record()
    torch.cuda.synchronize()
    return tuple(max(start.elapsed_time(end) * 1e-3, SHORTEST_SECONDS) for start, end in events)


def choose_timer(device: str) -> Timer:
    """
    Returns the timer for a device; ROCm devices are named cuda as well.

    Raises:
        UsageError: There is no timer for this type of device.
    """
    if kind_of(device) == "cpu":
        return cpu_timer
    if kind_of(device) == "cuda":
        return partial(cuda_timer, device)
    raise UsageError(f"cannot time a model on device {device!r}: expected cpu or cuda")
