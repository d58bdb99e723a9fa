"""Makes timed processes comparable: they keep freed memory, and their threads are ended or wait only shortly."""

from __future__ import annotations

import contextlib
import ctypes
import random
from collections.abc import Mapping
from pathlib import Path

from layoutdoctor.workers.processes import _held

# Below the size from which glibc's allocator maps separate memory, so that all blocks are on the heap.
_BLOCK_BYTES = 100_000


_MOST_BLOCKS = 40


# mallopt's M_TRIM_THRESHOLD and M_MMAP_MAX, with values at which glibc's allocator keeps all freed memory.
_KEEPS_MEMORY = ((-1, 2**31 - 1), (-4, 0))


def short_waits(environment: Mapping[str, str]) -> dict[str, str]:
    """
    Returns environment variables for a timed process; empty if the user has set how threads wait.

    A thread of GNU's OpenMP that waits for other threads keeps its processor busy for up to 14 ms. If other programs
    run, the threads that it waits for may lose this time: a call of 2 ms then takes 7 to 95 ms. Waits of half a
    millisecond are still long enough for the gaps between the operations of a call.

    Source:
        ``GOMP_SPINCOUNT`` of libgomp, which the library reads when it is loaded; measured in docs/measuring.md.
    """
    if any(name in environment for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")):
        return {}
    return {"GOMP_SPINCOUNT": "10000"}


def keep_memory() -> None:
    """Makes this process keep freed memory from now on, if its allocator is glibc's."""
    with contextlib.suppress(AttributeError, OSError):
        allocator = ctypes.CDLL(None)
        for limit, value in _KEEPS_MEMORY:
            allocator.mallopt(limit, value)


def take_some_memory() -> None:
    """
    Takes a random amount of memory and holds it until the process ends.

    Source:
        T. Mytkowicz et al., Producing wrong data without doing anything obviously wrong, ASPLOS 2009: vary factors
        that should not matter.
    """
    _held.extend(bytearray(_BLOCK_BYTES) for _ in range(random.SystemRandom().randrange(_MOST_BLOCKS)))


def end_worker_threads() -> None:
    """
    Ends OpenMP's threads, so that a fork is safe; the next parallel region starts new threads.

    Source:
        ``omp_pause_resource_all`` (OpenMP 5.0) with ``omp_pause_hard``, in every OpenMP library of this process.
    """
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return
    text = maps.read_text(encoding="utf-8", errors="replace")
    words = ("libgomp", "libomp", "libiomp")
    files = {line.split()[-1] for line in text.splitlines() if any(word in line for word in words)}
    for file in sorted(files):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(file).omp_pause_resource_all(2)
