from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from builders import a_conversion, a_graph, a_node, blocked, channels_last, contiguous
from msgspec.structs import replace

from layoutdoctor.examination.graphs.round_trips import redundant_pairs

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.conversion import Conversion, RedundantPair
    from layoutdoctor.diagnosis.graph import FxNode, Graph
    from layoutdoctor.diagnosis.layout import Layout

IMAGE, LARGE = (4, 32, 16, 16), (4, 32, 32, 32)
CONVOLUTION = "aten.convolution.default"
BACKWARD = "aten.convolution_backward.default"
ADD = "aten.add.Tensor"


def value(name: str, target: str = "aten.relu.default", *inputs: str, **changes: Any) -> FxNode:
    return a_node(name, target, inputs, **{"layout": contiguous(IMAGE), **changes})


def argument(name: str = "x", **changes: Any) -> FxNode:
    return value(name, name, op="placeholder", **changes)


def convolution(name: str, source: str, **changes: Any) -> FxNode:
    return value(name, CONVOLUTION, source, f"{name}_weight", **changes)


def weight(name: str) -> FxNode:
    return argument(f"{name}_weight", layout=contiguous((32, 32, 3, 3)), tensor="weight")


def graph(*nodes: FxNode, outputs: tuple[str, ...] = (), **changes: Any) -> Graph:
    weights = [weight(node.name) for node in nodes if node.target == CONVOLUTION]
    return a_graph(nodes=(*weights, *nodes), output_names=outputs, **changes)


def converted(
    id: str, node: str, port: str, source: Layout, target: Layout, direction: str, graph: str = "graph 0"
) -> Conversion:
    return a_conversion(
        id,
        node=node,
        port=port,
        graph=graph,
        source=source,
        target=target,
        direction=direction,
        bytes_moved=2 * 4 * (source.element_count or 0),
    )


def leaving(node: str, shape: tuple[int, ...] = IMAGE, tag: str = "aBcd16b", port: str = "output 0") -> Conversion:
    return converted(f"{node} out", node, port, blocked(shape, tag), contiguous(shape), "from_blocked")


def entering(node: str, shape: tuple[int, ...] = IMAGE, tag: str = "aBcd16b", port: str = "input 0") -> Conversion:
    return converted(f"{node} {port}", node, port, contiguous(shape), blocked(shape, tag), "to_blocked")


def weighed(node: str) -> Conversion:
    shape = (32, 32, 3, 3)
    return converted(f"{node} w", node, "input 1", contiguous(shape), blocked(shape, "ABcd16b16a"), "to_blocked")


def around(*nodes: str) -> list[Conversion]:
    return [conversion for node in nodes for conversion in (entering(node), weighed(node), leaving(node))]


def found(graph: Graph, *conversions: Conversion) -> list[tuple[str, str]]:
    return [(pair.first, pair.second) for pair in redundant_pairs([graph], conversions)]


def only_pair(graph: Graph, *conversions: Conversion) -> RedundantPair:
    (pair,) = redundant_pairs([graph], conversions)
    return pair


CHAIN = graph(
    argument(), convolution("a", "x"), value("r", "aten.relu.default", "a"), convolution("b", "r"), outputs=("b",)
)


def test_a_result_converted_back_for_the_next_convolution_is_one_pair() -> None:
    pair = only_pair(CHAIN, *around("a", "b"))

    assert (pair.first, pair.second) == ("a out", "b input 0")
    assert (pair.kind, pair.between) == ("through", ("aten.relu.default",))
    assert pair.seconds == pytest.approx(2e-3)
    assert pair.bytes_moved == 2 * 2 * 4 * 4 * 32 * 16 * 16
    assert pair.tensor_shape == IMAGE
    assert "a's result goes through aten.relu.default into b" in str(pair.proof)

    pair = only_pair(graph(argument(), convolution("a", "x"), convolution("b", "a"), outputs=("b",)), *around("a", "b"))

    assert (pair.kind, pair.between) == ("adjacent", ())


