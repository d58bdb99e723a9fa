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

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.graph import Buffer, BufferRead, FxNode, Graph
    from layoutdoctor.diagnosis.layout import Layout

IMAGE = (2, 8, 6, 6)
PLAIN, LAST = contiguous(IMAGE), channels_last(IMAGE)


def made(*accesses: BufferRead, **changes: Any) -> Buffer:
    return a_buffer("buf0", *accesses, **{"layout": LAST, **changes})


CALL = a_buffer(
    "buf9",
    layout=LAST,
    reads=("x",),
    is_extern=True,
    source_node="relu",
    kernel="extern_kernels.convolution",
    launch=None,
)


def graph(*buffers: Buffer, nodes: tuple[FxNode, ...] = (), **changes: Any) -> Graph:
    """``x``, a ReLU in line 5 and what else is given."""
    relu = a_node("relu", inputs=("x",), layout=PLAIN, location=a_location(5), module="body.1")
    return a_graph(nodes=(a_placeholder("x", PLAIN), relu, *nodes), buffers=buffers, **changes)


def only(graph: Graph) -> Conversion:
    (found,) = graph_conversions(graph)
    return found


def copying(called: str, *, directly: bool | None = True, layout: Layout = LAST, **changes: Any) -> FxNode:
    fields = {"layout": layout, "called": called, "is_called_directly": directly, "location": a_location(8)}
    return a_node("clone", "aten.clone.default", ("x",), **{**fields, **changes})


@pytest.mark.parametrize("called", ["contiguous", "to", "clone"])
def test_a_copy_that_the_models_own_line_asked_for_is_the_users(called: str) -> None:
    found = only(graph(made(a_read("x", PLAIN), origins=("relu", "clone")), nodes=(copying(called),)))

    assert (found.owner, found.node, found.location) == ("user", "clone", a_location(8))
    assert found.cause == f"the model's own .{called}() asks for it"


def test_a_copy_into_a_tensor_that_is_there_is_of_the_tensor_that_it_reads() -> None:
    facts = {"layout": LAST, "called": "copy_", "is_called_directly": True}
    into = a_node("copied", "aten.copy.default", ("target", "x"), **facts)
    target = a_placeholder("target", LAST)
    found = only(graph(made(a_read("x", PLAIN), origins=("copied",)), nodes=(target, into)))
    assert (found.owner, found.cause) == ("user", "the model's own .copy_() asks for it")


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
    assert only(graph(made(a_read("x", PLAIN), origins=("clone",)), nodes=(node,))).owner == "compiler"


def test_what_the_caller_is_given_is_an_exit_and_what_is_saved_is_none() -> None:
    returned = made(a_read("buf9", LAST), layout=PLAIN, is_output=True, is_user_output=True)
    found = only(graph(CALL, returned))

    assert (found.role, found.direction) == ("exit", "to_contiguous")
    assert found.cause == "the caller is given the strides that eager returns (keep_output_stride)"

    kept = made(a_read("buf9", LAST), layout=PLAIN, is_output=True, is_user_output=False)
    found = only(graph(CALL, kept, direction="forward"))

    assert (found.role, found.cause) == ("interior", "saved for the backward in these strides")

    found = only(graph(CALL, kept, direction="backward"))

    assert (found.role, found.cause) == ("exit", "a gradient is returned in the strides of its parameter or input")
