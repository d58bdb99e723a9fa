"""
Memory: how many bytes an iteration needs above what lies there when it starts.

Faces the doctor; imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.measure.profiling import quiet_profiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from layoutdoctor.units import Bytes


def peak_memory(step: Callable[[], None], device: str) -> Bytes | None:
    """
    Most bytes of tensors alive at once in one iteration, above those alive at its start.

    Args:
        step: One iteration, warm already; it is called once.
        device: ``cpu``, ``cuda`` or ``cuda:N``. On a GPU torch's peak statistics start anew (it has no way to put the
            old peak back).

    Returns:
        Bytes from torch's allocator, with what libraries ask it for; None where this torch or device cannot say. What a
        library allocates by itself is not seen.
    """
    kind = device.partition(":")[0]
    if kind == "cuda":
        return _peak_cuda_memory(step, device)
    return _peak_cpu_memory(step) if kind == "cpu" else None


def highest_sum(changes: Iterable[Bytes]) -> Bytes:
    """
    How high a running sum from 0 rises.

    Args:
        changes: Bytes allocated (above 0) and freed (below 0), in order of time.
    """
    current = highest = 0
    for change in changes:
        current += change
        highest = max(highest, current)
    return highest


def _peak_cpu_memory(step: Callable[[], None]) -> Bytes | None:
    from torch.autograd.profiler import profile

    with quiet_profiler(), profile(profile_memory=True) as recorded:
        step()
    # Every allocation and free is an event of its own in kineto's list (torch 2.13); the list that profile.events()
    # makes of it keeps those outside any operation only.
    results = getattr(recorded, "kineto_results", None)
    if results is None:
        return None
    try:
        memory = [(e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]"]
    except (AttributeError, RuntimeError):  # another torch, another list
        return None
    # None at all: not recorded here, because no iteration works without one allocation.
    return highest_sum(change for _, change in sorted(memory, key=lambda event: event[0])) if memory else None


def _peak_cuda_memory(step: Callable[[], None], device: str) -> Bytes | None:
    import torch

    torch.cuda.synchronize(device)
    start = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device) - start)
