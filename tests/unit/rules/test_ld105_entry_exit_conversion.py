from __future__ import annotations

from typing import Any

from builders import (
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

from layoutdoctor.diagnosis.records import Conversion, Finding, Graph
from layoutdoctor.rules.ld105_entry_exit_conversion import check

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
EXIT_WORDS = (
    "the exit keeps the strides that eager returns (keep_output_stride, pytorch PR #102376), which is needed unless "
    "the consumer takes channels_last"
)


def findings(*conversions: Conversion, graphs: tuple[Graph, ...] | None = None, **changes: Any) -> list[Finding]:
    trial = a_trial(graphs=graphs or (a_graph(DECISION, conversions=conversions),))
    return list(check(a_diagnosis(trial, **changes)))


def test_one_in_and_one_out_are_named_as_such_and_not_accused() -> None:
    assert findings(ENTRY, EXIT, *WEIGHTS) == [
        Finding(
            code="LD105",
            rule="entry-exit-conversion",
            severity="note",
            configuration="inductor",
            message="1 conversion in, 1 out (fused) for 4 convolutions that run channels-last: 2.00 MiB moved; "
            "and 4 weights, once per call without freezing",
            suggestion="nothing is wrong here: a channels_last input saves the conversion at the entry; " + EXIT_WORDS,
            location=a_location(3),
            module="body.0",
            bytes_moved=2 << 20,
            evidence=("in", "out"),
        )
    ]


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


def test_what_it_says() -> None:
    # The backward graph is left out.
    forward = a_graph(DECISION, name="forward", direction="forward", conversions=(ENTRY,))
    backward = a_graph(DECISION, name="backward", direction="backward", conversions=(EXIT, WEIGHTS[0]))
    found = findings(graphs=(forward, backward), subject=a_subject(mode="training"))
    assert [f.message for f in found] == [
        "1 conversion in, none out for 4 convolutions that run channels-last: 1.00 MiB moved"
    ]

    # Times are told where they were recorded.
    entry = a_copy("in", "entry", seconds=3e-4, seconds_source="estimated")
    assert [(f.message, f.seconds) for f in findings(entry, EXIT)] == [
        (
            "1 conversion in, 1 out (fused) for 4 convolutions that run channels-last: "
            "300 us of 15.0 ms kernel time (2.0 %, estimated)",
            3e-4,
        )
    ]

    # Without times and bytes they are counted.
    assert [f.message for f in findings(a_copy("in", "entry", bytes_moved=None))] == [
        "1 conversion in, none out for 4 convolutions that run channels-last"
    ]


def test_what_it_suggests() -> None:
    # Several inputs of which one is fused and none out.
    entries = (ENTRY, a_copy("in 2", "entry", fused=True, bytes_moved=None))
    subject = a_subject(inputs=(an_input(contiguous((2, 4, 8, 16, 16))),), mode="training")
    graph = a_graph(a_decision(a_convolution()), conversions=(*entries, WEIGHTS[0]))
    assert [(f.message, f.suggestion) for f in findings(graphs=(graph,), subject=subject)] == [
        (
            "2 conversions in (1 fused), none out for 1 convolution that runs channels-last: 1.00 MiB moved; "
            "and 1 weight, on each step",
            "nothing is wrong here: a channels_last_3d input saves the conversion at the entry",
        )
    ]

    # Only the exit.
    assert [(f.message, f.suggestion) for f in findings(EXIT)] == [
        (
            "no conversion in, 1 out (fused) for 4 convolutions that run channels-last: 1.00 MiB moved",
            "nothing is wrong here: " + EXIT_WORDS,
        )
    ]
