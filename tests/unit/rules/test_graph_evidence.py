from __future__ import annotations

import pytest
from builders import a_graph, a_node, a_placeholder, channels_last, contiguous

from layoutdoctor.layout import strided_layout
from layoutdoctor.rules import graph_evidence


@pytest.mark.parametrize(
    ("target", "is_one"),
    [
        ("aten.convolution.default", True),
        ("aten.mkldnn_convolution.default", True),
        ("mkldnn._convolution_pointwise.default", True),
        ("aten._slow_conv2d_forward.default", True),
        ("aten.slow_conv_dilated2d.default", True),
        ("aten.convolution_backward.default", False),
        ("prims.convert_element_type.default", False),
        ("aten.relu.default", False),
    ],
)
def test_a_convolution_is_one_whatever_library_runs_it(target: str, *, is_one: bool) -> None:
    assert graph_evidence.is_convolution(a_node("n", target)) is is_one


def test_a_placeholder_is_no_convolution_and_a_node_not_recorded_goes_by_its_name() -> None:
    nodes = {"conv": a_placeholder("conv")}

    assert not graph_evidence.is_convolution_named("conv", nodes)
    assert graph_evidence.is_convolution_named("convolution_3", nodes)
    assert not graph_evidence.is_convolution_named("view", nodes)


def test_what_satisfies_both_formats_is_neither_only() -> None:
    both = contiguous((4, 1, 8, 8))

    assert graph_evidence.channels_last_only(channels_last()) == "channels_last"
    assert [graph_evidence.channels_last_only(layout) for layout in (both, contiguous(), None)] == [None] * 3
    assert graph_evidence.channels_last_only(strided_layout((4, 8, 6, 6), (288, 6, 48, 1))) is None
    assert graph_evidence.is_contiguous_only(contiguous())
    assert not any(graph_evidence.is_contiguous_only(layout) for layout in (both, channels_last(), contiguous((4, 8))))
    assert graph_evidence.is_ambiguous(both)
    assert not any(graph_evidence.is_ambiguous(layout) for layout in (contiguous(), contiguous((0, 1, 8, 8)), None))


def test_parameters_are_those_of_the_forward_graphs() -> None:
    nodes = (a_placeholder("w", contiguous((8, 8, 3, 3)), "weight"), a_placeholder("b", contiguous((8,)), "weight"))
    graphs = (a_graph(name="f", nodes=nodes), a_graph(name="b", direction="backward", nodes=nodes))

    assert list(graph_evidence.weight_layouts(graphs)) == ["f w"]


def test_a_graph_is_recorded_where_nothing_is_missing() -> None:
    nodes = (a_node("relu"),)

    assert graph_evidence.is_recorded(a_graph(nodes=nodes))
    assert not graph_evidence.is_recorded(a_graph())
    assert not graph_evidence.is_recorded(a_graph(nodes=nodes, hook_failure="boom"))
    assert not graph_evidence.is_recorded(a_graph(nodes=nodes, not_understood=("a symbolic size",)))
