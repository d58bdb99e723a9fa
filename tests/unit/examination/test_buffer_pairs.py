"""Redundant pairs that Inductor's buffers prove: a convolution's channels-last result made contiguous, and back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from builders import (
    a_buffer,
    a_graph,
    a_location,
    a_node,
    a_placeholder,
    a_read,
    channels_last,
    contiguous,
    graph_conversions,
)

from layoutdoctor.diagnosis.conversion import RedundantPair
from layoutdoctor.diagnosis.graph import Buffer, BufferRead, FxNode, Graph
from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.examination.graphs.buffers import Flow
from layoutdoctor.examination.graphs.round_trips import buffer_pairs

IMAGE = (2, 8, 6, 6)
BYTES = 2 * 4 * 2 * 8 * 6 * 6
PLAIN, LAST = contiguous(IMAGE), channels_last(IMAGE)


def plain(name: str, *reads: BufferRead, **changes: Any) -> Buffer:
    return a_buffer(name, *reads, **{"layout": PLAIN, **changes})


def last(name: str, *reads: BufferRead, **changes: Any) -> Buffer:
    return a_buffer(name, *reads, **{"layout": LAST, **changes})


def of(name: str, layout: Any = PLAIN, **changes: Any) -> BufferRead:
    return a_read(name, layout, **changes)


def call(name: str, *reads: str, node: str, **changes: Any) -> Buffer:
    return last(name, reads=reads, is_extern=True, source_node=node, kernel="extern", launch=None, **changes)


NODES = (
    a_placeholder("x", LAST),
    a_node("conv_a", "aten.convolution.default", ("x",), module="a"),
    a_node("contiguous", "aten.clone.default", ("conv_a",), called="contiguous", layout=PLAIN),
    a_node("relu", "aten.relu.default", ("contiguous",), location=a_location(7), layout=PLAIN),
    a_node("conv_b", "aten.convolution.default", ("relu",), module="b", location=a_location(8)),
    a_node("cat", "aten.cat.default", ("conv_a", "conv_a"), location=a_location(6), layout=contiguous((2, 16, 6, 6))),
    a_node("mm", "aten.mm.default", ("relu",), module="head"),
)
A = call("a", "x", node="conv_a")
OUT = plain("out", of("a", LAST), source_node="contiguous")
RELU = plain("r", of("out"), source_node="relu", operations=("relu",), kernel="cpp_fused_1")
BACK = last("back", of("r"), origins=("relu", "conv_b"), kernel="cpp_fused_2")
B = call("b", "back", node="conv_b", is_output=True)


def graph(*buffers: Buffer, nodes: tuple[FxNode, ...] = (), **changes: Any) -> Graph:
    """A graph with its conversions, as they are found in it."""
    known = a_graph(nodes=(*NODES, *nodes), buffers=buffers, **changes)
    return msgspec.structs.replace(known, conversions=graph_conversions(known))


def pairs(*buffers: Buffer, nodes: tuple[FxNode, ...] = ()) -> list[tuple[str, str]]:
    """Pairs by the values that the two conversions make."""
    known = graph(*buffers, nodes=nodes)
    value = {conversion.id: str(conversion.value) for conversion in known.conversions}
    return [(value[pair.first], value[pair.second]) for pair in buffer_pairs(Flow(known))]


def only(*buffers: Buffer, nodes: tuple[FxNode, ...] = ()) -> RedundantPair:
    (pair,) = buffer_pairs(Flow(graph(*buffers, nodes=nodes)))
    return pair


WIDE = (2, 16, 6, 6)
WHOLE = plain("whole", layout=contiguous(WIDE), reads=("p0", "p1"), source_node="cat", kernel=None, launch=None)
JOINED_BACK = last("back", of("whole", contiguous(WIDE)), layout=channels_last(WIDE), kernel="cpp_fused_1")


def branch(name: str, *reads: BufferRead, **changes: Any) -> Buffer:
    """A part of ``WHOLE``, computed by a ReLU: its conversion rides along."""
    part = strided_layout(IMAGE, (576, 36, 6, 1))
    fields = {"layout": part, "alias_of": "whole", "operations": ("relu",), "origins": ("cat",)}
    return plain(name, *reads, **{**fields, **changes})


BRANCHES = (branch("p0", of("a", LAST)), branch("p1", of("a", LAST)))


def test_a_way_there_and_back_through_a_loop_is_a_pair_with_its_proof() -> None:
    assert only(A, OUT, RELU, BACK, B) == RedundantPair(
        kind="through",
        evidence="graph",
        first="graph 0 conversion 0",
        second="graph 0 conversion 1",
        between=("aten.relu.default",),
        seconds=None,
        bytes_moved=2 * BYTES,
        location=a_location(7),
        module="b",
        proof="a is converted into out, r, and back converts back for conv_b; the 2 buffers between are read by "
        "2 generated loops, which read any layout: no library call reads them, none is returned or changed",
        tensor_shape=IMAGE,
        graph="graph 0",
    )


@pytest.mark.parametrize(
    ("why", "others"),
    [
        ("it is returned", (msgspec.structs.replace(RELU, is_output=True), BACK, B)),
        ("what it is made from is returned", (RELU, BACK, B, msgspec.structs.replace(OUT, is_output=True))),
        ("a library call reads it in that layout", (RELU, BACK, B, call("m", "r", node="mm"))),
        (
            "a loop would have to convert it instead",
            (
                RELU,
                BACK,
                B,
                plain("flat", BufferRead(name="r", stride=(1,)), layout=contiguous((576,)), is_output=True),
            ),
        ),
        (
            "an operand from elsewhere may have to be converted",
            (plain("r", of("out"), of("y"), operations=("add",), kernel="cpp_fused_1"), BACK, B),
        ),
        (
            "it goes into another layout than it came from",
            (RELU, plain("back", of("r"), layout=strided_layout(IMAGE, (288, 6, 48, 1)), kernel="cpp_fused_2")),
        ),
        ("it is another region", (plain("r", reads=("out",), operations=("relu",), kernel="cpp_fused_1"), BACK, B)),
        ("a loop that was not understood reads it", (RELU, BACK, B, last("u", reads=("r",), problem="symbolic sizes"))),
    ],
)
def test_a_value_that_something_needs_as_it_is_makes_no_pair(why: str, others: tuple[Buffer, ...]) -> None:
    kept = () if any(buffer.name == "out" for buffer in others) else (OUT,)

    assert pairs(A, *kept, *others) == [], why


def test_conversions_that_ride_along_go_with_a_pair_and_make_none() -> None:
    pair = only(A, *BRANCHES, WHOLE, JOINED_BACK, B)

    assert (pair.first, pair.also, pair.second) == (
        "graph 0 conversion 0",
        ("graph 0 conversion 1",),
        "graph 0 conversion 2",
    )

    out = msgspec.structs.replace(OUT, operations=("relu",))
    back = msgspec.structs.replace(BACK, operations=("sigmoid",))

    assert pairs(A, out, RELU, back, B) == []
    assert pairs(A, out, RELU, BACK, B) == [("out", "back")]
