"""Where a channels-last region ends: found from the conversion back, or from the one out, in both kinds of graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from builders import (
    a_buffer,
    a_conversion,
    a_graph,
    a_location,
    a_node,
    a_placeholder,
    a_read,
    channels_last,
    contiguous,
    graph_conversions,
)

from layoutdoctor.diagnosis.graph import Buffer, BufferRead, FxNode, LayoutBreaker
from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.examination.graphs.breakers import (
    compiled_breakers,
    eager_breakers,
)
from layoutdoctor.examination.graphs.buffers import Flow

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.conversion import Conversion

IMAGE = (2, 8, 6, 6)
WIDE = (2, 16, 6, 6)
PLAIN, LAST = contiguous(IMAGE), channels_last(IMAGE)
NODES = (
    a_placeholder("x", LAST),
    a_node("conv_a", "aten.convolution.default", ("x",), module="a"),
    a_node("norm", "aten.mul.Tensor", ("conv_a",), called="layer_norm", module="norm", location=a_location(5)),
    a_node("shuffle", "aten.clone.default", ("conv_a",), called="channel_shuffle", location=a_location(6)),
    a_node("cat", "aten.cat.default", ("conv_a", "conv_a"), location=a_location(7), layout=contiguous(WIDE)),
    a_node("relu", "aten.relu.default", ("norm",), location=a_location(8)),
    a_node("conv_b", "aten.convolution.default", ("relu",), module="b"),
    a_node("mm", "aten.mm.default", ("relu",), module="head"),
)


def plain(name: str, *reads: BufferRead, **changes: Any) -> Buffer:
    return a_buffer(name, *reads, **{"layout": PLAIN, **changes})


def last(name: str, *reads: BufferRead, **changes: Any) -> Buffer:
    return a_buffer(name, *reads, **{"layout": LAST, **changes})


def call(name: str, *reads: str, node: str, **changes: Any) -> Buffer:
    return last(name, reads=reads, is_extern=True, source_node=node, kernel="extern", launch=None, **changes)


A = call("a", "x", node="conv_a")
NORM = plain("n", a_read("a", LAST), source_node="norm", operations=("mul",))
RELU = plain("r", a_read("n", PLAIN), source_node="relu", operations=("relu",))
BACK = last("back", a_read("r", PLAIN), origins=("conv_b",))
B = call("b", "back", node="conv_b")


def compiled(*buffers: Buffer, nodes: tuple[FxNode, ...] = NODES) -> tuple[LayoutBreaker, ...]:
    known = a_graph(nodes=nodes, buffers=buffers)
    return compiled_breakers(Flow(known), graph_conversions(known))


def test_where_a_value_has_to_be_converted_back_the_operation_that_lost_the_layout_is_named() -> None:
    assert compiled(A, NORM, RELU, BACK, B) == (
        LayoutBreaker(
            node="norm",
            op="layer_norm",
            reason="it is given channels_last; Inductor writes its result in contiguous_format",
            location=a_location(5),
            module="norm",
            source=LAST,
            target=PLAIN,
            conversions=("graph 0 conversion 0", "graph 0 conversion 1"),
        ),
    )

    shuffled = plain("n", BufferRead(name="a", stride=None), source_node="shuffle")
    (breaker,) = compiled(A, shuffled, BACK_FROM_N, B)

    assert (breaker.op, breaker.node, breaker.conversions) == ("channel_shuffle", "shuffle", ("graph 0 conversion 0",))


def test_an_image_that_is_flattened_in_the_order_of_contiguous_lost_the_format_there() -> None:
    flat = contiguous((2, 288))
    row = a_buffer("f", BufferRead(name="a", stride=None), layout=flat, source_node="shuffle")
    called = call("m", "f", node="mm", layout=flat)
    back = last("back", BufferRead(name="m", stride=(288, 36, 6, 1)), origins=("conv_b",))

    (breaker,) = compiled(A, row, called, back, B)

    assert (breaker.node, breaker.source, breaker.target) == ("shuffle", LAST, flat)
    tokens = a_buffer(
        "f", BufferRead(name="a", stride=(288, 8, 1)), layout=contiguous((2, 36, 8)), source_node="shuffle"
    )
    end = last("back", BufferRead(name="f", stride=(288, 1, 48, 8)), origins=("conv_b",))
    for others in ((tokens, end), (row, call("m", "f", node="mm", layout=contiguous((2, 64))), back)):
        assert compiled(A, *others, B) == ()


BACK_FROM_N = last("back", a_read("n", PLAIN), origins=("conv_b",))


@pytest.mark.parametrize(
    ("why", "buffers"),
    [
        ("nothing reads it", (A, NORM)),
        ("no convolution reads it", (A, NORM, RELU, call("m", "r", node="mm"))),
        (
            "its input is no convolution's",
            (plain("n", a_read("x", LAST), source_node="norm"), call("b", "n", node="conv_b")),
        ),
        ("it was contiguous all along", (A, plain("n", reads=("nowhere",)), RELU, BACK, B)),
        (
            "another library call lies between",
            (A, call("m", "a", node="mm", layout=contiguous((72, 8))), last("back", a_read("m", PLAIN)), B),
        ),
        (
            "what the convolution reads is written in channels-last from it",
            (A, NORM, last("u", BufferRead(name="n", stride=None)), call("b", "u", node="conv_b")),
        ),
        (
            "what is converted was contiguous since the convolution",
            (
                A,
                plain("n", BufferRead(name="a", stride=None)),
                last("m", BufferRead(name="n", stride=None)),
                plain("o", a_read("m", LAST), source_node="norm"),
                call("b", "o", node="conv_b"),
            ),
        ),
        ("it stays channels-last", (A, last("n", a_read("a", LAST)), call("b", "n", node="conv_b"))),
    ],
)
def test_what_costs_no_neighbour_anything_breaks_nothing(why: str, buffers: tuple[Buffer, ...]) -> None:
    assert compiled(*buffers) == (), why


OPERATOR = (
    *NODES,
    a_node("lif", "mine.lif.default", ("norm",), module="lif", location=a_location(9)),
    a_node("spikes", "<built-in function getitem>", ("lif",), module="lif", location=a_location(9)),
    a_node("lif_1", "mine.lif.default", ("conv_b",), module="lif.1", location=a_location(9)),
)


def test_an_operator_of_any_library_that_is_converted_for_is_named_with_what_it_needs_wherever_it_is_called() -> None:
    frames = contiguous((1, 2, 8, 6, 6))
    seen = BufferRead(name="a", stride=(576, 288, 1, 48, 8))  # [N, C, H, W] as [T, N, C, H, W]
    given = a_buffer("n", seen, layout=frames, origins=("norm", "lif"), operations=("mul",))
    whole = call("l", "n", node="lif", layout=None)
    part = call("m", "l", node="spikes", layout=frames)
    after = a_buffer("s", a_read("m", frames), seen, layout=frames, source_node="relu", operations=("add",))
    back = last("back", BufferRead(name="s", stride=(288, 36, 6, 1)), origins=("conv_b",))
    end = plain("e", a_read("b", LAST), origins=("lif_1",))
    buffers = (A, given, whole, part, after, back, B, end, call("f", "e", node="lif_1", layout=PLAIN))
    known = a_graph(nodes=OPERATOR, buffers=buffers)

    found = compiled(*buffers, nodes=OPERATOR)

    words = "it needs contiguous_format (as traced), gets channels_last and returns contiguous_format"
    assert [(b.node, b.op, b.module, b.reason, len(b.conversions)) for b in found] == [
        ("lif", "mine::lif", "lif", words, 2),  # in front of it, and back behind the sum, which did not lose it
        ("lif_1", "mine::lif", "lif.1", words, 1),
    ]
    asked = (msgspec.structs.replace(c, owner="user") if c.value == "n" else c for c in graph_conversions(known))
    assert [b.node for b in compiled_breakers(Flow(known), tuple(asked))] == ["relu"]  # the call is LD501's
    keeping = (A, call("k", "a", node="lif", layout=PLAIN), last("back", a_read("k", PLAIN), origins=("conv_b",)), B)
    (breaker,) = compiled(*keeping, nodes=OPERATOR)
    assert breaker.reason == "it is given channels_last; it returns its result in contiguous_format"


@pytest.mark.parametrize("kernel", ["torch.ops.mine.lif.default", "WhileLoop"])
def test_an_operator_of_several_results_is_named_though_a_convolution_is_among_its_origins(kernel: str) -> None:
    given = plain("n", a_read("a", LAST), origins=("lif", "conv_a"), operations=("add",))
    whole = msgspec.structs.replace(call("l", "n", node="", layout=None), kernel=kernel, origins=("lif", "conv_a"))
    part = call("m", "l", node="spikes", layout=PLAIN)
    back = last("back", a_read("m", PLAIN), origins=("conv_b",))

    found = compiled(A, given, whole, part, back, B, nodes=OPERATOR)

    assert [(b.node, b.op, len(b.conversions)) for b in found] == [("lif", "mine::lif", 2)]


def test_attention_of_inductors_own_ends_channels_last_and_not_the_convolution_before_it() -> None:
    nodes = (
        *NODES,
        a_node("attention", "flex_attention", ("conv_a",), called="flex_attention"),
        a_node("heads", "<built-in function getitem>", ("attention",)),
    )
    given = plain("n", a_read("a", LAST), source_node="conv_a", operations=("add",))
    template = plain("t", reads=("n",), kernel="triton_tem_fused_convolution_0", source_node="heads")
    back = last("back", a_read("t", PLAIN), origins=("conv_b",))

    (breaker,) = compiled(A, given, template, back, B, nodes=nodes)

    assert (breaker.op, breaker.node, len(breaker.conversions)) == ("flex_attention", "attention", 2)
    assert (
        breaker.reason
        == "its input is in channels_last; Inductor converts this input to contiguous_format for the operation"
    )


def test_a_triton_kernel_of_the_model_is_no_operation_of_torch() -> None:
    kernel = a_node("k", "triton_kernel_wrapper_mutation", ("conv_a",), called="silu")
    buffers = (A, call("c", "a", node="k", layout=PLAIN), last("back", a_read("c", PLAIN), origins=("conv_b",)), B)

    (breaker,) = compiled(*buffers, nodes=(*NODES, kernel))

    assert breaker.op == "triton::silu"


def test_a_value_written_contiguous_for_a_call_is_lost_at_the_call_though_others_read_it_too() -> None:
    nodes = (*NODES, a_node("fft", "aten._fft_r2c.default", ("relu",), called="fft_rfft2"))
    value = plain("n", a_read("a", LAST), source_node="relu", operations=("relu",))

    (breaker,) = compiled(A, value, call("f", "n", node="fft", layout=None), BACK_FROM_N, B, nodes=nodes)

    assert (breaker.op, breaker.node, len(breaker.conversions)) == ("fft_rfft2", "fft", 2)
    assert breaker.reason == "it needs contiguous_format (as traced) and is given channels_last"


def test_in_a_sum_that_runs_through_the_network_each_way_back_is_paid_by_the_nearest_breaker() -> None:
    first = plain("n", a_read("a", LAST), source_node="norm", operations=("mul",))
    back = last("back", a_read("n", PLAIN), origins=("conv_b",))
    again = plain("m", a_read("b", LAST), source_node="shuffle", operations=("mul",))
    kept = plain("k", a_read("n", PLAIN), source_node="relu", operations=("relu",))
    total = plain("t", a_read("k", PLAIN), a_read("m", PLAIN), source_node="relu", operations=("add",))
    last_back = last("back2", a_read("t", PLAIN), origins=("conv_b",))
    buffers = (A, first, back, B, again, kept, total, last_back, call("c", "back2", node="conv_b"))
    found, known = compiled(*buffers), graph_conversions(a_graph(nodes=NODES, buffers=buffers))
    value = {c.id: c.value for c in known}

    assert {b.node: [value[id_] for id_ in b.conversions] for b in found} == {
        "norm": ["n", "back"],
        "shuffle": ["m", "back2"],
    }


def eager(name: str, target: str, *inputs: str, layout: Any = PLAIN, **changes: Any) -> FxNode:
    return a_node(name, target, inputs, layout=layout, **changes)


EAGER = (
    a_placeholder("x", LAST),
    eager("conv_a", "aten.convolution.default", "x", "w", layout=LAST),
    eager(
        "norm", "aten.instance_norm.default", "conv_a", module="net.1", location=a_location(5), called="instance_norm"
    ),
    eager("relu", "aten.relu.default", "norm"),
    eager("conv_b", "aten.convolution.default", "relu", "w", layout=LAST),
)


def copied(node: str, **changes: Any) -> Conversion:
    fields = {"node": node, "graph": "eager", "owner": "framework", "source": LAST, "target": PLAIN}
    fields |= {"id": f"{node} out", "direction": "to_contiguous", "port": "input 0"}
    return a_conversion(**{**fields, **changes})


def entering(node: str = "conv_b", **changes: Any) -> Conversion:
    fields = {"source": PLAIN, "target": LAST, "direction": "to_channels_last"}
    return copied(node, **{**fields, "id": f"{node} in", **changes})


def in_eager(*conversions: Conversion, nodes: tuple[FxNode, ...] = EAGER) -> tuple[LayoutBreaker, ...]:
    return eager_breakers(Flow(a_graph(name="eager", nodes=nodes)), conversions)


def test_an_eager_convolution_that_returns_contiguous_is_named_and_not_the_sum_behind_it() -> None:
    losing = eager("conv_m", "aten.convolution.default", "conv_a", "w", called="conv3d")
    relu, added = eager("relu_m", "aten.relu.default", "conv_m"), eager("added", "aten.add.Tensor", "relu_m", "conv_a")
    last_one = eager("conv_b", "aten.convolution.default", "added", "w", layout=LAST)
    (breaker,) = in_eager(entering(), nodes=(*EAGER[:2], losing, relu, added, last_one))

    assert (breaker.node, breaker.op, breaker.conversions) == ("conv_m", "conv3d", ("conv_b in",))

    direct = eager("conv_b", "aten.convolution.default", "conv_m", "w", layout=LAST)
    (breaker,) = in_eager(entering(), nodes=(*EAGER[:2], losing, direct))
    assert breaker.node == "conv_m"

    # One that was given contiguous is none: what stands in front of it is another matter.
    between = eager("conv_m", "aten.convolution.default", "norm", "w")
    assert in_eager(entering(), nodes=(*EAGER[:3], between, direct)) == ()


VIDEO = (2, 4, 5, 6, 6)
FRAMES, GIVEN = contiguous(VIDEO), channels_last(VIDEO)
WEIGHT = a_placeholder("w", channels_last((4, 4, 3, 3, 3)), tensor="weight")
ONE = (1, 1, 6, 6, 6)


def convolved(name: str, given: str) -> FxNode:
    return eager(name, "aten.convolution.default", given, "w", layout=FRAMES, called="conv3d")


def made_contiguous(node: str, **changes: Any) -> Conversion:
    fields = {"source": GIVEN, "target": FRAMES, "tensor": "weight", "required_by": (node,), "source_value": "w"}
    return copied(node, **{**fields, "id": f"weight of {node}", **changes})


PADDED = (
    a_placeholder("x", GIVEN),
    WEIGHT,
    eager("first", "aten.slice.Tensor", "x", layout=strided_layout((2, 4, 1, 6, 6), GIVEN.stride)),
    eager("pad", "aten.repeat.default", "first", layout=contiguous((2, 4, 2, 6, 6)), called="repeat"),
    eager("cat", "aten.cat.default", "pad", "x", layout=contiguous((2, 4, 7, 6, 6))),
    convolved("conv_1", "cat"),
    eager("relu", "aten.relu.default", "conv_1", layout=FRAMES),
    convolved("conv_2", "relu"),
)


def test_what_is_made_contiguous_for_convolutions_is_paid_by_the_operation_above_that_ended_channels_last() -> None:
    paid = tuple(made_contiguous(name) for name in ("conv_1", "conv_2"))

    (breaker,) = in_eager(*paid, nodes=PADDED)
    assert (breaker.node, breaker.reason) == ("pad", "it is given channels_last_3d; eager returns contiguous_format")
    assert breaker.conversions == ("weight of conv_1", "weight of conv_2")
    assert breaker.source.memory_formats == ("channels_last_3d",)  # of a slice, the format of its order

    zeros = eager("pad", "aten.zeros.default", layout=contiguous((2, 4, 2, 6, 6)))
    (breaker,) = in_eager(*paid, nodes=(*PADDED[:2], zeros, *PADDED[4:]))
    assert (breaker.node, breaker.reason) == (
        "cat",
        "it is given channels_last_3d and, from zeros, contiguous_format; eager returns contiguous_format",
    )

    assert in_eager(made_contiguous("conv_1", source_value=None), nodes=PADDED) == ()  # of its result
    known = a_graph(nodes=PADDED, buffers=(call("a", "x", node="conv_1", layout=FRAMES),))
    assert [b.node for b in compiled_breakers(Flow(known), paid)] == ["pad"]
    assert compiled_breakers(Flow(msgspec.structs.replace(known, direction="backward")), paid) == ()


@pytest.mark.parametrize(
    ("why", "layout", "reason"),
    [
        ("it is small", GIVEN, "it is given channels_last_3d; eager returns contiguous_format"),
        (
            "one channel, strided as channels-last",
            strided_layout(ONE, (216, 1, 36, 6, 1)),
            "it is given channels_last_3d; eager returns contiguous_format",
        ),
        (
            "one channel",
            contiguous(ONE),
            "it is given channels_last_3d with strides that are taken for contiguous_format; "
            "eager returns contiguous_format",
        ),
        ("it was given contiguous", FRAMES, None),
    ],
)
def test_a_convolution_that_returns_contiguous_is_its_own_breaker(why: str, layout: Any, reason: str | None) -> None:
    nodes = (a_placeholder("x", layout), WEIGHT, convolved("conv_1", "x"))
    found = in_eager(made_contiguous("conv_1"), nodes=nodes)
    assert [breaker.reason for breaker in found] == ([] if reason is None else [reason]), why


def test_frames_that_are_seen_as_five_dimensions_are_channels_last_still() -> None:
    split = strided_layout((1, 2, 8, 6, 6), (576, 288, 1, 48, 8))
    nodes = (
        *EAGER[:2],
        eager("view", "aten.view.default", "conv_a", layout=split),
        eager("lif", "mine.lif.default", "view", layout=contiguous((1, 2, 8, 6, 6))),
        eager("flat", "aten.view.default", "lif"),
        eager("conv_b", "aten.convolution.default", "flat", "w", layout=LAST),
    )
    (breaker,) = in_eager(entering(), nodes=nodes)
    assert (breaker.node, breaker.op, breaker.source) == ("lif", "mine::lif", LAST)


def test_an_eager_operation_that_returns_contiguous_is_a_breaker_with_its_copy_or_without() -> None:
    assert in_eager(copied("norm"), entering()) == (
        LayoutBreaker(
            node="norm",
            op="instance_norm",
            reason="it is given channels_last; eager returns contiguous_format",
            location=a_location(5),
            module="net.1",
            source=LAST,
            target=PLAIN,
            conversions=("norm out", "conv_b in"),
        ),
    )

    (breaker,) = in_eager(entering())

    assert (breaker.node, breaker.conversions) == ("norm", ("conv_b in",))
