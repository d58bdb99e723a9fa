from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import Told, a_conversion, a_decision, a_diagnosis, a_graph, a_trial, channels_last, contiguous, kernels

from layoutdoctor.rules.regions import LD212

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Conversion, Finding, Graph

REASON = "call to print at model.py:20"


def an_exit(**changes: Any) -> Conversion:
    fields: dict[str, Any] = {
        "owner": "compiler",
        "source": channels_last(),
        "target": contiguous(),
        "direction": "to_contiguous",
        "module": "body.2",
        "role": "exit",
        "bytes_moved": 1_048_576,
    }
    return a_conversion("out", **{**fields, **changes})


def an_entry(**changes: Any) -> Conversion:
    fields: dict[str, Any] = {
        "owner": "compiler",
        "source": contiguous(),
        "target": channels_last(),
        "direction": "to_channels_last",
        "role": "entry",
        "bytes_moved": 1_048_576,
    }
    return a_conversion("in", **{**fields, **changes})


def graphs(first: Conversion, second: Conversion, **changes: Any) -> tuple[Graph, ...]:
    return (
        a_graph(a_decision(), conversions=(first,)),
        a_graph(**{"decision": a_decision(), "name": "graph 1", "conversions": (second,), **changes}),
    )


def findings(*graphs: Graph, **changes: Any) -> list[Finding]:
    return list(LD212.check(a_diagnosis(a_trial(graphs=graphs, **{"graph_break_reasons": (REASON,), **changes}))))


def test_what_it_says(told: Told) -> None:
    told(
        "A region left and entered again at a break is told with what it costs",
        findings(*graphs(an_exit(), an_entry())),
    )

    fused = {"fused": True, "seconds": None, "location": None, "module": None}
    told(
        "Fused conversions on a device that is not there are a note",
        findings(
            *graphs(an_exit(**fused, node="relu_3"), an_entry(**fused)), kernels=None, measurement=None, is_static=True
        ),
    )

    # One entry answers one exit.
    first = a_graph(a_decision(), conversions=(an_exit(), an_exit()), graph_breaks=1)
    second = a_graph(a_decision(), name="graph 1", conversions=(an_entry(),))
    assert len(findings(first, second, graph_break_reasons=())) == 1

    # What cannot be felt is a note and it is told once.
    slight = graphs(an_exit(seconds=1e-5, bytes_moved=None), an_entry(seconds=1e-5, bytes_moved=None))
    trials = (
        a_trial("inductor-layout-opt-on", graphs=slight, graph_break_reasons=(REASON,)),
        a_trial(graphs=slight, graph_break_reasons=(REASON,), kernels=kernels()),
    )
    assert [(f.configuration, f.severity) for f in LD212.check(a_diagnosis(*trials))] == [("inductor", "note")]


def test_what_is_no_finding() -> None:
    # A break without a conversion there and back is fine.
    for first, second in (
        (an_exit(role="interior"), an_entry()),
        (an_exit(), an_entry(role="interior")),
        (an_exit(), an_entry(source=contiguous((4, 8, 6, 6)), target=channels_last((4, 8, 6, 6)))),
        (an_exit(source=contiguous((4, 1, 6, 6))), an_entry()),
        (an_exit(), an_entry(source=None)),
    ):
        assert findings(*graphs(first, second)) == []

    # A part without convolutions or of another direction is no region.
    for changes in (
        {"decision": None},
        {"decision": a_decision(convolution_count=0, convolutions=())},
        {"direction": "backward"},
    ):
        assert findings(*graphs(an_exit(), an_entry(), **changes)) == []

    # Two graphs without a break are no cut.
    assert findings(*graphs(an_exit(), an_entry()), graph_break_reasons=()) == []
