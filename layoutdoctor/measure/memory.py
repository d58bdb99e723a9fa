"""Measures the memory of an iteration, recognizes out-of-memory errors, and releases unused memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch.autograd.profiler import profile

from layoutdoctor.errors import text_of
from layoutdoctor.measure.profiling import quiet_profiler
from layoutdoctor.measure.timing import kind_of
from layoutdoctor.units import format_bytes

if TYPE_CHECKING:
    from layoutdoctor.units import Bytes

# Texts of torch and Python: a GPU raises torch.OutOfMemoryError, the CPU's allocator only a plain RuntimeError.
_SAYS_OUT_OF_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory", re.IGNORECASE)
_ASKED = re.compile(r"tried to allocate ([\d.]+) (bytes|[KMGT]iB)", re.IGNORECASE)
_MOST_CAUSES = 20
_UNITS = {"bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


def release_memory() -> None:
    """Releases unused memory: reference cycles, and blocks that the allocators keep for later."""
    gc.collect()
    if torch.cuda.is_initialized():
        with contextlib.suppress(RuntimeError):  # a lost device has nothing to give back
            torch.cuda.empty_cache()
    with contextlib.suppress(Exception):  # not every C library has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def out_of_memory(error: BaseException) -> str:
    """
    Describes an out-of-memory error; looks also at the causes of the given exception.

    Returns:
        A text such as ``out of memory: 37.3 GiB were asked for``, or ``out of memory`` if the size is not known; an
        empty text for any other error.
    """
    inner: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if inner is None:
            break
        is_it = isinstance(inner, (MemoryError, torch.OutOfMemoryError))
        if is_it or (isinstance(inner, RuntimeError) and _SAYS_OUT_OF_MEMORY.search(text_of(inner))):
            asked = _ASKED.search(text_of(inner))
            if asked is None:
                return "out of memory"
            size = int(float(asked.group(1)) * _UNITS[asked.group(2).lower()])
            return f"out of memory: {format_bytes(size)} were asked for"
        inner = inner.__cause__ or getattr(inner, "inner_exception", None) or inner.__context__
    return ""


def peak_memory(step: Callable[[], None], device: str) -> Bytes | None:
    """
    Measures the peak of tensor memory in one warm iteration, above the memory in use at its start.

    On a GPU, torch's peak statistics are reset.

    Returns:
        Bytes from torch's allocator, including requests of libraries; None if this torch records no allocations.
        Memory that a library allocates by itself is not included.
    """
    if kind_of(device) == "cuda":
        return _peak_cuda_memory(step, device)
    with quiet_profiler(), profile(profile_memory=True) as recorded:
        step()
    # Kineto's list has an event for every allocation and free (torch 2.7 to 2.13); profile.events() has only the
    # events outside any operation.
    events = recorded.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    # Without events, nothing was recorded: every iteration allocates at least once.
    return max(accumulate((change for _, change in changes), initial=0)) if changes else None


def _peak_cuda_memory(step: Callable[[], None], device: str) -> Bytes | None:
    torch.cuda.synchronize(device)
    start = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device) - start)
