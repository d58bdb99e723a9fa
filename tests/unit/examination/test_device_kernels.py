from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from builders import a_graph, a_location, a_node, a_placeholder, channels_last, contiguous
from recorded_builders import (
    FORWARD,
    POINTWISE,
    TO_NCHW,
    TO_NHWC,
    Recorder,
)

from layoutdoctor.examination.graphs.join import align_eager, join_eager
from layoutdoctor.examination.graphs.round_trips import redundant_pairs
from layoutdoctor.examination.kernels.attribution import attribute
from layoutdoctor.examination.kernels.device import summarize_device
from layoutdoctor.examination.kernels.host import operation_tree
from layoutdoctor.examination.kernels.shapes import cudnn_grid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.diagnosis.graph import FxNode, Graph
    from layoutdoctor.diagnosis.kernel import KernelSummary
    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.recording.recording import RecordedTrace

X, WEIGHT, Y = (4, 8, 32, 32), (48, 8, 3, 3), (4, 48, 32, 32)
WEIGHT_2, Z = (16, 48, 3, 3), (4, 16, 32, 32)
CONVOLUTION, RELU = "aten.convolution.default", "aten.relu.default"
Shape = tuple[int, ...]
ONES, ZEROS = str([1, 1]), str([0, 0])


def cudnn(read: Sequence[Shape], main: str, written: Shape) -> list[tuple[str, Any]]:
    """Kernels around one that computes channels_last, of contiguous tensors, each with its launch grid."""
    return [*((TO_NHWC, cudnn_grid(shape)) for shape in read), (main, None), (TO_NCHW, cudnn_grid(written))]


def convolve(recorder: Recorder, input: Shape, weight: Shape, kernels: Sequence[tuple[str, Any]]) -> None:
    """A convolution as PyTorch runs it on a GPU, of a kernel size of 3 and padding 1."""
    layouts = [contiguous(input), contiguous(weight)]
    tensors = {"shapes": [input, weight], "strides": [layout.stride for layout in layouts], "types": ["c10::Half"] * 2}
    outer = recorder.operation(
        "aten::convolution", values=["", "", "", ONES, ONES, ONES, "False", ZEROS, "1"], **tensors
    )
    with outer, recorder.operation("aten::cudnn_convolution", values=["", "", ONES, ONES, ONES, "1"], **tensors):
        for name, grid in kernels:
            recorder.kernel(name, grid=grid, takes=1501)


def first(recorder: Recorder) -> None:
    convolve(recorder, X, WEIGHT, cudnn([X, WEIGHT], FORWARD, Y))


def second(recorder: Recorder) -> None:
    convolve(recorder, Y, WEIGHT_2, cudnn([Y, WEIGHT_2], FORWARD, Z))


def rectified(recorder: Recorder) -> None:
    tensors: dict[str, Any] = {"shapes": [Y], "strides": [contiguous(Y).stride]}
    with recorder.operation("aten::relu", **tensors), recorder.operation("aten::clamp_min", **tensors):
        recorder.kernel(POINTWISE, takes=1501)


def node(name: str, target: str, inputs: tuple[str, ...], layout: Layout, **changes: Any) -> FxNode:
    return a_node(name, target, inputs, layout=layout, **{"dtype": "float16", **changes})


def eager(*nodes: FxNode) -> Graph:
    known = (
        a_placeholder("x", contiguous(X), dtype="float16"),
        a_placeholder("w", contiguous(WEIGHT), "weight", dtype="float16"),
        a_placeholder("w2", contiguous(WEIGHT_2), "weight", dtype="float16"),
    )
    return a_graph(name="eager", nodes=(*known, *nodes), output_names=("conv2",))


CONV_1 = node("conv1", CONVOLUTION, ("x", "w"), contiguous(Y), module="a", location=a_location(3))


def conv2(reads: str = "relu") -> FxNode:
    return node("conv2", CONVOLUTION, (reads, "w2"), contiguous(Z), module="b", location=a_location(5))


RECTIFIED = node("relu", RELU, ("conv1",), contiguous(Y), module="act")
CHAIN = eager(CONV_1, RECTIFIED, conv2())


def chain(recorder: Recorder) -> None:
    first(recorder)
    rectified(recorder)
    second(recorder)


