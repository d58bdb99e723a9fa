"""A conversion on a GPU names a value of the graph only where that value has the sizes that ran."""

from __future__ import annotations

import pytest
from builders import a_graph, a_node, a_placeholder, contiguous
from recorded_builders import FORWARD, TO_NHWC, Recorder

from layoutdoctor.examination.graphs.join import align_eager, join_eager
from layoutdoctor.examination.kernels.attribution import attribute
from layoutdoctor.examination.kernels.device import summarize_device
from layoutdoctor.examination.kernels.operations import operation_tree
from layoutdoctor.examination.kernels.shapes import cudnn_grid

IMAGE, WEIGHT = (4, 8, 32, 32), (48, 8, 3, 3)
NODES = (
    a_placeholder("x", contiguous(IMAGE)),
    a_placeholder("w", contiguous(WEIGHT), "weight"),
    a_node("conv", "aten.convolution.default", ("x", "w"), layout=contiguous((4, 48, 32, 32))),
)


@pytest.mark.parametrize(
    ("image", "value", "why"),
    [
        (IMAGE, "x", None),
        # The order of the operations still gives it a node, but what it was given is not that node's.
        ((4, 8, 16, 16), None, "eager: the convolutions that ran are not in the order of the graph"),
    ],
)
def test_what_a_convolution_was_given_is_a_value_of_the_graph(
    image: tuple[int, ...], value: str | None, why: str | None
) -> None:
    record, ones = Recorder(), str([1, 1])
    tensors = {"shapes": [image, WEIGHT], "strides": [contiguous(shape).stride for shape in (image, WEIGHT)]}
    values = ["", "", "", ones, ones, ones, "False", str([0, 0]), "1"]
    with record.operation("aten::convolution", values=values, **tensors):
        record.kernel(TO_NHWC, grid=cudnn_grid(image))
        record.kernel(FORWARD)
    trace, graph = record.trace(), a_graph(name="eager", nodes=NODES)
    tree = operation_tree(trace)

    assert join_eager(tree, graph) == why
    found = summarize_device(attribute(trace), tree, (align_eager(tree, graph),), ())
    assert [(c.node, c.tensor, c.source_value) for c in found.conversions] == [("conv", "activation", value)]
