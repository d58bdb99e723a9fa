from __future__ import annotations

from typing import Any

from builders import a_decision, a_graph, a_location, a_node, a_placeholder, a_trial, channels_last, contiguous, finder

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.diagnosis.records import Finding, FxNode, GradientLayout, Trial
from layoutdoctor.rules.ld504_ambiguous_format import check

findings = finder(check)

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


def test_gradients_with_nominally_other_strides_are_the_same_bytes() -> None:
    off = a_trial("inductor-layout-opt-off", gradient_layouts=(REAL,))

    assert findings(a_trial_of(gradient_layouts=(REAL, NOMINAL)), off) == [
        Finding(
            code="LD504",
            rule="ambiguous-format",
            severity="note",
            configuration="inductor",
            message="1 gradient has nominally other strides than the parameter, but the same bytes in both formats "
            "(net.2.weight: (64, 1, 1, 1) and (64, 1, 64, 64)): the warning 'Grad strides do not match bucket view "
            "strides' (pytorch issue #47163) is spurious here; it comes from layout optimization: "
            "inductor-layout-opt-off does not have it",
            suggestion="nothing to do: the strides of dimensions of size 1 are never used",
            evidence=("net.2.weight",),
        )
    ]


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


def test_what_it_says() -> None:
    # Layout optimization is not blamed where it was not seen to do it.
    message = findings(a_trial_of(gradient_layouts=(NOMINAL,)))[0].message
    off = a_trial("inductor-layout-opt-off", gradient_layouts=(NOMINAL,))
    unknown = a_trial("inductor-layout-opt-off", measurement=None)
    assert message.endswith("is spurious here")
    assert findings(a_trial_of(gradient_layouts=(NOMINAL,)), off)[0].message == message
    assert findings(a_trial_of(gradient_layouts=(NOMINAL,)), unknown)[0].message == message
    assert findings(a_trial("eager", gradient_layouts=(NOMINAL,)), a_trial("inductor-layout-opt-off"))[0].message == (
        message
    )

    # Several gradients are one finding.
    found = findings(a_trial_of(gradient_layouts=(NOMINAL, NOMINAL, NOMINAL, NOMINAL)), a_trial("eager"))
    assert len(found) == 1
    assert found[0].message.startswith(
        "4 gradients have nominally other strides than the parameter, but the same bytes"
    )

    # One input read twice is one.
    nodes = (*NODES[:3], a_node("again", "aten.convolution.default", ("x", "w")))
    assert [(f.message, f.location) for f in findings(a_trial_of(*nodes))] == [
        (
            "an input of convolutions satisfies contiguous_format and channels_last at once (x 4x1x28x28): "
            "the same bytes in both, so no conversion of it can be due",
            None,
        )
    ]


def test_inputs_of_convolutions_in_both_formats_are_a_note() -> None:
    assert findings(a_trial_of(*NODES)) == [
        Finding(
            code="LD504",
            rule="ambiguous-format",
            severity="note",
            configuration="inductor",
            message="2 inputs of convolutions satisfy contiguous_format and channels_last at once (x 4x1x28x28 and "
            "mean 4x64x1x1): the same bytes in both, so no conversion of them can be due",
            suggestion="nothing to do: converting such a tensor changes no byte, and is_contiguous() is true for both "
            "formats",
            evidence=("x", "mean"),
        )
    ]


def test_each_kind_is_told_once_over_all_trials() -> None:
    trials = (
        a_trial_of(*NODES, gradient_layouts=(NOMINAL,)),
        a_trial_of(*NODES, name="eager", gradient_layouts=(NOMINAL,)),
    )

    assert [(f.configuration, f.severity) for f in findings(*trials)] == [("inductor", "note")] * 2
