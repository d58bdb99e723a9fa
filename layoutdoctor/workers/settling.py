"""What makes processes that are timed alike: memory that is kept, threads that are ended or wait shortly."""

from __future__ import annotations

import contextlib
import ctypes
import random
from collections.abc import Mapping
from pathlib import Path

from layoutdoctor.workers.processes import _held

# Below the size from which glibc's allocator first maps memory of its own, so that all of them lie on the heap.
_BLOCK_BYTES = 100_000


_MOST_BLOCKS = 40


# mallopt's M_TRIM_THRESHOLD and M_MMAP_MAX, and what lifts these limits of glibc's allocator.
_KEEPS_MEMORY = ((-1, 2**31 - 1), (-4, 0))


def short_waits(environment: Mapping[str, str]) -> dict[str, str]:
    """
    Environment variables for a process that is to be timed; none if the user has chosen how threads wait.

    A thread of GNU's OpenMP that waits for the others keeps its processor busy for up to 14 ms. If another program
    needs that processor, the thread that it waits for loses this time: a call of 2 ms takes 7 to 95 ms, by chance.
    Waits of half a millisecond still bridge the gaps between the operations of a call.

    Source:
        ``GOMP_SPINCOUNT`` (libgomp), which is read when the library is loaded; measured in docs/measuring.md.
    """
    if any(name in environment for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")):
        return {}
    return {"GOMP_SPINCOUNT": "10000"}


def keep_memory() -> None:
    """From now on memory that is freed stays with this process, as far as its allocator is glibc's."""
    with contextlib.suppress(AttributeError, OSError):
        allocator = ctypes.CDLL(None)
        for limit, value in _KEEPS_MEMORY:
            allocator.mallopt(limit, value)


def take_some_memory() -> None:
    """
    Another amount of memory in every process, held while it runs.

    Source:
        T. Mytkowicz et al., Producing wrong data without doing anything obviously wrong, ASPLOS 2009: vary what should
        not matter.
    """
    _held.extend(bytearray(_BLOCK_BYTES) for _ in range(random.SystemRandom().randrange(_MOST_BLOCKS)))


def end_worker_threads() -> None:
    """
    Ends OpenMP's threads, so that a fork is safe; the next parallel region starts new ones.

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
