"""How a block of calls is timed: on the processor by the wall clock, on a GPU by events on its own clock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from layoutdoctor.errors import UsageError
from layoutdoctor.isolation.rounds import SHORTEST_SECONDS
from layoutdoctor.recording.reading import garbage_collection_paused
from layoutdoctor.units import NANOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.units import Seconds

# As in triton.testing.do_bench (3.7): larger than the L2 cache of any GPU yet.
_FLUSH_BYTES = 256 * 2**20


class Timer(Protocol):
    """Calls a step so many times and says what each call took."""

    def __call__(self, step: Callable[[], None], calls: int) -> tuple[Seconds, ...]:
        """Seconds of every call, in order."""


def cpu_timer(step: Callable[[], None], calls: int) -> tuple[Seconds, ...]:
    """Wall time of every call; no garbage is collected meanwhile."""
    times = []
    with garbage_collection_paused():
        for _ in range(calls):
            start = time.perf_counter_ns()
            step()
            times.append(time.perf_counter_ns() - start)
    return tuple(max(nanoseconds / NANOSECONDS_PER_SECOND, SHORTEST_SECONDS) for nanoseconds in times)


class CudaTimer:
    """
    Time of every call between two events on the GPU's current stream; the L2 cache is emptied before each.

    Source:
        ``triton.testing.do_bench`` (triton 3.7): events around every call, one synchronisation at the end. Writing the
        256 MiB also gives the processor a head start, so that short steps are not timed by how fast they are launched.
    """

    def __init__(self, device: str = "cuda") -> None:
        self.device = device

    def __call__(self, step: Callable[[], None], calls: int) -> tuple[Seconds, ...]:
        """Seconds of every call, in order, after one that is not timed."""
        import torch

        with torch.cuda.device(self.device), garbage_collection_paused():
            cache = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=self.device)
            events = [
                (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(calls)
            ]
            step()
            for start, end in events:
                cache.zero_()
                start.record()
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
    kind = device.partition(":")[0]
    if kind == "cpu":
        return cpu_timer
    if kind == "cuda":
        return CudaTimer(device)
    raise UsageError(
        f"cannot time a model on device {device!r}: expected cpu or cuda; pass a timer of your own with timer="
    )
