"""
What copying reaches on a device: the limit that conversions are held against.

Faces doctor.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

COPY_BYTES = {"cpu": 64 * 1024**2, "cuda": 256 * 1024**2}
"""Size of the copied tensor: larger than the last cache of the usual machine of that kind."""

REPETITIONS = 5


def measure_copy_bandwidth(device: str) -> float | None:
    """
    Bytes read plus bytes written per second by a copy of a large tensor: the best of a few.

    Args:
        device: ``cpu`` or ``cuda``.

    Returns:
        None on a device that is not known, or where there is no room for the tensors.
    """
    size = COPY_BYTES.get(device)
    if size is None:
        return None
    try:
        source = torch.ones(size // 4, dtype=torch.float32, device=device)
        target = torch.empty_like(source)
    except RuntimeError:  # out of memory
        return None
    timer = _cuda_seconds if device == "cuda" else _cpu_seconds
    target.copy_(source)
    best = min(timer(lambda: target.copy_(source)) for _ in range(REPETITIONS))
    return 2 * size / best if best > 0 else None


def _cpu_seconds(copy: Callable[[], object]) -> float:
    start = time.perf_counter()
    copy()
    return time.perf_counter() - start


def _cuda_seconds(copy: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    copy()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3
