from __future__ import annotations

from typing import Any

from builders import (
    a_comparison,
    a_convolution,
    a_decision,
    a_diagnosis,
    a_graph,
    a_location,
    a_node,
    a_ratio,
    a_subject,
    a_trial,
    an_input,
    contiguous,
)

from layoutdoctor.diagnosis.layout import Layout
from layoutdoctor.diagnosis.records import Finding, FxNode
from layoutdoctor.rules.ld208_vetoed_by_dynamic_shapes import check

CONVOLUTIONS = (a_convolution("convolution_1", channels_last=False), a_convolution("convolution_2"))
VETO = a_decision(
    *CONVOLUTIONS,
    applied=False,
    rule="dynamic-shape",
    explanation="a convolution has symbolic sizes (body.0)",
    deciding_nodes=("convolution_1",),
)
ADVICE = "where the sizes do not change, compile with dynamic=False, or call torch._dynamo.mark_static(x)"


def symbolic(*shape: int | str) -> Layout:
    return Layout(shape, shape, ())


def placeholder(name: str, layout: Layout | None, **changes: Any) -> FxNode:
    return a_node(name, name, op="placeholder", layout=layout, **{"tensor": "activation", **changes})


IMAGE = placeholder("arg3_1", symbolic("s77", 3, "s27", 56))


def findings(*nodes: FxNode, decision: Any = VETO, **changes: Any) -> list[Finding]:
    return list(check(a_diagnosis(a_trial(graphs=(a_graph(decision, nodes=nodes),)), **changes)))


def test_the_symbolic_dimensions_of_the_input_are_named() -> None:
    size, weight = placeholder("arg0_1", None, tensor=None), placeholder("arg1_1", contiguous((64, 3, 3, 3)))

    assert findings(size, weight, IMAGE) == [
        Finding(
            code="LD208",
            rule="vetoed-by-dynamic-shapes",
            severity="note",
            configuration="inductor",
            message="layout optimization skipped for 2 convolutions because of dynamic shapes: dimension 0 of x is s77 "
            "and dimension 2 of x is s27 (pytorch #102670)",
            suggestion=ADVICE,
            location=a_location(),
            module="body.0.0",
            evidence=("convolution_1",),
        )
    ]


def test_an_input_that_could_be_one_of_two_keeps_the_graphs_name() -> None:
    twins = a_subject(inputs=(an_input(name="x"), an_input(name="y")))

    assert [f.message for f in findings(IMAGE, subject=twins)] == [
        "layout optimization skipped for 2 convolutions because of dynamic shapes: dimension 0 of arg3_1 is s77 "
        "and dimension 2 of arg3_1 is s27 (pytorch #102670)"
    ]


def test_what_it_suggests() -> None:
    # Without a symbolic input torchs own reason stands.
    weight = placeholder("arg1_1", symbolic("s1", 3, 3, 3), tensor="weight")
    decision = a_decision(applied=False, rule="dynamic-shape", explanation="the input of convolution has the size s77")
    assert [(f.message, f.suggestion) for f in findings(weight, decision=decision)] == [
        (
            "layout optimization skipped for 1 convolution because of dynamic shapes: the input of convolution has the "
            "size s77",
            ADVICE,
        )
    ]

    # It is a warning where a way around was measured faster.
    found = findings(IMAGE, comparison=a_comparison(a_ratio("inductor-channels-last", 1.2)))
    assert [(f.severity, f.suggestion) for f in found] == [
        (
            "warning",
            f"{ADVICE}; inductor-channels-last runs at 1.20x the speed of inductor (99 % interval 1.17x to 1.23x)",
        )
    ]


def test_what_is_no_finding() -> None:
    # Symbolic sizes without a veto are no finding.
    assert findings(IMAGE, decision=a_decision()) == []

    # Another veto is another rules matter.
    assert findings(IMAGE, decision=a_decision(applied=False, rule="small-channels")) == []
