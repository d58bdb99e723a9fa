from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import a_graph, a_node, contiguous

from layoutdoctor.diagnosis.graph import Buffer
from layoutdoctor.examination.graphs.join import (
    align_eager,
    join_compiled,
    join_eager,
    scheduled_convolutions,
)
from layoutdoctor.examination.kernels.operations import HostOperation, nested

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.graph import Graph


IMAGE = (2, 8, 6, 6)
WEIGHT = (8, 8, 3, 3)


def tree(
    *operations: tuple[str, float, float], shapes: tuple[tuple[int, ...], ...] = (IMAGE, WEIGHT)
) -> list[HostOperation]:
    return nested(
        HostOperation(name, start, seconds, "1", shapes=shapes if "conv" in name else ())
        for name, start, seconds in operations
    )


def graph_of(*names: str, target: str = "aten.convolution.default", **changes: Any) -> Graph:
    x, w = (
        a_node("x", op="placeholder", layout=contiguous(IMAGE)),
        a_node("w", op="placeholder", layout=contiguous(WEIGHT)),
    )
    nodes = [a_node(name, target, ("x", "w"), layout=contiguous(IMAGE)) for name in names]
    return a_graph(nodes=(x, w, *nodes), **changes)


def joined(tree: list[HostOperation]) -> dict[float, tuple[str | None, str | None]]:
    return {
        entry.start_seconds: (entry.node.name if entry.node else None, entry.graph)
        for entry in tree
        if entry.node is not None
    }


def extern(name: str, node: str, kernel: str = "extern_kernels.convolution") -> Buffer:
    return Buffer(name=name, layout=contiguous(IMAGE), dtype="float32", kernel=kernel, is_extern=True, source_node=node)


def test_the_convolutions_of_an_eager_iteration_are_joined_in_order_if_counts_agree() -> None:
    entries = tree(
        ("aten::convolution", 0, 5),
        ("aten::mkldnn_convolution", 1, 3),
        ("aten::relu", 5, 1),
        ("aten::convolution", 6, 5),
    )

    assert join_eager(entries, graph_of("a", "b")) is None
    assert joined(entries) == {0: ("a", "graph 0"), 6: ("b", "graph 0")}
    entries = tree(("aten::convolution", 0, 5))
    problem = join_eager(entries, graph_of("a", "b"))

    assert problem == (
        "graph 0: 1 convolutions ran and 2 are in the graph, so conversions are not assigned to its nodes"
    )
    assert joined(entries) == {}


CALL = "## Call CompiledFxGraph abc ##"


TRITON = "triton_poi_fused_relu_0"


def test_which_compiled_graph_ran_is_known_by_its_kernels_its_place_and_its_direction() -> None:
    entries = tree((CALL, 0, 10), ("layoutdoctor::graph 1::cpp_fused_0", 1, 2), ("aten::convolution", 4, 5))
    graphs = [graph_of("a"), graph_of("b", name="graph 1")]

    assert join_compiled(entries, graphs) is None
    assert joined(entries) == {4: ("b", "graph 1")}

    entries = tree((CALL, 0, 10), ("aten::convolution", 4, 5))

    assert join_compiled(entries, [graph_of("a", "b")]) == (
        "graph 0: 1 convolutions ran and 2 are in the graph, so conversions are not assigned to its nodes"
    )
    assert joined(entries) == {}

    graph = graph_of("a", "b", buffers=(extern("buf0", "b"), extern("buf1", "a")))
    entries = tree(
        (CALL, 0, 20), ("layoutdoctor::graph 0::k", 1, 1), ("aten::convolution", 4, 5), ("aten::convolution", 10, 5)
    )

    assert [node.name for node in scheduled_convolutions(graph)] == ["b", "a"]
    assert join_compiled(entries, [graph]) is None
    assert joined(entries) == {4: ("b", "graph 0"), 10: ("a", "graph 0")}

    # One that writes in place has several buffers, and what it writes into stands before its input.
    call, other = "mkldnn._convolution_pointwise_.binary", (2, 8, 4, 4)
    graph = graph_of("a", target=call, buffers=tuple(extern(f"buf{n}", "a", f"torch.ops.{call}") for n in range(3)))
    entries = tree((CALL, 0, 10), ("mkldnn::_convolution_pointwise_", 4, 5), shapes=(other, IMAGE, WEIGHT))

    assert join_compiled(entries, [graph]) is None
    assert joined(entries) == {4: ("a", "graph 0")}

    # One that adds another tensor has it between its input and its weight; the pattern's node has it at the end.
    call = "mkldnn._convolution_pointwise.binary"
    graph = graph_of("a", target=call, buffers=(extern("buf0", "a", f"torch.ops.{call}"),))
    for shapes, is_this_one in (((IMAGE, other, WEIGHT), True), ((IMAGE, other, other), False)):
        entries = tree((CALL, 0, 10), ("mkldnn::_convolution_pointwise", 4, 5), shapes=shapes)

        assert (join_compiled(entries, [graph]) is None) == is_this_one
        assert joined(entries) == ({4: ("a", "graph 0")} if is_this_one else {})

    entries = tree((CALL, 0, 10), (TRITON, 1, 2), ("aten::convolution", 4, 5), (CALL, 20, 10), (TRITON, 21, 2)) + tree(
        ("aten::convolution", 40, 5)
    )
    graphs = [
        graph_of("a", kernel_names=("triton_poi_fused_tanh_0",)),
        graph_of("b", name="graph 1", kernel_names=(TRITON, "triton_red_fused_sum_1")),
        graph_of(name="graph 2", kernel_names=(TRITON,)),
    ]

    assert join_compiled(entries, graphs) is None
    assert joined(entries) == {4: ("b", "graph 1")}
    assert [entry.home() for entry in entries] == ["graph 1"] * 3 + ["graph 2"] * 2 + [None]

    backward = "autograd::engine::evaluate_function: CompiledFunctionBackward"
    calls = ((CALL, 0, 10), (TRITON, 1, 2), (backward, 20, 20), (CALL, 21, 10), (TRITON, 22, 2))
    names = (TRITON,)
    forward, back = graph_of(kernel_names=names), graph_of(name="graph 1", kernel_names=names, direction="backward")
    other = graph_of("never", name="graph 2")

    entries = tree(*calls)
    assert join_compiled(entries, [forward, back, other]) is None
    assert [entry.home() for entry in entries] == ["graph 0", "graph 0", None, "graph 1", "graph 1"]
    entries = tree(*calls)
    assert join_compiled(entries, [forward, forward, other]) == "a compiled graph ran that was not captured"
    assert {entry.home() for entry in entries} == {None}


