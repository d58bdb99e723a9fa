from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from builders import a_buffer, a_graph, a_node, a_placeholder, channels_last, contiguous

from layoutdoctor.examination.kernels.device import GraphLayouts
from layoutdoctor.examination.kernels.host import HostOperation

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import Buffer, Graph

IMAGE, WEIGHT = (2, 8, 6, 6), (8, 8, 3, 3)
CONV = a_node("conv", "aten.convolution.default", ("x", "w"), layout=contiguous(IMAGE))
BACK = a_node("back", "aten.convolution_backward.default", ("g", "x", "w"), layout=contiguous(IMAGE))
ITEMS = tuple(
    a_node(f"item{index}", "<built-in function getitem>", ("back",), layout=contiguous(shape), result_index=index)
    for index, shape in enumerate((IMAGE, WEIGHT))
)
KNOWN = (a_placeholder("x", contiguous(IMAGE)), a_placeholder("w", contiguous(WEIGHT), "weight"))


def given(*layouts: Layout, **changes: Any) -> HostOperation:
    fields: dict[str, Any] = {
        "shapes": tuple(layout.shape for layout in layouts),
        "strides": tuple(layout.stride for layout in layouts),
    }
    return HostOperation("aten::convolution", 0.0, 1e-6, "1", **{**fields, **changes})


def extern(name: str, **changes: Any) -> Buffer:
    return a_buffer(name, **{"is_extern": True, "layout": channels_last(IMAGE), **changes})


def compiled(*buffers: Buffer) -> Graph:
    return a_graph(nodes=(*KNOWN, CONV, BACK, *ITEMS), buffers=buffers)


@pytest.mark.parametrize(
    "operation",
    [
        given(contiguous((2, 8, 5, 6))),
        given(contiguous((2, 8, 36))),
        given(contiguous(IMAGE), strides=()),
        given(contiguous(IMAGE), strides=((),)),
        given(),
    ],
    ids=["other sizes", "other rank", "no strides", "no strides of it", "no tensor"],
)
def test_without_the_layout_of_the_graphs_own_value_none_is_known(operation: HostOperation) -> None:
    assert GraphLayouts(a_graph(nodes=(*KNOWN, CONV))).of_argument(CONV, 0, operation) is None


def test_each_result_in_a_compiled_graph_has_the_layout_of_the_buffer_the_library_wrote() -> None:
    generated = a_buffer("buf2", layout=contiguous(IMAGE), source_node="conv")
    layouts = GraphLayouts(compiled(extern("buf0", source_node="conv"), extern("buf1", layout=None), generated))

    assert layouts.of_result(CONV, 0) == channels_last(IMAGE)
    assert GraphLayouts(compiled(generated)).of_result(CONV, 0) is None

    first = extern("buf1", source_node="item0", origins=("back",))
    second = extern("buf2", layout=channels_last(WEIGHT), origins=("back",))
    layouts = GraphLayouts(compiled(extern("buf0", layout=None), first, second))

    assert layouts.of_result(BACK, 0) == channels_last(IMAGE)
    assert layouts.of_result(BACK, 1) is None
