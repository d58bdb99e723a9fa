"""GPUs for which graphs can be lowered on a machine without such a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from layoutdoctor.errors import UsageError


@dataclass(frozen=True, slots=True)
class Gpu:
    """
    One GPU as a compiler sees it.

    Attributes:
        name: ``cuda:`` and the compute capability without its dot.
        threads_per_multiprocessor: Largest number of threads that are resident at once.
        shared_bytes_per_block: Largest shared memory that one block may request.
    """

    name: str
    capability: tuple[int, int]
    device_name: str
    multiprocessor_count: int
    threads_per_multiprocessor: int
    shared_bytes_per_block: int
    shared_bytes_per_multiprocessor: int
    l2_bytes: int
    memory_bytes: int


_KIB, _MIB, _GIB = 2**10, 2**20, 2**30

GPUS = (
    Gpu("cuda:75", (7, 5), "Tesla T4", 40, 1024, 64 * _KIB, 64 * _KIB, 4 * _MIB, 16 * _GIB),
    Gpu("cuda:80", (8, 0), "NVIDIA A100-SXM4-80GB", 108, 2048, 163 * _KIB, 164 * _KIB, 40 * _MIB, 80 * _GIB),
    Gpu("cuda:86", (8, 6), "NVIDIA GeForce RTX 3090", 82, 1536, 99 * _KIB, 100 * _KIB, 6 * _MIB, 24 * _GIB),
    Gpu("cuda:87", (8, 7), "Orin", 16, 1536, 163 * _KIB, 164 * _KIB, 4 * _MIB, 64 * _GIB),
    Gpu("cuda:89", (8, 9), "NVIDIA L40S", 142, 1536, 99 * _KIB, 100 * _KIB, 96 * _MIB, 48 * _GIB),
    Gpu("cuda:90", (9, 0), "NVIDIA H100 80GB HBM3", 132, 2048, 227 * _KIB, 228 * _KIB, 50 * _MIB, 80 * _GIB),
    Gpu("cuda:100", (10, 0), "NVIDIA B200", 148, 2048, 227 * _KIB, 228 * _KIB, 126 * _MIB, 180 * _GIB),
    Gpu("cuda:103", (10, 3), "NVIDIA B300 SXM6", 148, 2048, 227 * _KIB, 228 * _KIB, 126 * _MIB, 288 * _GIB),
    Gpu("cuda:120", (12, 0), "NVIDIA GeForce RTX 5090", 170, 1536, 99 * _KIB, 100 * _KIB, 96 * _MIB, 32 * _GIB),
    Gpu("cuda:121", (12, 1), "NVIDIA GB10", 48, 1536, 99 * _KIB, 100 * _KIB, 24 * _MIB, 128 * _GIB),
)
"""One card for each compute capability; layout decisions depend on the capability, not on the card."""


def find_gpu(name: object) -> Gpu:
    """
    Returns the GPU with the given name.

    Raises:
        UsageError: There is no such GPU.
    """
    for gpu in GPUS:
        if gpu.name == name:
            return gpu
    raise UsageError(
        f"cannot lower for {name!r}: expected one of {', '.join(gpu.name for gpu in GPUS)} "
        "(cuda and the compute capability; GPUs of AMD and Intel are not supported); leave the option out to "
        "measure on this machine"
    )
