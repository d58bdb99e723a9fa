"""Copies of a profiled eager iteration: which of them convert a layout, whose they are, and of what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from builders import a_graph, a_location, a_node, a_placeholder, channels_last, contiguous

from layoutdoctor.examination.graphs.conversions import with_copies_around, with_eager_conversions
from layoutdoctor.examination.kernels.operations import HostOperation, nested

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.graph import FxNode, Graph
    from layoutdoctor.diagnosis.layout import Layout

IMAGE = (2, 8, 6, 6)
PLAIN, LAST = contiguous(IMAGE), channels_last(IMAGE)
BYTES = 2 * 4 * 2 * 8 * 6 * 6
CONVOLUTION = "aten.convolution.default"


def copied(source: Layout, target: Layout, **changes: Any) -> HostOperation:
    """An ``aten::copy_`` of 2 us, 4 us after the start."""
    fields: dict[str, Any] = {
        "name": "aten::copy_",
        "start_seconds": 4e-6,
        "seconds": 2e-6,
        "thread": "1",
        "shapes": (target.shape, source.shape, ()),
        "strides": (target.stride, source.stride, ()),
    }
    return HostOperation(**{**fields, **changes})


def around(*names: str) -> list[HostOperation]:
    """Operations around the copy, outermost first."""
    return [HostOperation(name, n * 1e-7, 10e-6 - n * 2e-7, "1") for n, name in enumerate(names)]


def tree(node: FxNode | None, operation: HostOperation, *names: str) -> list[HostOperation]:
    """The copy inside of others; the innermost of these ran the node."""
    entries = nested([*around(*names), operation])
    if node is not None:
        entries[max(0, len(names) - 1)].node = node
    return entries


def graph(*nodes: FxNode, **changes: Any) -> Graph:
    return a_graph(name="eager", nodes=nodes, **changes)


def only(graph: Graph, tree: list[HostOperation]) -> Conversion:
    (found,) = with_eager_conversions(graph, tree, (), {}).conversions
    return found


X = a_placeholder("x", LAST)
Y = a_node("y", "aten.relu.default", ("x",), layout=LAST)


def convolution(**changes: Any) -> FxNode:
    return a_node("convolution", CONVOLUTION, ("y", "w"), **{"layout": PLAIN, **changes})


def back(*inputs: str, **changes: Any) -> FxNode:
    fields = {"layout": PLAIN, "backward": True}
    return a_node("back", "aten.convolution_backward.default", inputs, **{**fields, **changes})


def of_a_node(node: FxNode, *names: str, others: tuple[FxNode, ...] = (X, Y), **changes: Any) -> Conversion:
    """The conversion that one copy inside of a node's operations is."""
    fields = {"source": LAST, "target": PLAIN} | changes
    return only(graph(*others, node), tree(node, copied(fields["source"], fields["target"]), *names))


def copying(**changes: Any) -> FxNode:
    return a_node(
        "clone", "aten.clone.default", ("y",), **{"called": "contiguous", "is_called_directly": True, **changes}
    )


def of_a_norm() -> Conversion:
    norm = a_node("norm", "aten.instance_norm.default", ("y",), layout=PLAIN, module="net.1", is_called_directly=False)
    entries = tree(norm, copied(LAST, PLAIN), "aten::instance_norm", "aten::contiguous", "aten::clone")
    entries[0].node, entries[2].node = norm, None
    return only(graph(X, Y, norm), entries)


W = a_placeholder("w", channels_last((16, 8, 3, 3)), "weight")
KERNEL, UNKNOWN = channels_last((16, 8, 3, 3)), channels_last((5, 5, 5, 5))
ELSEWHERE = a_node("y", "aten.relu.default", ("x",), layout=channels_last((2, 4, 9, 9)))
WANTS = "aten::convolution wants its tensors in one memory format, that of input or weight"


def read_by_a_convolution(source: Layout, **changes: Any) -> Conversion:
    others = changes.pop("others", (X, Y, W))
    target = contiguous(source.shape)
    return of_a_node(convolution(), "aten::convolution", others=others, source=source, target=target)


