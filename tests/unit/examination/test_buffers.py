from __future__ import annotations

from typing import Any

import pytest
from builders import a_buffer, a_graph, a_location, a_node, a_placeholder, a_read, channels_last, contiguous

from layoutdoctor.diagnosis.layout import blocked_layout, strided_layout
from layoutdoctor.diagnosis.records import Buffer, BufferRead, FxNode
from layoutdoctor.examination.graphs.buffers import (
    BufferGraph,
    Source,
    computes,
    densified,
    is_only_channels_last,
    is_only_contiguous,
)

IMAGE = (2, 8, 6, 6)
PLAIN, LAST = contiguous(IMAGE), channels_last(IMAGE)
X = a_placeholder("x", PLAIN)


def flow(*buffers: Buffer, nodes: tuple[FxNode, ...] = ()) -> BufferGraph:
    return BufferGraph(a_graph(nodes=(X, *nodes), buffers=buffers))


def buffer(name: str, *accesses: BufferRead, **changes: Any) -> Buffer:
    return a_buffer(name, *accesses, **{"layout": LAST, **changes})


def sources(*buffers: Buffer, nodes: tuple[FxNode, ...] = ()) -> tuple[Source, ...]:
    """What the last of the buffers reads from memory."""
    return flow(*buffers, nodes=nodes).sources(buffers[-1])


def test_layouts_types_and_readers_are_those_of_buffers_and_of_graph_inputs() -> None:
    known = flow(buffer("buf0", dtype="bfloat16"))

    assert (known.layout_of("buf0"), known.layout_of("x"), known.layout_of("nowhere")) == (LAST, PLAIN, None)
    types = [getattr(known.value(name), "dtype", None) for name in ("buf0", "x", "nowhere")]
    assert types == ["bfloat16", "float32", None]

    twice = buffer("buf1", a_read("x", PLAIN), a_read("buf0", LAST), a_read("x", PLAIN, offset=1))

    assert dict(flow(buffer("buf0", a_read("x", PLAIN)), twice).readers) == {"x": ["buf0", "buf1"], "buf0": ["buf1"]}


@pytest.mark.parametrize(
    "read",
    [
        BufferRead(name="x", stride=None),
        BufferRead(name="x", stride=PLAIN.stride, offset=1),
        BufferRead(name="x", stride=(0, 36, 6, 1)),
        BufferRead(name="x", stride=PLAIN.stride, is_masked=True),
        BufferRead(name="nowhere", stride=PLAIN.stride),
    ],
)
def test_what_is_no_whole_tensor_is_not_seen(read: BufferRead) -> None:
    (source,) = sources(buffer("buf0", read))

    assert source == Source(read.name, None, PLAIN if read.name == "x" else None)


def test_sources_have_their_own_layout_and_the_one_they_are_seen_in_through_registers_too() -> None:
    permuted = BufferRead(name="x", stride=(288, 6, 1, 36))
    (source,) = sources(buffer("buf0", permuted, layout=contiguous((2, 6, 6, 8))))

    assert source == Source("x", strided_layout((2, 6, 6, 8), (288, 6, 1, 36)), PLAIN)

    own = strided_layout((2, 8, 1, 6), (48, 6, 999, 1))
    read = BufferRead(name="buf0", stride=(48, 6, 0, 1))
    (source,) = sources(buffer("buf0", layout=own), buffer("buf1", read, layout=own))

    assert source == Source("buf0", own, own)

    own = contiguous((8, 6))
    read = BufferRead(name="buf0", stride=(0, 6, 0, 1))
    (source,) = sources(buffer("buf0", layout=own), buffer("buf1", read, layout=contiguous((1, 8, 1, 6))))

    assert source == Source("buf0", contiguous((1, 8, 1, 6)), own)

    kept = buffer("buf1", a_read("x", PLAIN), a_read("buf0", LAST), layout=PLAIN, is_removed=True)
    found = sources(buffer("buf0"), kept, buffer("buf2", a_read("buf1", PLAIN)))

    assert found == (Source("x", PLAIN, PLAIN), Source("buf0", LAST, LAST))

    kept = buffer("buf0", a_read("x", PLAIN), layout=PLAIN, is_removed=True)

    assert sources(kept, buffer("buf1", a_read("buf0", LAST))) == (Source("buf0", None, PLAIN),)

    assert sources(buffer("buf0", a_read("x", PLAIN), a_read("x", PLAIN, is_masked=False))) == (
        Source("x", PLAIN, PLAIN),
    )


def test_a_masked_read_of_a_concatenation_is_a_part_with_its_own_layout() -> None:
    cat = a_node("cat", "aten.cat.default", ("x", "x"))
    whole = buffer("buf0", a_read("x", PLAIN, is_masked=True), layout=channels_last((2, 16, 6, 6)), source_node="cat")

    assert sources(whole, nodes=(cat,)) == (Source("x", PLAIN, PLAIN, is_part=True),)
    assert sources(whole) == (Source("x", None, PLAIN),)  # nothing says that it is a concatenation


@pytest.mark.parametrize(
    ("stride", "shape"),
    [
        ((288, 36, 12, 1), (2, 16, 6, 6)),
        ((288, 36, 1, 6), (2, 16, 6, 6)),
        (None, (2, 16, 6, 6)),
        (PLAIN.stride, (2, 16, 12, 6)),
        (PLAIN.stride, IMAGE),
    ],
)
def test_a_masked_read_that_does_not_walk_its_own_dimensions_is_no_part(
    stride: tuple[int, ...] | None, shape: tuple[int, ...]
) -> None:
    cat = a_node("cat", "aten.cat.default", ("x", "x"))
    read = BufferRead(name="x", stride=stride, is_masked=True)
    whole = buffer("buf0", read, layout=channels_last(shape), source_node="cat")

    assert sources(whole, nodes=(cat,)) == (Source("x", None, PLAIN),)


def test_a_loop_that_does_more_than_move_and_cast_computes_and_what_its_kernel_moves_is_fused() -> None:
    assert not computes(buffer("buf0"))
    assert not computes(buffer("buf0", operations=("to_dtype", "to_dtype_bitcast")))
    assert computes(buffer("buf0", operations=("to_dtype", "relu")))
    assert computes(buffer("buf0", is_reduction=True))
    assert not computes(buffer("buf0", is_extern=True, operations=("relu",)))

    moved, computed = buffer("buf0"), buffer("buf1", operations=("relu",))

    assert flow(moved, computed).is_fused(moved)
    assert not flow(moved, buffer("buf1", operations=("relu",), kernel="cpp_fused_1")).is_fused(moved)
    assert flow(buffer("buf2", kernel=None, operations=("relu",))).is_fused(
        buffer("buf2", kernel=None, operations=("relu",))
    )


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


@pytest.mark.parametrize(
    "layout", [PLAIN, blocked_layout(IMAGE, "aBcd16b"), strided_layout(("s0", 8, 6, 6), ("2*s0", 1, 48, 8))]
)
def test_a_layout_that_is_dense_blocked_or_symbolic_stays_as_it_is(layout: Any) -> None:
    assert densified(layout) is layout


@pytest.mark.parametrize("layout", [None, contiguous((2, 8, 6)), contiguous((2, 8, 1, 1)), contiguous((2, 1, 6, 6))])
def test_what_has_no_memory_format_or_two_is_neither_only(layout: Any) -> None:
    assert not is_only_channels_last(layout)
    assert not is_only_contiguous(layout)