def backward_chain() -> Graph:
    """The gradient of one convolution's input, through a relu's backward, into the backward of the one before."""
    return graph(
        argument("grad"),
        argument("saved"),
        argument("x"),
        argument("w1", layout=contiguous((32, 32, 3, 3))),
        argument("w2", layout=contiguous((32, 32, 3, 3))),
        value("b2", BACKWARD, "grad", "saved", "w2"),
        value("g2", "<built-in function getitem>", "b2", result_index=0),
        value("gw2", "<built-in function getitem>", "b2", result_index=1, layout=contiguous((32, 32, 3, 3))),
        value("t", "aten.threshold_backward.default", "g2", "mask"),
        argument("mask"),
        value("b1", BACKWARD, "t", "x", "w1"),
        value("gw1", "<built-in function getitem>", "b1", result_index=1, layout=contiguous((32, 32, 3, 3))),
        outputs=("gw1", "gw2"),
        direction="backward",
    )


def summed(*operand: FxNode) -> Graph:
    """``a`` and another operand, added for ``b``; without a node, the operand is not in the graph."""
    nodes = argument(), *operand, convolution("a", "x"), value("s", ADD, "a", "f"), convolution("b", "s")
    return graph(*nodes, outputs=("b",))


def again(*nodes: str) -> list[Conversion]:
    return [replace(c, id=f"{c.id} again") for c in around(*nodes)]


A_AND_B = argument(), convolution("a", "x"), convolution("b", "x"), value("s", ADD, "a", "b")
A_THEN_B = argument(), convolution("a", "x"), convolution("b", "a")
POINT = (4, 32, 1, 1)


@pytest.mark.parametrize(
    ("why", "own", "conversions"),
    [
        *(("it is returned too", replace(CHAIN, output_names=("b", other)), around("a", "b")) for other in ("r", "a")),
        (
            "values have no extent",
            graph(
                argument(layout=contiguous(POINT)),
                convolution("a", "x", layout=contiguous(POINT)),
                convolution("b", "a", layout=contiguous(POINT)),
                outputs=("b",),
            ),
            [leaving("a", POINT), entering("b", POINT)],
        ),
        (
            "something else reads it plainly",
            graph(*A_THEN_B, value("z", "aten.relu.default", "a"), outputs=("b", "z")),
            around("a", "b"),
        ),
        (
            "one of two convolutions reads it as it is",
            graph(*A_THEN_B, convolution("c", "a"), outputs=("b", "c")),
            [*around("a", "b"), weighed("c"), leaving("c")],
        ),
        ("the sizes differ and nothing changes them", CHAIN, [leaving("a"), entering("b", (4, 32, 8, 8))]),
        ("a gradient comes with a plain mask and is read once", backward_chain(), [leaving("b2"), entering("b1")]),
        (
            "a weight's gradient is an output",
            backward_chain(),
            [leaving("b2", (32, 32, 3, 3), "ABcd16b16a", "output 1"), weighed("b1")],
        ),
        *(
            ("a plain operand from elsewhere needs the conversion that goes", summed(*operand), around("a", "b"))
            for operand in (
                [argument("f")],
                [argument("f", layout=contiguous((32, 16, 16)))],
                [argument("f", layout=contiguous((1, 32, 16, 16)))],
                [argument("f", layout=None)],
                [],
            )
        ),
        (
            "two foreign values and two reads leave nothing to remove",
            graph(
                argument(),
                argument("f"),
                argument("g"),
                convolution("a", "x"),
                value("s", ADD, "a", "f"),
                value("t", ADD, "s", "g"),
                convolution("b", "t"),
                convolution("c", "t"),
                outputs=("b", "c"),
            ),
            around("a", "b", "c"),
        ),
        ("the blocked formats differ", CHAIN, [leaving("a", tag="aBcd16b"), entering("b", tag="aBcd8b")]),
        (
            "a region lives in one format only",
            graph(*A_AND_B, convolution("c", "s"), convolution("d", "s"), outputs=("c", "d")),
            [leaving("a"), leaving("b", tag="aBcd8b"), entering("c"), entering("d", tag="aBcd8b")],
        ),
        (
            "it arrives in another format than it left in",
            CHAIN,
            [leaving("a"), replace(entering("b"), source=channels_last(IMAGE))],
        ),
        *(
            (
                "an operation in between does not keep the layout",
                graph(
                    argument(), convolution("a", "x"), value("v", target, "a"), convolution("b", "v"), outputs=("b",)
                ),
                around("a", "b"),
            )
            for target in ("aten.view.default", "aten.cat.default", "aten.clone.default", "aten._softmax.default")
        ),
    ],
)
def test_there_is_no_pair_where(why: str, own: Graph, conversions: list[Conversion]) -> None:
    assert found(own, *conversions) == []


