"""
How long it takes to walk large graphs: conversions, breakers, redundant pairs, costs and rules, by number of nodes.

The graphs are made by hand, in the proportions that Inductor leaves them in, so that no compiler runs. Two shapes:
``branches``, where every few nodes make a region of their own, and ``residual``, where one contiguous value runs
through the whole network and all of it is one region. The capture is measured on real FX graphs, traced and not
compiled. Run from the repository root:

    python benchmarks/graph_scaling.py [--sizes 1000 3000 10000]
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from builders import (
    a_buffer,
    a_conversion,
    a_diagnosis,
    a_graph,
    a_kernel,
    a_location,
    a_node,
    a_placeholder,
    a_read,
    a_trial,
    blocked,
    channels_last,
    contiguous,
)

from layoutdoctor.diagnosis.layout import contiguous_stride, strided_layout
from layoutdoctor.examination.graphs.breakers import with_breaker_costs, without_round_trips
from layoutdoctor.examination.graphs.conversions import with_graph_conversions
from layoutdoctor.examination.graphs.costs import with_costs
from layoutdoctor.examination.graphs.round_trips import redundant_pairs
from layoutdoctor.rules import run_rules

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.graph import Buffer, BufferRead, FxNode, Graph
    from layoutdoctor.diagnosis.layout import Layout

IMAGE, WIDE, KERNEL = (2, 8, 16, 16), (2, 16, 16, 16), (8, 8, 3, 3)
CONVOLUTION = "aten.convolution.default"
LIMIT = 2.0
"""The time of one node may grow by less than this from the smallest graph to the largest."""


class Network:
    """A graph under construction: FX nodes, and the buffers that Inductor makes of them."""

    def __init__(self) -> None:
        self.nodes: list[FxNode] = []
        self.buffers: list[Buffer] = []
        self.launches = 0

    def node(self, target: str, *inputs: str, layout: Layout | None = None, **fields: Any) -> str:
        """Adds a call, and returns its name."""
        name = f"{target.split('.')[1]}_{len(self.nodes)}"
        fields |= {"layout": layout or contiguous(IMAGE), "location": a_location(len(self.nodes) % 200 + 1)}
        self.nodes.append(a_node(name, target, inputs, module="net.0", **fields))
        return name

    def argument(self, kind: str, layout: Layout) -> str:
        """Adds a graph input, and returns its name."""
        name = f"arg_{len(self.nodes)}"
        self.nodes.append(a_placeholder(name, layout, kind))
        return name

    def loop(self, layout: Layout, *reads: BufferRead, **fields: Any) -> str:
        """Adds a buffer that a generated loop writes, and returns its name."""
        self.launches += 1
        name = f"buf{len(self.buffers)}"
        fields |= {"layout": layout, "kernel": f"cpp_fused_{self.launches}", "launch": self.launches}
        self.buffers.append(a_buffer(name, *reads, **fields))
        return name

    def call(self, node: str, *reads: str) -> str:
        """Adds a buffer that a library call writes, and returns its name."""
        name = f"buf{len(self.buffers)}"
        fields = {"kernel": "extern_kernels.convolution", "is_extern": True, "source_node": node, "origins": (node,)}
        self.buffers.append(a_buffer(name, layout=channels_last(IMAGE), launch=None, reads=reads, **fields))
        return name

    def convolution(self, value: str, buffer: str) -> tuple[str, str]:
        """A convolution with its weight converted on each call: (node, buffer)."""
        weight = self.argument("weight", contiguous(KERNEL))
        node = self.node(CONVOLUTION, value, weight)
        converted = self.loop(channels_last(KERNEL), a_read(weight, contiguous(KERNEL)), origins=(node,))
        return node, self.call(node, buffer, converted)

    def graph(self, output: str) -> Graph:
        """The record."""
        return a_graph(
            nodes=tuple(self.nodes),
            buffers=tuple(self.buffers),
            kernel_names=tuple(f"cpp_fused_{n}" for n in range(self.launches)),
            output_names=(output,),
        )


def branches(size: int) -> Graph:
    """Two convolutions, their ReLUs joined contiguous, and converted back for a third one; again and again."""
    net = Network()
    value = buffer = net.argument("activation", channels_last(IMAGE))
    part = strided_layout(IMAGE, contiguous_stride(WIDE))
    while len(net.nodes) < size:
        relus, parts = [], []
        joined = f"buf{len(net.buffers) + 6}"
        for _ in range(2):
            node, result = net.convolution(value, buffer)
            relus.append(net.node("aten.relu.default", node))
            fields = {"alias_of": joined, "operations": ("relu",), "origins": (relus[-1],)}
            parts.append(net.loop(part, a_read(result, channels_last(IMAGE)), **fields))
        cat = net.node("aten.cat.default", *relus, layout=contiguous(WIDE))
        assert joined == f"buf{len(net.buffers)}"
        fields = {"source_node": cat, "reads": tuple(parts)}
        net.buffers.append(a_buffer(joined, layout=contiguous(WIDE), kernel=None, launch=None, **fields))
        back = net.loop(channels_last(WIDE), a_read(joined, contiguous(WIDE)))
        value, buffer = net.convolution(cat, back)
    return net.graph(value)


def residual(size: int) -> Graph:
    """One contiguous value that every block converts for its convolution and adds the result to."""
    net = Network()
    value = net.argument("activation", contiguous(IMAGE))
    buffer = net.loop(contiguous(IMAGE), a_read(value, contiguous(IMAGE)), operations=("relu",))
    while len(net.nodes) < size:
        relu = net.node("aten.relu.default", value)
        given = net.loop(contiguous(IMAGE), a_read(buffer, contiguous(IMAGE)), operations=("relu",), source_node=relu)
        node, result = net.convolution(relu, net.loop(channels_last(IMAGE), a_read(given, contiguous(IMAGE))))
        out = net.loop(contiguous(IMAGE), a_read(result, channels_last(IMAGE)), origins=(node,))
        value = net.node("aten.add.Tensor", value, node)
        reads = a_read(buffer, contiguous(IMAGE)), a_read(out, contiguous(IMAGE))
        buffer = net.loop(contiguous(IMAGE), *reads, operations=("add",), source_node=value)
    return net.graph(value)


def eager_of(graph: Graph) -> tuple[Graph, list[Conversion]]:
    """The same nodes as an eager iteration, with what oneDNN converts around every convolution."""
    plain, block = contiguous(IMAGE), blocked(IMAGE)
    conversions: list[Conversion] = []
    for node in graph.nodes:
        if node.target == CONVOLUTION:
            into = {"port": "input 0", "source": plain, "target": block, "direction": "to_blocked"}
            out = {"port": "output 0", "source": block, "target": plain, "direction": "from_blocked"}
            for change in (into, out):
                place = {"node": node.name, "graph": "eager", "seconds_source": "measured"}
                conversions.append(a_conversion(f"reorder {len(conversions)}", **place, **change))
    return a_graph(name="eager", nodes=graph.nodes), conversions


def timed(function: Callable[[], Any], into: dict[str, float], name: str) -> Any:
    """Runs a function and notes its seconds; without the garbage collector, as in ``timeit``."""
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        result = function()
        into[name] = time.perf_counter() - start
    finally:
        gc.enable()
    return result


def walk(graph: Graph) -> dict[str, float]:
    """Seconds of each walk over one graph, compiled and eager."""
    seconds: dict[str, float] = {}
    (found,) = timed(lambda: with_graph_conversions([graph], 0), seconds, "conversions, breakers")
    launched = [a_kernel(name, 1e-5, library="inductor", graph=graph.name) for name in graph.kernel_names]
    (costed,) = timed(lambda: with_costs([found], launched, 1e10), seconds, "costs")
    pairs = timed(lambda: redundant_pairs([costed], ()), seconds, "pairs")
    known = timed(
        lambda: with_breaker_costs(without_round_trips(costed, pairs), costed.conversions), seconds, "breaker costs"
    )
    eager, conversions = eager_of(graph)
    timed(lambda: redundant_pairs([eager], conversions), seconds, "eager pairs")
    diagnosis = a_diagnosis(a_trial(graphs=(known,), redundant_pairs=pairs, kernels=None, measurement=None))
    timed(lambda: run_rules(diagnosis), seconds, "rules")
    return seconds


def capture(size: int) -> dict[str, float]:
    """Seconds of reading a real FX graph of about that many nodes."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    from layoutdoctor.capture.fx_graph import fx_nodes, not_understood_in

    def chain(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        for _ in range(size // 4):
            x = torch.nn.functional.conv2d(x, weight, padding=1).relu().add(1).sigmoid()
        return x

    with torch.no_grad():
        traced = make_fx(chain, tracing_mode="fake")(torch.zeros(1, 4, 6, 6), torch.zeros(4, 4, 3, 3))
    seconds: dict[str, float] = {}
    timed(lambda: fx_nodes(traced), seconds, "FX nodes")
    timed(lambda: not_understood_in(traced, ()), seconds, "not understood")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 3000, 10000])
    parser.add_argument("--repeats", type=int, default=3, help="the fastest one counts")
    options = parser.parse_args()
    measured: dict[str, dict[int, dict[str, float]]] = {}
    for make in (branches, residual):
        for size in options.sizes:
            graph = make(size)
            runs = [walk(graph) for _ in range(options.repeats)]
            measured.setdefault(make.__name__, {})[size] = {name: min(run[name] for run in runs) for name in runs[0]}
            print(make.__name__, size, measured[make.__name__][size], flush=True)
    for size in (size for size in options.sizes if size <= 3000):
        runs = [capture(size) for _ in range(options.repeats)]
        measured.setdefault("capture", {})[size] = {name: min(run[name] for run in runs) for name in runs[0]}
    rows = []
    for shape, by_size in measured.items():
        sizes = sorted(by_size)
        for name in by_size[sizes[0]]:
            growth = by_size[sizes[-1]][name] / sizes[-1] / (by_size[sizes[0]][name] / sizes[0])
            times = ", ".join(f"{by_size[size][name]:.3f}" for size in sizes)
            rows.append(
                [shape, name, ", ".join(map(str, sizes)), times, growth, "linear" if growth < LIMIT else "grows"]
            )
    print(tabulate(rows, headers=["shape", "walk", "nodes", "seconds", "growth of a node's time", ""], floatfmt=".2f"))


if __name__ == "__main__":
    main()
