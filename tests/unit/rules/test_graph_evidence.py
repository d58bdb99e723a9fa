from __future__ import annotations

from builders import a_graph, a_node, a_placeholder, channels_last, contiguous

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.rules import graph_evidence


def test_which_facts_it_gives() -> None:
    # A placeholder is no convolution and a node not recorded goes by its name.
    nodes = {"conv": a_placeholder("conv")}
    assert not graph_evidence.is_convolution_named("conv", nodes)
    assert graph_evidence.is_convolution_named("convolution_3", nodes)
    assert not graph_evidence.is_convolution_named("view", nodes)

    # What satisfies both formats is neither only.
    both = contiguous((4, 1, 8, 8))
    assert graph_evidence.channels_last_only(channels_last()) == "channels_last"
    assert [graph_evidence.channels_last_only(layout) for layout in (both, contiguous(), None)] == [None] * 3
    assert graph_evidence.channels_last_only(strided_layout((4, 8, 6, 6), (288, 6, 48, 1))) is None
    assert graph_evidence.is_contiguous_only(contiguous())
    assert not any(graph_evidence.is_contiguous_only(layout) for layout in (both, channels_last(), contiguous((4, 8))))
    assert graph_evidence.is_ambiguous(both)
    assert not any(graph_evidence.is_ambiguous(layout) for layout in (contiguous(), contiguous((0, 1, 8, 8)), None))

    # Parameters are those of the forward graphs.
    nodes = (a_placeholder("w", contiguous((8, 8, 3, 3)), "weight"), a_placeholder("b", contiguous((8,)), "weight"))
    graphs = (a_graph(name="f", nodes=nodes), a_graph(name="b", direction="backward", nodes=nodes))
    assert list(graph_evidence.weight_layouts(graphs)) == ["f w"]

    # A graph is recorded where nothing is missing.
    nodes = (a_node("relu"),)
    assert graph_evidence.is_recorded(a_graph(nodes=nodes))
    assert not graph_evidence.is_recorded(a_graph())
    assert not graph_evidence.is_recorded(a_graph(nodes=nodes, hook_failure="boom"))
    assert not graph_evidence.is_recorded(a_graph(nodes=nodes, not_understood=("a symbolic size",)))

    # A convolution is one whatever library runs it.
    for target, is_one in (
        ("aten.convolution.default", True),
        ("aten.mkldnn_convolution.default", True),
        ("mkldnn._convolution_pointwise.default", True),
        ("aten._slow_conv2d_forward.default", True),
        ("aten.slow_conv_dilated2d.default", True),
        ("aten.convolution_backward.default", False),
        ("prims.convert_element_type.default", False),
        ("aten.relu.default", False),
    ):
        assert graph_evidence.is_convolution(a_node("n", target)) is is_one
