"""Makes timed processes comparable: how they take and keep memory, and how their threads wait or end."""

from __future__ import annotations

import contextlib
import ctypes
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from layoutdoctor.workers.processes import BUSY_CORES

# Below the size from which glibc's allocator maps separate memory, so that all blocks are on the heap.
_MOST_BLOCK_BYTES = 100_000
_MOST_BLOCKS = 40
_held: list[bytearray] = []

# mallopt's M_TRIM_THRESHOLD and M_MMAP_MAX, with values at which glibc's allocator keeps all freed memory.
_KEEPS_MEMORY = ((-1, 2**31 - 1), (-4, 0))


def short_waits(environment: Mapping[str, str], busy_cores: Callable[[], float | None]) -> dict[str, str]:
    """
    Returns environment variables for a timed process; empty on a quiet machine, or if the user set how threads wait.

    A thread of GNU's OpenMP that waits for other threads keeps its processor busy for up to 14 ms. If other programs
    run, the threads that it waits for may lose this time: a call of 4 ms then takes 100 ms. So beside other programs,
    waits end after half a millisecond. On a quiet machine they must not: a thread that sleeps is often woken on the
    processor of the thread that wakes it, and as long as both share this processor, the call takes 18 ms.

    Args:
        busy_cores: Measures the number of cores that are busy before anything is timed; None, if it is not known,
            counts as a quiet machine. It takes time, and is not called if the user set how threads wait.

    Source:
        ``GOMP_SPINCOUNT`` of libgomp, which the library reads when it is loaded; measured in benchmarks/README.md.
    """
    if any(name in environment for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")):
        return {}
    return {"GOMP_SPINCOUNT": "10000"} if (busy_cores() or 0.0) > BUSY_CORES else {}


def keep_memory() -> None:
    """Makes this process keep freed memory from now on, if its allocator is glibc's."""
    with contextlib.suppress(AttributeError, OSError):
        allocator = ctypes.CDLL(None)
        for limit, value in _KEEPS_MEMORY:
            allocator.mallopt(limit, value)


def take_some_memory() -> None:
    """
    Takes a random number of blocks of random sizes, and holds them until the process ends.

    So the tensors of a call have other places on the heap in each start, and other distances from the inputs. These
    places change the time of a call.

    Source:
        T. Mytkowicz et al., Producing wrong data without doing anything obviously wrong, ASPLOS 2009: vary factors
        that should not matter.
    """
    draw = random.SystemRandom().randrange
    _held.extend(bytearray(draw(_MOST_BLOCK_BYTES)) for _ in range(draw(_MOST_BLOCKS)))


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
