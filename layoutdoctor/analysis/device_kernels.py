"""
The kernel list of one profiled iteration on a GPU: what ran on the device, and which of it converts a layout.

Faces doctor; no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.analysis.kernel_list import is_backward, summarize
from layoutdoctor.kernel_names import conversion_kernel, library_of
from layoutdoctor.records import Conversion, Kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.analysis.kernel_list import HostOperation
    from layoutdoctor.records import KernelSummary
    from layoutdoctor.traces.kineto import DeviceKernel, ProfiledIteration


def summarize_device(profile: ProfiledIteration, tree: Sequence[HostOperation], lacks: Sequence[str]) -> KernelSummary:
    """
    The kernel list of an iteration on a GPU.

    Args:
        profile: What the profiler recorded.
        tree: From ``operation_tree``, with nodes joined.
        lacks: What could not be recorded.
    """
    by_id = {entry.operation.external_id: entry for entry in tree if entry.operation.external_id is not None}
    kernels: list[Kernel] = []
    conversions: list[Conversion] = []
    origin = min((kernel.start_seconds for kernel in profile.device_kernels), default=0.0)
    for kernel in profile.device_kernels:
        entry = by_id.get(kernel.external_id) if kernel.external_id is not None else None
        kernels.append(_device_kernel(kernel, entry, origin))
        conversion = _device_conversion(kernel, entry, origin, len(conversions))
        if conversion is not None:
            conversions.append(conversion)
    return summarize(kernels, conversions, profile.not_understood_count, ("torch.profiler",), lacks)


def device_seconds(profile: ProfiledIteration) -> dict[int, float]:
    """
    Time of the kernels that each operation launched itself, by its external id.

    Args:
        profile: What the profiler recorded.
    """
    seconds: dict[int, float] = {}
    for kernel in profile.device_kernels:
        if kernel.external_id is not None:
            seconds[kernel.external_id] = seconds.get(kernel.external_id, 0.0) + kernel.seconds
    return seconds


def _device_kernel(kernel: DeviceKernel, entry: HostOperation | None, origin: float) -> Kernel:
    joined = entry.joined() if entry is not None else None
    return Kernel(
        name=kernel.name,
        seconds=kernel.seconds,
        start_seconds=kernel.start_seconds - origin,
        op=entry.name if entry is not None else None,
        library=library_of(kernel.name),
        stream=kernel.stream,
        backward=entry is not None and is_backward(entry),
        node=joined.node.name if joined is not None and joined.node is not None else None,
        graph=joined.graph if joined is not None else None,
    )


def _device_conversion(
    kernel: DeviceKernel, entry: HostOperation | None, origin: float, number: int
) -> Conversion | None:
    known = conversion_kernel(kernel.name)
    if known is None:
        return None
    joined = entry.joined() if entry is not None else None
    node = joined.node if joined is not None else None
    return Conversion(
        id=f"conversion {number}",
        owner="library",
        kernel=kernel.name,
        node=node.name if node is not None else None,
        op=entry.name if entry is not None else None,
        location=node.location if node is not None else None,
        module=node.module if node is not None else None,
        source=None,
        target=None,
        direction=known.direction,
        tensor="unknown",
        seconds=kernel.seconds,
        bytes_moved=None,
        stream=kernel.stream,
        start_seconds=kernel.start_seconds - origin,
        seconds_source="measured",
    )