def test_other_library_calls_of_a_compiled_graph_are_joined_by_name_and_order_where_counts_agree() -> None:
    nodes = (a_node("add", "aten.scatter_add.default"), a_node("mm", "aten.mm.default"), a_node("mm_1"))
    buffers = (
        extern("buf0", "add", "aten.scatter_reduce_.two"),
        extern("buf1", "mm", "extern_kernels.mm"),
        extern("buf2", "mm", "MultiOutput"),
        extern("buf3", "mm_1", "extern_kernels.mm"),
    )
    graph = a_graph(nodes=nodes, buffers=buffers)
    call = ("## Call CompiledFxGraph", 0, 10)
    first, inside = ("aten::scatter_reduce_", 1, 1), ("aten::to", 1, 0.5)
    products = [("aten::mm", 3, 1), ("aten::mm", 5, 1)]

    ran, fewer = tree(call, first, inside, *products), tree(call, first, inside, products[0])

    assert (join_compiled(ran, (graph,)), join_compiled(fewer, (graph,))) == (None, None)
    assert joined(ran) == {1: ("add", "graph 0"), 3: ("mm", "graph 0"), 5: ("mm_1", "graph 0")}
    assert joined(fewer) == {1: ("add", "graph 0")}


def test_operations_that_launch_nothing_do_not_shift_those_that_do() -> None:
    """Autograd detaches at other places than the recorded graph: eager training of two batch norms on an H200."""
    recorded = "relu relu detach threshold_backward norm_backward detach detach threshold_backward norm_backward detach"
    ran = "relu detach relu threshold_backward norm_backward threshold_backward detach detach norm_backward detach"
    nodes = [a_node(f"n{place}", f"aten.{name}.default") for place, name in enumerate(recorded.split())]
    entries = tree(*((f"aten::{name}", place, 1) for place, name in enumerate(ran.split())))

    align_eager(entries, a_graph(nodes=nodes))

    assert joined([entry for entry in entries if "detach" not in entry.name]) == {
        place: (node, "graph 0") for place, node in {0: "n0", 2: "n1", 3: "n3", 4: "n4", 5: "n7", 8: "n8"}.items()
    }
    assert joined(entries)[9] == ("n9", "graph 0")


def test_a_weight_that_is_computed_in_the_call_is_none_and_one_that_is_only_scaled_is() -> None:
    given = [a_node(name, op="placeholder", layout=contiguous(WEIGHT)) for name in ("w", "other")]
    given += [a_node(name, op="placeholder", layout=contiguous((1, 8, 1, 1))) for name in ("s", "x")]
    whole, part = contiguous((4, *WEIGHT)), contiguous(WEIGHT)
    for target, inputs, layout, is_computed in (
        ("aten.clone.default", ("w",), part, False),
        ("aten.mul.Tensor", ("w", "s"), part, False),  # dequantised or scaled
        ("aten.mul.Tensor", ("w", "s"), whole, True),  # another weight for each sample
        ("mkldnn._reorder_convolution_weight.default", ("w",), part, False),
        ("aten.cat.default", ("w", "other"), whole, True),
    ):
        nodes = (*given, a_node("made", target, inputs, layout=layout))
        convolution = a_node("convolution", "aten.convolution.default", ("x", "made"), layout=contiguous(IMAGE))
        entries = tree(("aten::convolution", 0, 5), shapes=())
        assert join_eager(entries, a_graph(nodes=(*nodes, convolution))) is None
        assert [entry.has_computed_weight for entry in entries] == [is_computed]
