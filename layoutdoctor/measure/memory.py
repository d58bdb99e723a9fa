"""
Memory: how many bytes an iteration needs above what lies there when it starts.

Faces the doctor; imports torch, late.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from layoutdoctor.units import Bytes

# What torch 2.13 writes past Python to standard error around every profile, and where a step frees what was allocated
# before it. Neither bears on the result: a free of unknown size is none of this iteration's bytes.
_PROFILER_NOISE = (b"USDT:", b"Memory block of unknown size was allocated before the profiling started")


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


@contextlib.contextmanager
def profiler_noise_removed() -> Iterator[None]:
    """
    Standard error without the lines torch's profiler writes there from C++; every other line arrives at the end.

    The descriptor itself is turned aside for as long as the block runs, because those lines never pass through Python.
    """
    sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # no standard error at all
        yield
        return
    with tempfile.TemporaryFile() as aside:
        os.dup2(aside.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            aside.seek(0)
            _write_to_standard_error(b"".join(line for line in aside if not any(n in line for n in _PROFILER_NOISE)))


def _write_to_standard_error(text: bytes) -> None:
    while text:
        text = text[os.write(2, text) :]


def _peak_cpu_memory(step: Callable[[], None]) -> Bytes | None:
    from torch.autograd.profiler import profile

    with profiler_noise_removed(), profile(profile_memory=True) as recorded:
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
