from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import (
    Told,
    a_comparison,
    a_conversion,
    a_graph,
    a_location,
    a_node,
    a_placeholder,
    a_ratio,
    a_subject,
    a_trial,
    an_input,
    channels_last,
    contiguous,
    finder,
    kernels,
)

from layoutdoctor.rules.formats import LD502

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import FxNode, Trial

WEIGHT = (64, 64, 3, 3)


def a_weight(name: str, layout: Layout | None = None) -> FxNode:
    return a_placeholder(name, layout or contiguous(WEIGHT), "weight")


def a_convolution_of(name: str, value: str, layout: Layout | None = None) -> FxNode:
    return a_node(name, "aten.convolution.default", (value, "w"), layout=layout or contiguous())


PERMUTE = a_node(
    "permute",
    "aten.permute.default",
    ("layer_norm",),
    layout=channels_last(),
    called="permute",
    location=a_location(7),
    module="n1",
)
NODES = (
    a_weight("w"),
    a_placeholder("x"),
    a_convolution_of("stem", "x"),
    a_node("layer_norm", "aten.native_layer_norm.default", ("stem",), layout=contiguous((4, 56, 56, 64))),
    PERMUTE,
    a_convolution_of("c1", "permute", channels_last()),
    a_node("relu", inputs=("c1",), layout=channels_last()),
    a_convolution_of("c2", "relu", channels_last()),
)
COPIES = tuple(a_conversion(f"copy {i}", owner="framework", seconds=1e-3, bytes_moved=8) for i in range(3))


def an_eager(*nodes: FxNode, **changes: Any) -> Trial:
    graph = a_graph(name="eager", nodes=nodes or NODES)
    return a_trial("eager", **{"graphs": (graph,), "kernels": kernels(*COPIES, a_conversion("reorder 0")), **changes})


findings = finder(LD502.check)


def test_which_facts_it_gives() -> None:
    # A flip is found where the format began not where a convolution first reads it.
    relu = a_node("relu_0", inputs=("permute",), layout=channels_last())
    added = a_node("add", "aten.add.Tensor", ("relu_0", "permute"), layout=channels_last())
    nodes = (*NODES[:5], relu, added, a_convolution_of("c1", "add", channels_last()))
    assert [f.evidence[:2] for f in findings(an_eager(*nodes))] == [("permute", "c1")]

    # An input in both formats was not chosen.
    subject = a_subject(inputs=(an_input(channels_last((4, 1, 28, 28))), an_input(contiguous((4, 10)))))
    assert len(findings(an_eager(), subject=subject)) == 1

    # A call of the model to channels last was chosen.
    clone = a_node("clone", "aten.clone.default", ("x",), layout=channels_last(), called="contiguous")
    nodes = (NODES[0], NODES[1], clone, a_convolution_of("c1", "clone", channels_last()))
    asked = a_conversion("u0", owner="user", graph="eager", node="clone", direction="to_channels_last")
    unnamed = (*nodes[:2], a_node("clone", "aten.clone.default", ("x",), layout=channels_last()), nodes[3])
    assert findings(an_eager(*nodes)) == []
    assert findings(an_eager(*unnamed, kernels=kernels(asked))) == []
    assert len(findings(an_eager(*unnamed))) == 1


def test_what_it_suggests(told: Told) -> None:
    nodes = (*NODES, a_weight("w1"), a_weight("w2", channels_last(WEIGHT)))
    told("Parameters in both formats are a note", findings(an_eager(*nodes)))
    for median in (1.2, 0.8):
        comparison = a_comparison(a_ratio("eager", 0.6), a_ratio("eager-channels-last", median))
        told(
            "What channels last was measured to do is told",
            findings(an_eager(), a_trial("eager-channels-last"), comparison=comparison),
        )

    shape = (8, 8, 3, 3, 3)
    graph = a_graph(nodes=(a_weight("w1", contiguous(shape)), a_weight("w2", channels_last(shape))))
    told(
        "Without eager the baselines graph inputs say what the parameters are",
        findings(a_trial(graphs=(graph,), is_static=True)),
    )


def test_what_is_no_finding() -> None:
    # A contiguous model that stays so is no finding.
    assert findings(an_eager(*NODES[:3])) == []

    # An input given in channels last was chosen.
    subject = a_subject(inputs=(an_input(channels_last()),))
    assert findings(an_eager(), subject=subject) == []

    # A placeholder in channels last was chosen.
    nodes = (a_weight("w"), a_placeholder("x", channels_last()), a_convolution_of("c1", "x"))
    assert findings(an_eager(*nodes)) == []

    # Pointwise weights and single channels never count.
    both = channels_last((4, 1, 56, 56))
    nodes = (
        a_weight("w", channels_last((64, 64, 1, 1))),
        a_weight("w1"),
        a_placeholder("x", both),
        a_convolution_of("stem", "x"),
    )
    assert findings(an_eager(*nodes)) == []

    # The backward is not looked at.
    nodes = (*NODES[:4], PERMUTE, a_node("c1", "aten.convolution.default", ("permute", "w"), backward=True))
    assert findings(an_eager(*nodes)) == []

    # A channels last model is no mixture.
    nodes = (a_weight("w", channels_last(WEIGHT)), *NODES[1:])
    assert findings(an_eager(*nodes)) == []


def test_what_it_says(told: Told) -> None:
    told("The first flip is named with what follows it", findings(an_eager()))
    told("Without times it is a note and without conversions there are none told", findings(an_eager(kernels=None)))

    bare = a_node("permute", "aten.permute.default", ("x",), layout=channels_last())
    nodes = (NODES[0], NODES[1], bare, a_convolution_of("c1", "permute", channels_last()))
    told("A flip without a module or a line is named by its operation", findings(an_eager(*nodes, kernels=None)))