def summarized(trace: RecordedTrace, graph: Graph) -> KernelSummary:
    tree = operation_tree(trace)
    problem = join_eager(tree, graph)
    graph = align_eager(tree, graph)
    return summarize_device(attribute(trace), tree, (graph,), [problem] if problem else [])


def ports(found: KernelSummary) -> list[tuple[str | None, str | None, str]]:
    return [(c.node, c.port, c.tensor) for c in found.conversions]


def pairs(found: KernelSummary, graph: Graph = CHAIN) -> list[tuple[str, str]]:
    return [(pair.first, pair.second) for pair in redundant_pairs((graph,), found.conversions)]


def test_a_chain_of_two_convolutions_is_told_by_its_conversions_its_kernels_and_its_round_trip() -> None:
    recorder = Recorder(now=5_000_000)
    chain(recorder)
    found = summarized(recorder.trace(), CHAIN)

    assert [(c.id, c.direction, c.node, c.port, c.source_value) for c in found.conversions] == [
        ("conversion 0", "to_channels_last", "conv1", "input 0", "x"),
        ("conversion 1", "to_channels_last", "conv1", "input 1", "w"),
        ("conversion 2", "to_contiguous", "conv1", "output 0", None),
        ("conversion 3", "to_channels_last", "conv2", "input 0", "relu"),
        ("conversion 4", "to_channels_last", "conv2", "input 1", "w2"),
        ("conversion 5", "to_contiguous", "conv2", "output 0", None),
    ]
    assert [c.tensor for c in found.conversions] == ["activation", "weight", "activation"] * 2
    result = found.conversions[2]
    assert (result.source, result.target) == (channels_last(Y), contiguous(Y))
    assert (result.bytes_moved, result.dtype, result.confidence) == (2 * 2 * 4 * 48 * 32 * 32, "float16", "shapes")
    assert (result.owner, result.op, result.graph) == ("library", "aten::cudnn_convolution", "eager")
    assert (result.module, result.location, result.required_by) == ("a", a_location(3), ("conv1",))
    assert result.cause == "aten::cudnn_convolution runs in a format of its own"
    assert (result.seconds, result.exposed_seconds) == (pytest.approx(1.501e-6), pytest.approx(1.501e-6))
    assert result.stream == 7
    assert result.seconds_source == "measured"

    assert [k.node for k in found.kernels] == [*["conv1"] * 4, "relu", *["conv2"] * 4]
    assert {k.graph for k in found.kernels} == {"eager"}
    assert [k.library for k in found.kernels[:5]] == [*["cudnn"] * 4, "aten"]
    assert [k.start_seconds for k in found.kernels[:2]] == pytest.approx([0.0, 1.501e-6])
    assert [c.start_seconds for c in found.conversions[:3]] == [found.kernels[i].start_seconds for i in (0, 1, 3)]

    (pair,) = redundant_pairs((CHAIN,), found.conversions)

    assert (pair.first, pair.second, pair.between) == ("conversion 2", "conversion 3", ("aten.relu.default",))
    assert (pair.module, pair.tensor_shape, pair.evidence) == ("b", Y, "kernels")
    assert pair.seconds == pytest.approx(2 * 1.501e-6)
    assert pair.bytes_moved == 2 * (2 * 2 * 4 * 48 * 32 * 32)


def test_a_sibling_of_the_same_sizes_or_a_value_of_others_is_no_way_back() -> None:
    recorder = Recorder()
    chain(recorder)
    y = a_placeholder("y", contiguous(Y), dtype="float16")
    branches = eager(y, CONV_1, RECTIFIED, conv2("y"))
    found = summarized(recorder.trace(), branches)

    assert ports(found)[3] == ("conv2", "input 0", "activation")
    assert pairs(found, branches) == []

    recorder = Recorder()
    other = (4, 48, 16, 16)
    first(recorder)
    rectified(recorder)
    convolve(recorder, other, WEIGHT_2, cudnn([other, WEIGHT_2], FORWARD, (4, 16, 16, 16)))
    found = summarized(recorder.trace(), CHAIN)

    # The order of the operations still gives it a node, but what it was given is not that node's.
    assert found.lacks == ("eager: the convolutions that ran are not in the order of the graph",)
    assert ports(found)[3] == ("conv2", None, "activation")
    assert pairs(found) == []
