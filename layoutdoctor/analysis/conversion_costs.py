"""
What each conversion costs: measured where the kernel list has it, else its bytes over the device's copy bandwidth.

A generated kernel is found in the kernel list by its graph, its name and its order among launches of that name. One
that only moves is divided among its buffers by their bytes; in one that computes as well a buffer that is only moved is
estimated, and a conversion that rides along with a computed value is given no time of its own. Faces doctor; no torch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.analysis.buffers import BufferGraph
from layoutdoctor.analysis.graph_conversions import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.records import Buffer, Conversion, Graph, Kernel, KernelSummary


def with_costs(graph: Graph, kernels: Sequence[Kernel], bandwidth: float | None) -> Graph:
    """
    A compiled graph whose conversions know what they cost.

    Args:
        graph: With buffers and conversions.
        kernels: The kernel list of the profiled iteration; empty where there is none.
        bandwidth: The device's copy bandwidth, bytes read plus bytes written per second; None where not measured.
    """
    launches = _launches(graph)
    seconds = _launch_seconds(graph, launches, kernels)
    flow = BufferGraph(graph)
    conversions = [_with_cost(flow, conversion, launches, seconds, bandwidth) for conversion in graph.conversions]
    return msgspec.structs.replace(graph, conversions=tuple(conversions))


def with_costs_of_all(graphs: Sequence[Graph], kernels: Sequence[Kernel], bandwidth: float | None) -> tuple[Graph, ...]:
    """
    The compiled graphs of a trial, whose conversions know what they cost.

    A launch whose graph is not known counts where one graph alone has a kernel of its name.

    Args:
        graphs: All of them.
        kernels: The kernel list of the profiled iteration.
        bandwidth: As above.
    """
    owners = Counter(name for graph in graphs for name in set(graph.kernel_names))
    told = [kernel for kernel in kernels if kernel.graph is not None or owners[kernel.name] <= 1]
    return tuple(with_costs(graph, told, bandwidth) for graph in graphs)


def with_bandwidth_shares(summary: KernelSummary, bandwidth: float | None) -> KernelSummary:
    """
    The kernel list whose conversions know how much of the copy bandwidth they reach.

    Args:
        summary: The kernel list.
        bandwidth: As above.
    """
    conversions = tuple(with_bandwidth_share(conversion, bandwidth) for conversion in summary.conversions)
    return msgspec.structs.replace(summary, conversions=conversions)


def with_bandwidth_share(conversion: Conversion, bandwidth: float | None) -> Conversion:
    """
    A conversion that knows how much of the copy bandwidth it reaches, where its time was measured.

    Args:
        conversion: Any.
        bandwidth: As above.
    """
    if not bandwidth or not conversion.seconds or conversion.bytes_moved is None:
        return conversion
    if conversion.seconds_source != "measured":
        return conversion
    share = conversion.bytes_moved / conversion.seconds / bandwidth
    return msgspec.structs.replace(conversion, bandwidth_share=share)


def _launches(graph: Graph) -> dict[int, list[Buffer]]:
    launches: dict[int, list[Buffer]] = defaultdict(list)
    for buffer in graph.buffers:
        if buffer.launch is not None and not buffer.is_removed:
            launches[buffer.launch].append(buffer)
    return launches


def _launch_seconds(graph: Graph, launches: dict[int, list[Buffer]], kernels: Sequence[Kernel]) -> dict[int, float]:
    """Seconds of each launch, the mean over the times that the graph ran; none where counts do not fit."""
    ran: dict[str, list[float]] = defaultdict(list)
    for kernel in kernels:
        if kernel.library == "inductor" and kernel.graph in (graph.name, None):
            ran[kernel.name].append(kernel.seconds)
    order: dict[str, list[int]] = defaultdict(list)
    for launch, buffers in sorted(launches.items()):
        order[str(buffers[0].kernel)].append(launch)
    found: dict[int, float] = {}
    for name, numbers in order.items():
        times = ran.get(name, [])
        if not times or len(times) % len(numbers):
            continue
        runs = len(times) // len(numbers)
        for position, launch in enumerate(numbers):
            found[launch] = sum(times[position :: len(numbers)]) / runs
    return found


def _with_cost(
    flow: BufferGraph,
    conversion: Conversion,
    launches: dict[int, list[Buffer]],
    seconds: dict[int, float],
    bandwidth: float | None,
) -> Conversion:
    buffer = flow.buffers.get(str(conversion.value))
    if buffer is None:
        return conversion
    measured = seconds.get(buffer.launch) if buffer.launch is not None else None
    if measured is not None and not flow.is_fused(buffer) and buffer.launch is not None:
        share = _share(buffer, launches[buffer.launch])
        if share is not None:
            cost = msgspec.structs.replace(conversion, seconds=measured * share, seconds_source="measured")
            return with_bandwidth_share(cost, bandwidth)
    if bandwidth and conversion.bytes_moved is not None and flow.only_moves(buffer):
        estimate = conversion.bytes_moved / bandwidth
        return msgspec.structs.replace(conversion, seconds=estimate, seconds_source="estimated")
    return conversion


def _share(buffer: Buffer, together: Sequence[Buffer]) -> float | None:
    sizes = [tensor_bytes(other.layout, other.dtype) for other in together]
    own = tensor_bytes(buffer.layout, buffer.dtype)
    known = [size for size in sizes if size is not None]
    return None if own is None or len(known) < len(sizes) or not sum(known) else own / sum(known)
