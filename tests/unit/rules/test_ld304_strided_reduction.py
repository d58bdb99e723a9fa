from __future__ import annotations

from typing import Any

from builders import Told, a_conversion, a_graph, a_kernel, a_location, a_node, a_trial, contiguous, finder, kernels

from layoutdoctor.diagnosis.records import Buffer, BufferRead, Graph, Trial
from layoutdoctor.rules.slower import LD304

findings = finder(LD304.check)

LAST = "inductor-channels-last"
NORM = a_node(
    "var_mean", "aten.var_mean.correction", ("x",), module="norm1", location=a_location(11), called="group_norm"
)
IMAGE = a_node("x", "x", op="placeholder")


def a_reduction(kernel: str = "cpp_fused_var_mean_0", run: int | None = 3136, **changes: Any) -> Buffer:
    fields: dict[str, Any] = {
        "name": "buf0",
        "layout": contiguous((4, 8, 1, 1)),
        "dtype": "float32",
        "kernel": kernel,
        "origins": ("var_mean",),
        "reads": ("x",),
        "is_reduction": True,
        "accesses": (BufferRead(name="x", stride=None, reduction_run=run),),
    }
    return Buffer(**{**fields, **changes})


def a_graph_of(*buffers: Buffer, nodes: tuple[Any, ...] = (IMAGE, NORM), **changes: Any) -> Graph:
    return a_graph(nodes=nodes, buffers=buffers, **changes)


def ran(
    name: str,
    seconds: float,
    *graphs: Graph,
    kernel: str = "cpp_fused_var_mean_0",
    run: int | None = None,
    **changes: Any,
) -> Trial:
    """In channels_last the eight channels of a group lie together, in contiguous_format all its pixels do."""
    listed = (a_kernel(kernel, seconds, library="inductor", **changes),)
    own = a_reduction(kernel, run or (8 if name == LAST else 3136))
    return a_trial(name, graphs=graphs or (a_graph_of(own),), kernels=kernels(kernels=listed))


def test_what_it_says(told: Told) -> None:
    told(
        "A reduction that is slower for the same elements is a note",
        findings(ran("inductor", 0.002), ran(LAST, 0.006, kernel="cpp_fused_native_group_norm_1")),
    )


def test_which_facts_it_gives() -> None:
    # The contiguous format may be the slower.
    assert [f.configuration for f in findings(ran("inductor", 6e-3, run=8), ran(LAST, 2e-3, run=64))] == ["inductor"]

    # Two reductions of one name are told apart by their graph or not at all.
    graphs = (a_graph_of(a_reduction(run=8)), a_graph_of(a_reduction(run=8), name="graph 1", direction="backward"))
    assert findings(ran("inductor", 2e-3), ran(LAST, 6e-3, *graphs)) == []
    assert len(findings(ran("inductor", 2e-3), ran(LAST, 6e-3, *graphs, graph="graph 0"))) == 1


def test_what_is_no_finding() -> None:
    # A kernel that converts a layout besides is left out.
    inside = a_conversion("buf1", owner="compiler", kernel="cpp_fused_var_mean_0", fused=True)
    assert findings(ran("inductor", 2e-3, a_graph_of(a_reduction(), conversions=(inside,))), ran(LAST, 6e-3)) == []

    # Other elements another module or another direction is not compared.
    larger = a_node("x", "x", op="placeholder", layout=contiguous((8, 64, 56, 56)))
    elsewhere = a_node("var_mean", "aten.var_mean.correction", ("x",), module="norm2")
    for graph in (
        a_graph_of(a_reduction(run=8), nodes=(larger, NORM)),
        a_graph_of(a_reduction(run=8), nodes=(IMAGE, elsewhere)),
        a_graph_of(a_reduction(run=8), direction="backward"),
    ):
        assert findings(ran("inductor", 2e-3), ran(LAST, 6e-3, graph)) == []

    # Two reductions that look the same are not compared.
    twice = a_graph_of(a_reduction(), a_reduction("cpp_fused_var_mean_1", name="buf1"))
    listed = kernels(kernels=tuple(a_kernel(f"cpp_fused_var_mean_{i}", 6e-3, library="inductor") for i in range(2)))
    assert findings(ran("inductor", 2e-3), a_trial(LAST, graphs=(twice,), kernels=listed)) == []

    # Eager and trials without kernels are not compared.
    assert findings(ran("eager", 2e-3), ran("eager-channels-last", 6e-3)) == []
    assert findings(ran("inductor", 2e-3), a_trial(LAST, kernels=None)) == []
    assert findings(ran("inductor", 2e-3), a_trial(LAST, graphs=(a_graph_of(a_reduction()),))) == []

    # A slow reduction that reads no more strided than the other is no finding.
    for run in (3136, 4000):
        assert findings(ran("inductor", 2e-3), ran(LAST, 6e-3, run=run)) == []

    # A small difference or a small kernel is no finding.
    for slow, fast in ((2.9e-3, 2e-3), (1.4e-3, 0.5e-3), (6e-3, 0.0)):
        assert findings(ran("inductor", fast), ran(LAST, slow)) == []

    # No reduction or one of something else is not compared.
    for changes in (
        {"is_reduction": False},
        {"origins": ()},
        {"origins": ("unknown",)},
        {"reads": ("x", "y")},
        {"reads": ()},
        {"kernel": None},
    ):
        other = a_graph_of(a_reduction(**{"run": 8, **changes}))
        assert findings(ran("inductor", 2e-3), ran(LAST, 6e-3, other)) == []
