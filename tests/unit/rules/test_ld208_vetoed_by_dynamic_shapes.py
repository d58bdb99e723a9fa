from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import (
    Told,
    a_comparison,
    a_convolution,
    a_decision,
    a_diagnosis,
    a_graph,
    a_node,
    a_ratio,
    a_subject,
    a_trial,
    an_input,
    contiguous,
)

from layoutdoctor.diagnosis.layout import Layout
from layoutdoctor.rules.decisions import LD208

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Finding, FxNode

CONVOLUTIONS = (a_convolution("convolution_1", channels_last=False), a_convolution("convolution_2"))
VETO = a_decision(
    *CONVOLUTIONS,
    applied=False,
    rule="dynamic-shape",
    explanation="a convolution has symbolic sizes (body.0)",
    deciding_nodes=("convolution_1",),
)


def symbolic(*shape: int | str) -> Layout:
    return Layout(shape, shape, ())


def placeholder(name: str, layout: Layout | None, **changes: Any) -> FxNode:
    return a_node(name, name, op="placeholder", layout=layout, **{"tensor": "activation", **changes})


IMAGE = placeholder("arg3_1", symbolic("s77", 3, "s27", 56))


def findings(*nodes: FxNode, decision: Any = VETO, **changes: Any) -> list[Finding]:
    return list(LD208.check(a_diagnosis(a_trial(graphs=(a_graph(decision, nodes=nodes),)), **changes)))


def test_what_it_says(told: Told) -> None:
    size, weight = placeholder("arg0_1", None, tensor=None), placeholder("arg1_1", contiguous((64, 3, 3, 3)))
    told("The symbolic dimensions of the input are named", findings(size, weight, IMAGE))


def test_what_it_suggests(told: Told) -> None:
    twins = a_subject(inputs=(an_input(name="x"), an_input(name="y")))
    told("An input that could be one of two keeps the graphs name", findings(IMAGE, subject=twins))
    weight = placeholder("arg1_1", symbolic("s1", 3, 3, 3), tensor="weight")
    decision = a_decision(applied=False, rule="dynamic-shape", explanation="the input of convolution has the size s77")
    told("Without a symbolic input torchs own reason stands", findings(weight, decision=decision))
    told(
        "It is a warning where a way around was measured faster",
        findings(IMAGE, comparison=a_comparison(a_ratio("inductor-channels-last", 1.2))),
    )


def test_what_is_no_finding() -> None:
    # Symbolic sizes without a veto are no finding.
    assert findings(IMAGE, decision=a_decision()) == []

    # Another veto is another rules matter.
    assert findings(IMAGE, decision=a_decision(applied=False, rule="small-channels")) == []
