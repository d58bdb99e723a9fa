from __future__ import annotations

from typing import Any

from builders import (
    a_comparison,
    a_configuration,
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
    kernels,
)

from layoutdoctor.diagnosis.records import Conversion, Decision, Finding, Trial
from layoutdoctor.rules.ld206_forward_backward_mismatch import check

BACKWARD = tuple(f"convolution_backward_{i}" for i in range(4))
UNCOUNTED = a_decision(
    *(a_convolution(name, channels_last=False, is_backward=True) for name in BACKWARD),
    applied=False,
    rule="only-backward-convolutions",
    explanation="the graph has only backward convolutions",
)
VETO = a_decision(applied=False, rule="grouped-convolution", explanation="a grouped convolution vetoes it")
ADVICE = (
    "give the model and its input channels_last, which the backward keeps, or compile with "
    'options={"layout_optimization": False}; torch 2.15 counts backward convolutions'
)
NOT_COUNTED = (
    "layout optimization is on in the forward and off in the backward: Inductor counts 0 convolutions there, its "
    "4 convolution_backward are not counted (pytorch #189239)"
)
NONE_SEEN = "no conversion of an activation or gradient was seen to follow from it"


def laid_out_anew(id: str, **changes: Any) -> Conversion:
    fields: dict[str, Any] = {
        "owner": "compiler",
        "kernel": "cpp_fused_3",
        "graph": "graph 1",
        "source": channels_last(),
        "target": contiguous(),
        "direction": "to_contiguous",
        "tensor": "gradient",
        "seconds": None,
        "bytes_moved": 1_048_576,
        "required_by": (BACKWARD[0],),
        "role": "interior",
    }
    return a_conversion(id, **{**fields, **changes})


def a_step(
    *conversions: Conversion,
    library: tuple[Conversion, ...] = (),
    forward: Decision | None = None,
    backward: Decision = UNCOUNTED,
    name: str = "inductor",
    **changes: Any,
) -> Trial:
    graphs = (
        a_graph(forward or a_decision(), direction="forward"),
        a_graph(backward, name="graph 1", direction="backward", conversions=conversions),
    )
    return a_trial(name, graphs=graphs, **{"kernels": kernels(*library), **changes})


def findings(*trials: Trial, **changes: Any) -> list[Finding]:
    return list(check(a_diagnosis(*trials, **{"subject": a_subject(mode="training"), **changes})))


def test_a_backward_without_layout_optimization_is_told_with_what_is_laid_out_anew_for_it() -> None:
    fused = laid_out_anew("buf1", fused=True)
    reorder = laid_out_anew("reorder 7", owner="library", seconds=1.5e-3, location=a_location(12), module="dw")

    assert findings(a_step(fused, laid_out_anew("buf2"), library=(reorder,))) == [
        Finding(
            code="LD206",
            rule="forward-backward-mismatch",
            severity="warning",
            configuration="inductor",
            message=f"{NOT_COUNTED}; 3 tensors are laid out anew for them (2 by the compiler and 1 by the library, "
            "1 of them in kernels that compute as well), 3.00 MiB, 1.50 ms of 15.0 ms kernel time (10 %)",
            suggestion=ADVICE,
            location=a_location(12),
            module="dw",
            seconds=1.5e-3,
            bytes_moved=3 * 1_048_576,
            evidence=("buf1", "buf2", "reorder 7"),
        )
    ]


def test_which_facts_it_gives() -> None:
    # A conversion of the library in another graph is not counted.
    reorder = laid_out_anew("reorder 0", owner="library", graph="graph 0")
    assert [f.evidence for f in findings(a_step(library=(reorder,)))] == [("graph 1",)]

    # It is told once.
    on = a_step(laid_out_anew("buf1"), name="inductor-layout-opt-on")
    assert [f.configuration for f in findings(on, a_step(laid_out_anew("buf1")))] == ["inductor"]


def test_what_is_no_finding() -> None:
    # It is silent where channels last input left nothing to lay out.
    given = a_subject(mode="training", inputs=(an_input(channels_last((4, 3, 56, 56))),))
    assert findings(a_step(name="inductor-channels-last")) == []
    assert findings(a_step(), subject=given) == []

    # A backward that follows a vetoed forward is no mismatch.
    assert findings(a_step(laid_out_anew("buf1"), forward=VETO)) == []

    # Both halves with layout optimization are no mismatch.
    assert findings(a_step(laid_out_anew("buf1"), backward=a_decision())) == []

    # A forward whose decision was not recorded is compared with nothing.
    assert findings(a_step(laid_out_anew("buf1"), forward=a_decision(applied=None))) == []

    # A configuration with layout optimization off is excused.
    off = a_configuration("other", layout_optimization="off")
    assert findings(a_step(laid_out_anew("buf1"), configuration=off)) == []


def test_what_it_says() -> None:
    # A forward off and a backward on are a mismatch too.
    assert [f.message for f in findings(a_step(forward=VETO, backward=a_decision(rule="no-veto")))] == [
        "layout optimization is off in the forward and on in the backward: every convolution runs on a CPU with "
        f"oneDNN, where Inductor always chooses channels-last; {NONE_SEEN}"
    ]

    # A backward that another rule vetoed says which.
    assert [f.message for f in findings(a_step(backward=VETO))] == [
        "layout optimization is on in the forward and off in the backward, by grouped-convolution: "
        f"a grouped convolution vetoes it; {NONE_SEEN}"
    ]

    # A graph lowered for a device that is not there is told with bytes only.
    trial = a_step(laid_out_anew("buf1"), is_static=True, kernels=None, measurement=None, equivalence=None)
    assert [(f.severity, f.message) for f in findings(trial)] == [
        ("note", f"{NOT_COUNTED}; 1 tensor is laid out anew for them (1 by the compiler), 1.00 MiB")
    ]

    # What is not laid out for a backward convolution is not counted.
    for changes in (
        {"tensor": "weight"},
        {"role": "exit"},
        {"direction": "none"},
        {"owner": "library", "port": "output 1"},
        {"required_by": ("mm_3",)},
    ):
        assert [(f.severity, f.message) for f in findings(a_step(laid_out_anew("buf1", **changes)))] == [
            ("note", f"{NOT_COUNTED}; {NONE_SEEN}")
        ]


def test_what_cannot_be_felt_is_a_note() -> None:
    slight = laid_out_anew("buf1", seconds=1e-5)

    assert [f.severity for f in findings(a_step(slight))] == ["note"]


def test_a_measured_gain_of_channels_last_makes_it_a_warning_and_follows_the_advice() -> None:
    comparison = a_comparison(a_ratio("inductor-channels-last", 1.2))

    assert [(f.severity, f.suggestion) for f in findings(a_step(), comparison=comparison)] == [
        (
            "warning",
            f"{ADVICE}; inductor-channels-last runs at 1.20x the speed of inductor (99 % interval 1.17x to 1.23x)",
        )
    ]
