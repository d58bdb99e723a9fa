"""
The GPUs that graphs can be lowered for without their being there, as data: what Inductor asks a device about.

Faces doctor, the command line and ``capture.retarget``; imports errors only, so that a name is checked without torch.

Source: NVIDIA, CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", for what follows from
the compute capability; data sheets of the named cards for multiprocessors, memory and L2 cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from layoutdoctor.errors import UsageError

_KIB, _MIB, _GIB = 2**10, 2**20, 2**30


@dataclass(frozen=True, slots=True)
class Target:
    """
    One GPU as a compiler sees it.

    Attributes:
        name: What the user writes: ``cuda:`` and the compute capability without its dot.
        capability: Compute capability, major and minor.
        device_name: The card these facts are of.
        multiprocessor_count: Streaming multiprocessors.
        threads_per_multiprocessor: Most resident threads of one multiprocessor.
        shared_bytes_per_block: Most shared memory one block may ask for.
        shared_bytes_per_multiprocessor: Shared memory of one multiprocessor.
        l2_bytes: L2 cache.
        memory_bytes: Device memory.
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


TARGETS = (
    Target("cuda:80", (8, 0), "NVIDIA A100-SXM4-80GB", 108, 2048, 163 * _KIB, 164 * _KIB, 40 * _MIB, 80 * _GIB),
    Target("cuda:89", (8, 9), "NVIDIA L40S", 142, 1536, 99 * _KIB, 100 * _KIB, 96 * _MIB, 48 * _GIB),
    Target("cuda:90", (9, 0), "NVIDIA H100 80GB HBM3", 132, 2048, 227 * _KIB, 228 * _KIB, 50 * _MIB, 80 * _GIB),
    Target("cuda:100", (10, 0), "NVIDIA B200", 148, 2048, 227 * _KIB, 228 * _KIB, 126 * _MIB, 180 * _GIB),
)
"""One card for each compute capability; layout decisions depend on the capability, not on the card."""


def find_target(name: object) -> Target:
    """
    The target of that name.

    Args:
        name: Such as ``cuda:90``.

    Raises:
        UsageError: There is none.
    """
    for target in TARGETS:
        if target.name == name:
            return target
    raise UsageError(
        f"cannot lower for target {name!r}: expected one of {', '.join(target.name for target in TARGETS)} "
        "(cuda and the compute capability); leave the target out to measure on this machine"
    )
