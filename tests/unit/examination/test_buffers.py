from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from builders import a_buffer, a_graph, a_location, a_node, a_placeholder, channels_last, contiguous

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.examination.graphs.buffers import (
    BufferGraph,
    densified,
    is_only_channels_last,
    is_only_contiguous,
)

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Buffer, BufferRead, FxNode

IMAGE = (2, 8, 6, 6)
PLAIN, LAST = contiguous(IMAGE), channels_last(IMAGE)
X = a_placeholder("x", PLAIN)


def flow(*buffers: Buffer, nodes: tuple[FxNode, ...] = ()) -> BufferGraph:
    return BufferGraph(a_graph(nodes=(X, *nodes), buffers=buffers))


def buffer(name: str, *accesses: BufferRead, **changes: Any) -> Buffer:
    return a_buffer(name, *accesses, **{"layout": LAST, **changes})


def extern(name: str, *reads: str, node: str | None = "convolution", origins: tuple[str, ...] = ()) -> Buffer:
    return buffer(name, reads=reads, is_extern=True, source_node=node, origins=origins, launch=None)


CONVOLUTION = a_node("convolution", "aten.convolution.default", ("relu",), module="body.1", location=a_location(3))
RELU = a_node("relu", "aten.relu.default", ("x",), module="body.0", location=a_location(2))
CLONE = a_node("clone", "aten.clone.default", ("relu",))


def name_of(buffer: Buffer, *others: Buffer) -> str | None:
    node = flow(buffer, *others, nodes=(RELU, CLONE, CONVOLUTION)).node_of(buffer)
    return None if node is None else node.name


def test_by_which_node_a_buffer_and_a_library_call_are_told() -> None:
    assert name_of(buffer("buf0", source_node="relu", origins=("relu", "convolution"))) == "relu"

    assert name_of(buffer("buf0", origins=("relu", "convolution")), extern("buf1", "buf0")) == "convolution"

    ready = buffer("buf0", source_node="x", origins=("relu",))
    known = flow(ready, extern("buf1", "buf0"), nodes=(RELU, CONVOLUTION))

    assert known.node_of(ready) == CONVOLUTION

    computing = buffer("buf0", origins=("relu", "convolution"), operations=("relu",))

    assert name_of(computing, extern("buf1", "buf0")) == "relu"

    assert name_of(buffer("buf0", origins=("clone", "relu"))) == "relu"
    assert name_of(buffer("buf0", origins=("clone",))) == "clone"
    assert name_of(buffer("buf0", origins=("unknown",))) is None

    own, fused = extern("buf1", "buf0"), extern("buf2", "buf0", node=None, origins=("convolution", "relu", "clone"))
    other = extern("buf3", "buf0", node=None, origins=("relu", "clone"))
    known = flow(buffer("buf0"), own, fused, other, nodes=(RELU, CLONE, CONVOLUTION))
    nodes = [known.extern_node(one) for one in (own, fused, other, extern("buf4", node="unknown"))]

    assert [node.name if node is not None else None for node in nodes] == ["convolution", "convolution", "clone", None]
    assert known.required_by("buf0") == ("convolution", "clone")

    part, whole = buffer("buf0", alias_of="buf1"), buffer("buf1", kernel=None, reads=("buf0",))
    known = flow(part, whole, extern("buf2", "buf1"), nodes=(CONVOLUTION,))

    assert known.extern_readers("buf0") == ["buf2"]
    assert known.required_by("buf0") == ("convolution",)


def test_a_part_of_a_larger_memory_counts_by_its_order() -> None:
    part = strided_layout(IMAGE, (576, 1, 96, 16))

    assert densified(part) == LAST
    assert is_only_channels_last(part)
    assert not is_only_contiguous(part)
    assert is_only_contiguous(strided_layout(IMAGE, (576, 36, 6, 1)))


@pytest.mark.parametrize("layout", [None, contiguous((2, 8, 6)), contiguous((2, 8, 1, 1)), contiguous((2, 1, 6, 6))])
def test_what_has_no_memory_format_or_two_is_neither_only(layout: Any) -> None:
    assert not is_only_channels_last(layout)
    assert not is_only_contiguous(layout)
