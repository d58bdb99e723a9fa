from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

from layoutdoctor.diagnosis.conversion import Conversion

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.graph import Buffer, BufferRead, FxNode, Graph
    from layoutdoctor.diagnosis.layout import Layout

IMAGE = (2, 8, 6, 6)
KERNEL = (8, 8, 3, 3)
BYTES = 2 * 4 * 2 * 8 * 6 * 6
PLAIN, LAST = contiguous(IMAGE), channels_last(IMAGE)


def buffer(name: str = "buf0", *accesses: BufferRead, **changes: Any) -> Buffer:
    return a_buffer(name, *accesses, **{"layout": LAST, **changes})


def reading(name: str = "x", layout: Layout = PLAIN, **changes: Any) -> BufferRead:
    return a_read(name, layout, **changes)


def call(name: str, *reads: str, node: str = "convolution", **changes: Any) -> Buffer:
    """A library call that runs one FX node."""
    fields = {"reads": reads, "is_extern": True, "source_node": node, "kernel": "extern_kernels.convolution"}
    return buffer(name, **{**fields, "launch": None, **changes})


def graph(*buffers: Buffer, nodes: tuple[FxNode, ...] = (), **changes: Any) -> Graph:
    """``x``, a weight ``w``, a ReLU in line 5 and what else is given."""
    x, weight = a_placeholder("x", PLAIN), a_placeholder("w", contiguous(KERNEL), "weight")
    relu = a_node("relu", inputs=("x",), layout=PLAIN, location=a_location(5), module="body.1")
    return a_graph(nodes=(x, weight, relu, *nodes), buffers=buffers, **changes)


def convolution(name: str = "convolution", **changes: Any) -> FxNode:
    fields = {"inputs": ("relu", "w"), "layout": PLAIN, "module": "body.2", "location": a_location(6)}
    return a_node(name, "aten.convolution.default", **{**fields, **changes})


def only(graph: Graph) -> Conversion:
    (found,) = graph_conversions(graph)
    return found


def test_a_moved_buffer_is_a_conversion_with_its_place_fused_where_it_is_computed() -> None:
    assert only(graph(buffer("buf0", reading(), origins=("unknown", "relu")))) == Conversion(
        id="graph 0 conversion 0",
        owner="compiler",
        kernel="cpp_fused_0",
        node="relu",
        op="aten.relu.default",
        location=a_location(5),
        module="body.1",
        source=PLAIN,
        target=LAST,
        direction="to_channels_last",
        tensor="activation",
        seconds=None,
        bytes_moved=BYTES,
        fused=False,
        dtype="float32",
        graph="graph 0",
        cause="Inductor's own choice for relu",
        role="entry",
        value="buf0",
        source_value="x",
    )

    assert only(graph(buffer("buf0", reading(), operations=("relu",)))).fused

    larger = buffer("buf0", reading(), layout=channels_last((2, 8, 8, 8)))
    same = buffer("buf1", reading(), layout=PLAIN)
    unknown = buffer("buf2", reading("nowhere"))
    without = buffer("buf3", reading(), layout=None)

    assert graph_conversions(graph(larger, same, unknown, without)) == ()


def test_a_cast_travels_with_a_conversion_and_leaves_a_weight_a_weight() -> None:
    found = only(graph(buffer("buf0", reading(), dtype="bfloat16", operations=("to_dtype",))))

    assert (found.dtype, found.target_dtype, found.fused) == ("float32", "bfloat16", False)
    assert found.bytes_moved == (4 + 2) * 2 * 8 * 6 * 6

    cast = buffer("buf0", reading("w", contiguous(KERNEL)), layout=contiguous(KERNEL), operations=("to_dtype",))
    moved = buffer("buf1", reading("buf0", contiguous(KERNEL)), layout=channels_last(KERNEL))

    assert only(graph(cast, moved)).tensor == "weight"


def copying(called: str, *, directly: bool | None = True, layout: Layout = LAST, **changes: Any) -> FxNode:
    fields = {"layout": layout, "called": called, "is_called_directly": directly, "location": a_location(8)}
    return a_node("clone", "aten.clone.default", ("x",), **{**fields, **changes})


@pytest.mark.parametrize("called", ["contiguous", "to", "clone"])
def test_a_copy_that_the_models_own_line_asked_for_is_the_users(called: str) -> None:
    found = only(graph(buffer("buf0", reading(), origins=("relu", "clone")), nodes=(copying(called),)))

    assert (found.owner, found.node, found.location) == ("user", "clone", a_location(8))
    assert found.cause == f"the model's own .{called}() asks for it"


@pytest.mark.parametrize(
    "node",
    [
        pytest.param(copying("contiguous", directly=False), id="inside a function of torch"),
        pytest.param(copying("reshape"), id="asked for a shape"),
        pytest.param(copying("contiguous", layout=PLAIN), id="asked for the layout it had"),
        pytest.param(copying("contiguous", layout=channels_last((2, 8, 3, 12))), id="of another shape"),
    ],
)
def test_a_copy_that_nobody_asked_for_in_that_layout_is_the_compilers(node: FxNode) -> None:
    assert only(graph(buffer("buf0", reading(), origins=("clone",)), nodes=(node,))).owner == "compiler"


def test_what_a_library_call_reads_is_required_by_it() -> None:
    made = buffer("buf0", reading("buf9", PLAIN), origins=("convolution",))
    before = call("buf9", "x", node="relu", layout=PLAIN)
    found = only(graph(before, made, call("buf1", "buf0"), nodes=(convolution(),)))

    assert (found.required_by, found.role) == (("convolution",), "interior")
    assert found.cause == "required by convolution body.2"
    assert (found.node, found.module) == ("convolution", "body.2")

    made = buffer("buf0", reading("w", contiguous(KERNEL)), layout=channels_last(KERNEL), origins=("convolution",))
    found = only(graph(made, call("buf1", "buf0"), nodes=(convolution(),)))

    assert (found.tensor, found.role) == ("weight", None)
    assert found.cause == "required by convolution body.2, on each call"


def test_what_the_caller_is_given_is_an_exit_and_what_is_saved_is_none() -> None:
    before = call("buf9", "x", node="relu")
    returned = buffer("buf0", reading("buf9", LAST), layout=PLAIN, is_output=True, is_user_output=True)
    found = only(graph(before, returned))

    assert (found.role, found.direction) == ("exit", "to_contiguous")
    assert found.cause == "the caller is given the strides that eager returns (keep_output_stride)"

    before = call("buf9", "x", node="relu")
    saved = buffer("buf0", reading("buf9", LAST), layout=PLAIN, is_output=True, is_user_output=False)
    found = only(graph(before, saved, direction="forward"))

    assert (found.role, found.cause) == ("interior", "saved for the backward in these strides")

    before = call("buf9", "x", node="relu")
    returned = buffer("buf0", reading("buf9", LAST), layout=PLAIN, is_output=True, is_user_output=False)
    found = only(graph(before, returned, direction="backward"))

    assert (found.role, found.cause) == ("exit", "a gradient is returned in the strides of what it belongs to")