@pytest.mark.parametrize(
    ("why", "found", "facts"),
    [
        (
            "inside an operation of torch",
            of_a_norm(),
            {
                **{"owner": "framework", "op": "aten::instance_norm", "node": "norm", "port": "input 0"},
                **{"cause": "made inside aten::instance_norm", "source_value": "y", "role": "interior"},
            },
        ),
        *(
            ("no line of the model asked for it", of_a_node(copying(**own), "aten::clone"), {"owner": "framework"})
            for own in ({"called": "reshape"}, {"is_called_directly": False}, {"is_called_directly": None})
        ),
        *(
            (
                "what a convolution reads is told by shape and strides",
                read_by_a_convolution(source),
                {
                    **{"tensor": kind, "port": port, "source_value": value, "role": role},
                    **{"cause": WANTS, "required_by": ("convolution",)},
                },
            )
            for source, kind, port, value, role in (
                (LAST, "activation", "input 0", "y", "interior"),
                (KERNEL, "weight", "input 1", "w", None),
                (UNKNOWN, "unknown", None, None, "interior"),
            )
        ),
        (
            "a convolution's backward reads a gradient",
            of_a_node(
                *(back("y", "x", "w"), "aten::convolution_backward"),
                others=(a_placeholder("x", channels_last((2, 4, 9, 9))), Y, W),
            ),
            {"tensor": "gradient", "port": "input 0", "role": "interior"},
        ),
        *(
            (
                "of no argument: of the result, or of nothing known",
                of_a_node(
                    a_node("pool", "aten.adaptive_avg_pool2d.default", ("y",), layout=returned),
                    "aten::adaptive_avg_pool2d",
                    others=(X, ELSEWHERE),
                ),
                {"port": port, "source_value": None, "node": "pool"},
            )
            for returned, port in ((PLAIN, "output 0"), (contiguous((2, 8, 3, 3)), None))
        ),
        *(
            (
                "what a convolution returns in another layout is its result",
                of_a_node(node, "aten::convolution", others=(X, ELSEWHERE, W)),
                {"tensor": kind, "port": port, "source_value": None},
            )
            for node, kind, port in (
                (convolution(), "activation", "output 0"),
                (back("y", "w"), "gradient", "output 0"),
                (back("y", "w", layout=LAST), "gradient", None),
            )
        ),
        (
            "a cast with it has both types",
            of_a_node(a_node("to", "aten._to_copy.default", ("y",), dtype="bfloat16"), "aten::_to_copy"),
            {"dtype": "float32", "target_dtype": "bfloat16", "bytes_moved": 6 * 2 * 8 * 6 * 6},
        ),
        (
            "a copy into a tensor that is there",
            of_a_node(
                a_node("copied", "aten.copy_.default", ("y", "w"), layout=contiguous(KERNEL.shape), called="copy_"),
                others=(X, Y, W),
                source=KERNEL,
                target=contiguous(KERNEL.shape),
            ),
            {"tensor": "weight", "source_value": "w", "dtype": W.dtype},
        ),
        (
            "no node is known for it",
            only(graph(X), tree(None, copied(LAST, PLAIN), "aten::somewhere")),
            {
                **dict.fromkeys(("node", "graph", "role", "port", "bytes_moved")),
                **{"tensor": "unknown", "owner": "framework", "cause": "made inside aten::somewhere"},
            },
        ),
    ],
)
def test_a_copy_has_its_owner_and_its_tensor(why: str, found: Conversion, facts: dict[str, Any]) -> None:
    assert {name: getattr(found, name) for name in facts} == facts


def test_what_is_copied_outside_of_all_graphs_stands_with_the_last_of_them() -> None:
    weight = a_node("dw", "getitem", ("back",), layout=LAST, module="stem", location=a_location(3))
    twice = tuple(msgspec.structs.replace(weight, name=name) for name in ("dw", "dw2"))
    forward = a_graph(name="graph 0", direction="forward", nodes=(weight,), output_names=("dw",))
    given = tree(None, copied(LAST, PLAIN), "torch::autograd::AccumulateGrad")
    between = tree(None, copied(PLAIN, LAST), "aten::contiguous")
    for returned, place in (((weight,), "stem"), (twice, None)):
        names = tuple(node.name for node in returned)
        backward = a_graph(name="graph 1", direction="backward", nodes=returned, output_names=names)
        before, after = with_copies_around([forward, backward], [*given, *between], {})
        gradient, other = after.conversions

        assert before.conversions == ()
        assert (gradient.tensor, gradient.direction, gradient.bytes_moved) == ("gradient", "to_contiguous", BYTES)
        assert (gradient.owner, gradient.module) == ("framework", place)
        assert gradient.cause == "autograd gives a gradient the strides of its parameter"
        assert (other.tensor, other.op, other.module) == ("unknown", "aten::contiguous", None)
    assert with_copies_around([], [*given], {}) == ()
