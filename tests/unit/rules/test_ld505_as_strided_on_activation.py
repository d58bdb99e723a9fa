from __future__ import annotations

from typing import Any

from builders import Told, a_graph, a_location, a_node, a_placeholder, a_trial, contiguous, finder

from layoutdoctor.diagnosis.records import Equivalence, FxNode, GraphDirection, Trial
from layoutdoctor.rules.outputs import LD505

findings = finder(LD505.check)

ROLL = a_node("roll", "aten.roll.default", ("x",), layout=contiguous((2, 5, 3, 4)))


def a_call(
    name: str = "as_strided", source: str = "roll", target: str = "aten.as_strided.default", **changes: Any
) -> FxNode:
    fields: dict[str, Any] = {"location": a_location(7), "called": "as_strided", "is_called_directly": True}
    return a_node(name, target, (source,), **{**fields, **changes})


def a_trial_of(*nodes: FxNode, name: str = "eager", direction: GraphDirection = "inference", **changes: Any) -> Trial:
    return a_trial(name, **{"graphs": (a_graph(name="graph 0", direction=direction, nodes=nodes),), **changes})


def test_what_it_says(told: Told) -> None:
    told("As strided on an activation is a warning", findings(a_trial(), a_trial_of(ROLL, a_call())))
    last = a_trial("eager-channels-last", equivalence=Equivalence(status="different"))
    calls = (a_call(), a_call("as_strided_1", location=a_location(9)))
    told(
        "Several calls are one finding and configurations that differ are named",
        findings(a_trial_of(ROLL, *calls), last),
    )
    unknown = a_call(called=None, is_called_directly=None, location=None)
    assert [f.configuration for f in findings(a_trial_of(ROLL, a_call(), name="inductor"))] == ["inductor"]
    assert findings(a_trial_of(ROLL, unknown, name="inductor")) == []
    told(
        "A compiled graph tells where eager was not recorded but only what the model called",
        findings(a_trial_of(unknown)),
    )


def test_which_facts_it_gives() -> None:
    # Its other forms count as well.
    for target in ("aten.as_strided_.default", "aten.as_strided_copy.default", "aten.as_strided_scatter.default"):
        assert len(findings(a_trial_of(ROLL, a_call(target=target)))) == 1

    # The text of the line says who called it.
    node = a_call(
        called=None, is_called_directly=None, location=a_location(7, code="return torch.as_strided(y, (6, 8))")
    )
    assert len(findings(a_trial_of(ROLL, node, name="inductor"))) == 1


def test_what_is_no_finding() -> None:
    # A backward graph is not looked at.
    assert findings(a_trial_of(ROLL, a_call(), name="inductor", direction="backward")) == []

    # A view of a parameter is excused.
    weight = a_placeholder("w", contiguous((64, 64)), "weight")
    nodes = (weight, a_node("t", "aten.t.default", ("w",)), a_call(source="t"))
    assert findings(a_trial_of(*nodes)) == []
    assert findings(a_trial_of(weight, a_call(source="w"))) == []

    # What autograd or a library calls is excused.
    for changes in (
        {"backward": True},
        {"called": "adaptive_avg_pool2d", "is_called_directly": False},
        {"called": None, "is_called_directly": False},
        {"called": None, "location": a_location(7, code="y = self.pool(x)")},
        {"target": "aten.view.default"},
    ):
        assert findings(a_trial_of(ROLL, a_call(**changes))) == []