@pytest.mark.parametrize(
    ("why", "own", "conversions"),
    [
        (
            "a sum of two results is read by one convolution",
            graph(*A_AND_B, convolution("c", "s"), outputs=("c",)),
            around("a", "b", "c"),
        ),
        *(
            ("a bias has no layout to keep", summed(argument("f", layout=contiguous(shape))), around("a", "b"))
            for shape in ((32,), (1, 32, 1, 1), (16, 16), (32, 1, 1))
        ),
        (
            "a gradient is read twice",
            backward_chain(),
            [leaving("b2"), entering("b1"), replace(entering("b1"), id="again")],
        ),
        (
            "strided layouts come and go too",
            CHAIN,
            [
                converted("there", "a", "output 0", channels_last(IMAGE), contiguous(IMAGE), "to_contiguous"),
                converted("back", "b", "input 0", contiguous(IMAGE), channels_last(IMAGE), "to_channels_last"),
            ],
        ),
        (
            "it is upsampled, and its branches are joined again",
            graph(
                argument(),
                convolution("a", "x"),
                value("u", "aten.upsample_nearest2d.default", "a", layout=contiguous(LARGE)),
                value("s", "aten.sigmoid.default", "u", layout=contiguous(LARGE)),
                value("m", "aten.mul.Tensor", "u", "s", layout=contiguous(LARGE)),
                value("n", "aten._native_batch_norm_legit_no_training.default", "m", layout=contiguous(LARGE)),
                convolution("b", "n", layout=contiguous(LARGE)),
                outputs=("b",),
            ),
            [leaving("a"), entering("b", LARGE), leaving("b", LARGE)],
        ),
        (
            "a reduction reads it as it lies",
            replace(CHAIN, nodes=(*CHAIN.nodes, value("m", "aten.mean.dim", "r", layout=contiguous(POINT)))),
            around("a", "b"),
        ),
    ],
)
def test_there_is_one_pair_where(why: str, own: Graph, conversions: list[Conversion]) -> None:
    assert len(found(own, *conversions)) == 1


def test_what_would_have_to_be_converted_instead_is_weighed_in_its_format_and_its_bytes() -> None:
    """The region in aBcd16b: a and c save two conversions, the output costs one; b's stays one. That is no pair."""
    nodes = argument(), convolution("a", "x"), convolution("b", "x"), value("s", ADD, "a", "b"), convolution("c", "s")
    mixed = graph(*nodes, outputs=("c", "s"))

    assert found(mixed, leaving("a"), leaving("b", tag="aBcd8b"), entering("c")) == []
    assert len(found(mixed, leaving("a"), leaving("b"), entering("c"))) == 1  # both in aBcd16b: one goes, one stays


def test_graphs_with_the_same_node_names_and_runs_of_one_graph_are_kept_apart() -> None:
    other = replace(CHAIN, name="graph 1", output_names=("b", "r"))
    conversions = around("a", "b")
    elsewhere = [replace(c, graph="graph 1", id=f"{c.id} 1") for c in conversions]

    pairs = redundant_pairs([CHAIN, other], [*conversions, *elsewhere])

    assert [(pair.first, pair.second) for pair in pairs] == [("a out", "b input 0")]
    assert redundant_pairs([other], conversions) == ()

    assert found(CHAIN, *around("a", "b"), *again("a", "b")) == [
        ("a out", "b input 0"),
        ("a out again", "b input 0 again"),
    ]
