from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import (
    Told,
    a_comparison,
    a_conversion,
    a_convolution,
    a_decision,
    a_diagnosis,
    a_graph,
    a_location,
    a_ratio,
    a_subject,
    a_trial,
    an_input,
    channels_last,
    contiguous,
)

from layoutdoctor.rules.regions import LD105

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Conversion, Finding, Graph

DECISION = a_decision(*(a_convolution(f"convolution_{i}") for i in range(4)))


def a_copy(id: str, role: str | None, **changes: Any) -> Conversion:
    fields: dict[str, Any] = {
        "owner": "compiler",
        "graph": "graph 0",
        "role": role,
        "source": contiguous(),
        "target": channels_last(),
        "direction": "to_channels_last",
        "seconds": None,
        "bytes_moved": 1 << 20,
    }
    return a_conversion(id, **{**fields, **changes})


ENTRY = a_copy("in", "entry", location=a_location(3), module="body.0")
EXIT = a_copy("out", "exit", direction="to_contiguous", fused=True)
WEIGHTS = tuple(a_copy(f"w{i}", "entry", tensor="weight") for i in range(4))


def findings(*conversions: Conversion, graphs: tuple[Graph, ...] | None = None, **changes: Any) -> list[Finding]:
    trial = a_trial(graphs=graphs or (a_graph(DECISION, conversions=conversions),))
    return list(LD105.check(a_diagnosis(trial, **changes)))


def test_what_is_no_finding() -> None:
    # Without conversions there is nothing to explain.
    assert findings(*WEIGHTS) == []

    # Without channels last convolutions it is silent.
    decision = a_decision(a_convolution(channels_last=False), channels_last_convolution_count=0)
    assert findings(graphs=(a_graph(decision, conversions=(ENTRY,)),)) == []
    assert findings(graphs=(a_graph(None, conversions=(ENTRY,)),)) == []

    # A conversion in between is another matter.
    for role in ("interior", None):
        assert findings(ENTRY, a_copy("mid", role)) == []


def test_which_facts_it_gives() -> None:
    # A measured gain of channels last input is told by its own rule.
    assert findings(ENTRY, comparison=a_comparison(a_ratio("inductor-channels-last", 1.25))) == []
    assert len(findings(ENTRY, comparison=a_comparison(a_ratio("inductor-channels-last", 1.0)))) == 1

    # An input made ready for a matrix product is no convolutions.
    product = a_copy("in", "entry", required_by=("mm",))
    assert findings(product) == []
    assert len(findings(a_copy("in", "entry", required_by=("mm", "convolution_1")))) == 1


def test_what_it_says(told: Told) -> None:
    told("One in and one out are named as such and not accused", findings(ENTRY, EXIT, *WEIGHTS))
    forward = a_graph(DECISION, name="forward", direction="forward", conversions=(ENTRY,))
    backward = a_graph(DECISION, name="backward", direction="backward", conversions=(EXIT, WEIGHTS[0]))
    told("The backward graph is left out", findings(graphs=(forward, backward), subject=a_subject(mode="training")))

    entry = a_copy("in", "entry", seconds=3e-4, seconds_source="estimated")
    told("Times are told where they were recorded", findings(entry, EXIT))
    told("Without times and bytes they are counted", findings(a_copy("in", "entry", bytes_moved=None)))


def test_what_it_suggests(told: Told) -> None:
    entries = (ENTRY, a_copy("in 2", "entry", fused=True, bytes_moved=None))
    subject = a_subject(inputs=(an_input(contiguous((2, 4, 8, 16, 16))),), mode="training")
    graph = a_graph(a_decision(a_convolution()), conversions=(*entries, WEIGHTS[0]))
    told("Several inputs of which one is fused and none out", findings(graphs=(graph,), subject=subject))
    told("Only the exit", findings(EXIT))
