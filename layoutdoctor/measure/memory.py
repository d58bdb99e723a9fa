"""Memory: what an iteration needs, what is free, what it says when there is not enough, and letting go of it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import sys
from typing import TYPE_CHECKING

import torch

from layoutdoctor.errors import text_of
from layoutdoctor.measure.profiling import quiet_profiler
from layoutdoctor.measure.timing import kind_of
from layoutdoctor.state.switches import profiler_is_running
from layoutdoctor.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from layoutdoctor.units import Bytes

# How torch and Python say it; torch.OutOfMemoryError is a GPU's, a CPU's allocator raises a plain RuntimeError.
_SAYS_OUT_OF_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory", re.IGNORECASE)
_ASKED_IN_BYTES = re.compile(r"tried to allocate (\d+) bytes", re.IGNORECASE)
_ASKED_IN_UNITS = re.compile(r"tried to allocate (\d+(?:\.\d+)?) ([KMGT]iB)\b", re.IGNORECASE)
_UNITS = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


def release_memory() -> None:
    """Gives back what nothing uses any more: reference cycles, and what the allocators keep for later."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        with contextlib.suppress(RuntimeError):  # a lost device has nothing to give back
            torch.cuda.empty_cache()
    trim_heap()


def trim_heap() -> None:
    """Gives back what the C library keeps of freed memory, between what is in use too."""
    if sys.platform == "linux":
        with contextlib.suppress(Exception):  # a C library without it keeps what it has
            ctypes.CDLL(None).malloc_trim(0)


def out_of_memory(error: BaseException) -> str | None:
    """
    An exception, or one that it was raised from, that says that memory ran out, in words; None for any other.

    Returns:
        Such as ``out of memory: 37.3 GiB were asked for``, without the number where the exception does not give it.
    """
    met: set[int] = set()
    inner: BaseException | None = error
    while inner is not None and id(inner) not in met:
        met.add(id(inner))
        if _is_out_of_memory(inner):
            asked = _bytes_asked_for(text_of(inner))
            return "out of memory" if asked is None else f"out of memory: {format_bytes(asked)} were asked for"
        inner = inner.__cause__ or getattr(inner, "inner_exception", None) or inner.__context__
    return None


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and bool(_SAYS_OUT_OF_MEMORY.search(text_of(error)))


def _bytes_asked_for(message: str) -> Bytes | None:
    exact = _ASKED_IN_BYTES.search(message)
    if exact:
        return int(exact.group(1))
    rounded = _ASKED_IN_UNITS.search(message)
    return int(float(rounded.group(1)) * _UNITS[rounded.group(2).lower()]) if rounded else None


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
    kind = kind_of(device)
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

    if profiler_is_running():  # the caller's, which ours would end
        return None
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
    torch.cuda.synchronize(device)
    start = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device) - start)
