from __future__ import annotations

from typing import Any

from builders import (
    Told,
    a_decision,
    a_graph,
    a_location,
    a_node,
    a_placeholder,
    a_trial,
    channels_last,
    contiguous,
    finder,
)

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.diagnosis.records import FxNode, GradientLayout, Trial
from layoutdoctor.rules.source import LD504

findings = finder(LD504.check)

POINTWISE = (64, 64, 1, 1)
NOMINAL = GradientLayout(
    parameter="net.2.weight",
    layout=strided_layout(POINTWISE, (64, 1, 1, 1)),
    gradient=strided_layout(POINTWISE, (64, 1, 64, 64)),
)
REAL = GradientLayout(parameter="net.0.weight", layout=contiguous((64, 3, 3, 3)), gradient=channels_last((64, 3, 3, 3)))
NODES = (
    a_placeholder("w", contiguous(POINTWISE), "weight"),
    a_placeholder("x", contiguous((4, 1, 28, 28))),
    a_node("stem", "aten.convolution.default", ("x", "w"), layout=contiguous()),
    a_node("mean", "aten.mean.dim", ("stem",), layout=contiguous((4, 64, 1, 1)), location=a_location(12), module="se"),
    a_node("squeeze", "aten.convolution.default", ("mean", "w"), layout=contiguous((4, 64, 1, 1))),
)


def a_trial_of(*nodes: FxNode, **changes: Any) -> Trial:
    return a_trial(**{"graphs": (a_graph(a_decision(), nodes=nodes),), **changes})


def test_what_is_no_finding() -> None:
    # Gradients in really another order are not told.
    assert findings(a_trial_of(gradient_layouts=(REAL,))) == []

    # Pointwise weights alone are excused.
    nodes = (NODES[0], a_placeholder("x"), a_node("convolution", "aten.convolution.default", ("x", "w")))
    assert findings(a_trial_of(*nodes)) == []

    # Ambiguous values that enter no convolution or have no elements are not told.
    empty = a_placeholder("e", contiguous((0, 1, 8, 8)))
    reader = a_node("convolution", "aten.convolution.default", ("e", "w"))
    backward = a_node("again", "aten.convolution.default", ("x", "w"), backward=True)
    assert findings(a_trial_of(NODES[1], empty, reader, backward, a_node("relu", inputs=("x",)))) == []


def test_what_it_says(told: Told) -> None:
    told("Inputs of convolutions in both formats are a note", findings(a_trial_of(*NODES)))
    message = findings(a_trial_of(gradient_layouts=(NOMINAL,)))[0].message
    off = a_trial("inductor-layout-opt-off", gradient_layouts=(NOMINAL,))
    unknown = a_trial("inductor-layout-opt-off", measurement=None)
    assert message.endswith("is spurious here, no byte has to be moved for it")
    told(
        "Layout optimization is not blamed where it was not seen to do it",
        findings(a_trial_of(gradient_layouts=(NOMINAL,)), off),
        findings(a_trial_of(gradient_layouts=(NOMINAL,)), unknown),
        findings(a_trial("eager", gradient_layouts=(NOMINAL,)), a_trial("inductor-layout-opt-off")),
    )
    told(
        "Several gradients are one finding",
        findings(a_trial_of(gradient_layouts=(NOMINAL, NOMINAL, NOMINAL, NOMINAL)), a_trial("eager")),
    )
    nodes = (*NODES[:3], a_node("again", "aten.convolution.default", ("x", "w")))
    told("One input read twice is one", findings(a_trial_of(*nodes)))

    off = a_trial("inductor-layout-opt-off", gradient_layouts=(REAL,))
    told(
        "Gradients with nominally other strides are the same bytes",
        findings(a_trial_of(gradient_layouts=(REAL, NOMINAL)), off),
    )

    # Each kind is told once over all trials.
    trials = (
        a_trial_of(*NODES, gradient_layouts=(NOMINAL,)),
        a_trial_of(*NODES, name="eager", gradient_layouts=(NOMINAL,)),
    )
    assert [(f.configuration, f.severity) for f in findings(*trials)] == [("inductor", "note")] * 2
