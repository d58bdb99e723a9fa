from __future__ import annotations

from typing import Any

from builders import a_graph, a_location, a_node, channels_last, contiguous

from layoutdoctor.analysis.graph_conversions import graph_conversions, with_graph_conversions
from layoutdoctor.records import Buffer, Graph

IMAGE = (2, 8, 6, 6)


def buffer(name: str = "buf0", **changes: Any) -> Buffer:
    fields: dict[str, Any] = {"name": name, "layout": channels_last(IMAGE), "dtype": "float32", "kernel": "cpp_fused_0"}
    return Buffer(**{**fields, **changes})


def graph(*buffers: Buffer, **changes: Any) -> Graph:
    weight = a_node("w", op="placeholder", layout=contiguous(IMAGE), tensor="weight")
    x = a_node("x", op="placeholder", layout=contiguous(IMAGE), tensor="activation")
    node = a_node("relu", inputs=("x",), location=a_location(5), module="body.1")
    return a_graph(nodes=(x, weight, node), buffers=buffers, **changes)


def test_a_moved_buffer_is_a_conversion_with_its_place() -> None:
    (found,) = graph_conversions(graph(buffer(moved_from=("x",), origins=("unknown", "relu"))))

    assert (found.id, found.owner, found.kernel, found.graph) == (
        "graph 0 conversion 0",
        "compiler",
        "cpp_fused_0",
        "graph 0",
    )
    assert (found.direction, found.tensor, found.fused) == ("to_channels_last", "activation", False)
    assert (found.node, found.module, found.location) == ("relu", "body.1", a_location(5))
    assert found.bytes_moved == 2 * 4 * 2 * 8 * 6 * 6
    assert found.seconds is None


def test_a_conversion_inside_a_computing_kernel_is_fused() -> None:
    (found,) = graph_conversions(graph(buffer(converted_from=("x",))))

    assert found.fused


def test_a_chain_of_buffers_is_followed_and_numbered() -> None:
    back = buffer("buf1", layout=contiguous(IMAGE), moved_from=("buf0",))
    there, again = graph_conversions(graph(buffer(moved_from=("w",)), back))

    assert (there.tensor, there.direction, again.direction) == ("weight", "to_channels_last", "to_contiguous")
    assert again.id == "graph 0 conversion 1"


def test_a_move_between_shapes_or_within_one_order_is_no_conversion() -> None:
    larger = buffer(layout=channels_last((2, 8, 8, 8)), moved_from=("x",))
    same = buffer("buf1", layout=contiguous(IMAGE), moved_from=("x",))
    unknown = buffer("buf2", moved_from=("nowhere",))
    without = buffer("buf3", layout=None, moved_from=("x",))

    assert graph_conversions(graph(larger, same, unknown, without)) == ()


def test_a_buffer_of_a_backward_graph_is_a_gradient() -> None:
    first, second = buffer(moved_from=("x",)), buffer("buf1", layout=contiguous(IMAGE), moved_from=("buf0",))
    found = graph_conversions(graph(first, second, direction="backward"))

    assert [c.tensor for c in found] == ["activation", "gradient"]


def test_a_dtype_of_unknown_size_has_no_bytes() -> None:
    (found,) = graph_conversions(graph(buffer(moved_from=("x",), dtype="float4")))

    assert found.bytes_moved is None


def test_every_graph_gets_its_conversions_and_the_breaks_of_the_model() -> None:
    first, second = with_graph_conversions([graph(buffer(moved_from=("x",))), graph(name="graph 1")], 3)

    assert (len(first.conversions), len(second.conversions)) == (1, 0)
    assert (first.graph_breaks, second.graph_breaks) == (3, 3)
