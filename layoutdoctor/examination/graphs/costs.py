"""The times and bandwidth shares of the conversions in compiled graphs, from the kernels that ran them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from layoutdoctor.diagnosis import Buffer, Conversion, Graph, Kernel
from layoutdoctor.examination.graphs.buffers import computes
from layoutdoctor.examination.graphs.conversions import tensor_bytes
from layoutdoctor.units import sum_if_all_known


def with_costs(graphs: Sequence[Graph], kernels: Sequence[Kernel], bandwidth: float | None) -> tuple[Graph, ...]:
    """
    Adds the costs of conversions to the compiled graphs of a trial.

    Args:
        bandwidth: The device's copy bandwidth, bytes read plus bytes written per second; None if not measured.
    """
    found = []
    for graph, launches, numbers in launches_that_ran(graphs, kernels):
        ran: dict[int, list[float | None]] = defaultdict(list)
        for position, launch in numbers.items():
            ran[launch].append(kernels[position].seconds)
        sums = {launch: sum_if_all_known(*times) for launch, times in ran.items()}
        # A graph may have run several times: the mean over its runs counts.
        seconds = {launch: total / len(ran[launch]) for launch, total in sums.items() if total is not None}
        computing = {buffer.kernel for buffer in graph.buffers if computes(buffer) and buffer.reads}  # no constants
        measured: dict[str, float] = {}
        for launch, buffers in launches.items():
            sizes = {buffer.name: tensor_bytes(buffer.layout, buffer.dtype) for buffer in buffers}
            whole = sum_if_all_known(*sizes.values())
            if whole and launch in seconds and buffers[0].kernel not in computing:
                measured |= {name: seconds[launch] * ((size or 0) / whole) for name, size in sizes.items()}
        conversions = (_with_cost(one, measured.get(str(one.value)), bandwidth) for one in graph.conversions)
        found.append(msgspec.structs.replace(graph, conversions=with_bandwidth_shares(conversions, bandwidth)))
    return tuple(found)


def _with_cost(conversion: Conversion, seconds: float | None, bandwidth: float | None) -> Conversion:
    """Adds the measured time to a conversion. Without it, an unfused conversion gets an estimate from its bytes."""
    if seconds is not None:
        return msgspec.structs.replace(conversion, seconds=seconds, seconds_source="measured")
    if not bandwidth or conversion.bytes_moved is None or conversion.fused:
        return conversion
    return msgspec.structs.replace(conversion, seconds=conversion.bytes_moved / bandwidth, seconds_source="estimated")


def with_bandwidth_shares(conversions: Iterable[Conversion], bandwidth: float | None) -> tuple[Conversion, ...]:
    """Adds to each conversion with a measured time the share of the copy bandwidth that it reaches."""
    return tuple(
        msgspec.structs.replace(conversion, bandwidth_share=conversion.bytes_moved / conversion.seconds / bandwidth)
        if bandwidth
        and conversion.seconds
        and conversion.seconds_source == "measured"
        and conversion.bytes_moved is not None
        else conversion
        for conversion in conversions
    )


def launches_that_ran(
    graphs: Sequence[Graph], kernels: Sequence[Kernel]
) -> Iterator[tuple[Graph, dict[int, list[Buffer]], dict[int, int]]]:
    """
    Matches the generated kernels of a kernel list with the launches of the graphs.

    A kernel whose graph is not known is matched if only one graph has a kernel of the same name.

    Yields:
        A graph; a dict from launch number to the buffers that the launch writes; a dict from position in the kernel
        list to launch number. Kernels of one name are left out of this dict if their count is no multiple of the
        graph's launches with this name.
    """
    owners = Counter(name for graph in graphs for name in set(graph.kernel_names))
    for graph in graphs:
        launches: dict[int, list[Buffer]] = defaultdict(list)
        for buffer in graph.buffers:
            if buffer.launch is not None and not buffer.is_removed:
                launches[buffer.launch].append(buffer)
        order: dict[str, list[int]] = defaultdict(list)
        for launch, buffers in sorted(launches.items()):
            order[str(buffers[0].kernel)].append(launch)
        ran: dict[str, list[int]] = defaultdict(list)
        for position, kernel in enumerate(kernels):
            is_own = kernel.graph == graph.name or (kernel.graph is None and owners[kernel.name] < 2)
            if kernel.library == "inductor" and is_own:
                ran[kernel.name].append(position)
        yield (
            graph,
            launches,
            {
                position: numbers[turn % len(numbers)]
                for name, numbers in order.items()
                if len(ran[name]) % len(numbers) == 0  # the graph may have run several times
                for turn, position in enumerate(ran[name])
            },
        )
