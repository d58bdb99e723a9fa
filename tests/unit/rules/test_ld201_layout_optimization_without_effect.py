from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import (
    a_comparison,
    a_configuration,
    a_conversion,
    a_convolution,
    a_decision,
    a_graph,
    a_location,
    a_ratio,
    a_subject,
    a_trial,
    channels_last,
    contiguous,
    finder,
)

from layoutdoctor.diagnosis.records import Equivalence, Finding, Trial
from layoutdoctor.rules.ld201_layout_optimization_without_effect import check

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Convolution, Decision

findings = finder(check)

BY_HAND = "convert the parameters and the input to torch.channels_last_3d by hand"
SPEED = "inductor-channels-last runs at 1.52x the speed of inductor (99 % interval 1.49x to 1.55x)"


def some_convolutions(count: int = 4, rank: int | None = 3) -> tuple[Convolution, ...]:
    return tuple(a_convolution(f"convolution_{i}", rank=rank, channels_last=False) for i in range(count))


IDLE = a_decision(*some_convolutions())
ACTIVE = a_decision(a_convolution())


def a_trial_of(*decisions: Decision | None, name: str = "inductor", **changes: Any) -> Trial:
    return a_trial(name, graphs=tuple(a_graph(d, name=f"graph {i}") for i, d in enumerate(decisions)), **changes)


def same_as(name: str, other: str) -> Trial:
    return Trial(configuration=a_configuration(name), status="same_as", same_as=other)


def test_conv3d_left_alone_by_an_applied_optimization_is_a_note_that_says_why() -> None:
    assert findings(a_trial_of(IDLE)) == [
        Finding(
            code="LD201",
            rule="layout-optimization-without-effect",
            severity="note",
            configuration="inductor",
            message="layout optimization applied, 0 of 4 convolutions made channels-last: "
            "all are 3-D and Inductor's rule covers 2-D only, so toggling layout_optimization changes nothing",
            suggestion=f"{BY_HAND}, and measure: the flag will not do it",
            location=a_location(),
            module="body.0.0",
            evidence=("convolution_0", "convolution_1", "convolution_2", "convolution_3"),
        )
    ]


def test_what_is_no_finding() -> None:
    # One convolution made channels last is an effect.
    some = a_decision(a_convolution(), *some_convolutions(3))
    assert findings(a_trial_of(some)) == []

    # A model already in channels last left nothing to do.
    already = a_decision(a_convolution(rank=3, channels_last=True), channels_last_convolution_count=0)
    assert findings(a_trial_of(already)) == []

    # Without a decision or a convolution there is nothing to say.
    none = a_decision(convolution_count=0, channels_last_convolution_count=0, convolutions=())
    assert findings(a_trial_of(None, none, a_decision(*some_convolutions(), applied=None))) == []

    # The same code where the decision was against it is another rules matter.
    vetoed = a_decision(applied=False, rule="small-channels")
    assert findings(a_trial_of(vetoed), same_as("inductor-layout-opt-off", "inductor")) == []

    # Other code with the optimization is an effect.
    assert findings(a_trial_of(ACTIVE), a_trial("inductor-layout-opt-off")) == []

    # A configuration that decides the layouts itself is excused.
    for changes in (
        {"inductor_options": {"freezing": True}},
        {"model_format": "channels_last", "input_format": "channels_last"},
        {"layout_optimization": "off"},
        {"backend": "eager", "layout_optimization": None},
    ):
        configuration = a_configuration("other", **changes)
        assert findings(a_trial_of(IDLE, configuration=configuration)) == []

    # Convolutions that are all 1 d are another rules matter.
    for others in ((), (same_as("inductor-layout-opt-off", "inductor"),)):
        assert findings(a_trial_of(a_decision(*some_convolutions(rank=1))), *others) == []


def test_what_it_suggests() -> None:
    # It is a warning where channels last by hand was measured faster.
    found = findings(a_trial_of(IDLE), comparison=a_comparison(a_ratio("inductor-channels-last", 1.52)))
    assert [(f.severity, f.suggestion) for f in found] == [("warning", f"{BY_HAND}: {SPEED}")]

    # Times too noisy to tell say so.
    noisy = a_comparison(a_ratio("inductor-channels-last", 1.0, width=0.5))
    assert [f.suggestion for f in findings(a_trial_of(IDLE), comparison=noisy)] == [
        f"{BY_HAND}; the times are too noisy to tell what it gains: inductor-channels-last runs at 1.00x the speed of "
        "inductor (99 % interval 0.50x to 1.50x)"
    ]

    # A faster configuration that computes something else does not count.
    other = a_trial("inductor-channels-last", equivalence=Equivalence(status="different"))
    found = findings(a_trial_of(IDLE), other, comparison=a_comparison(a_ratio("inductor-channels-last", 1.52)))
    assert [(f.severity, f.suggestion) for f in found] == [("note", f"nothing to gain by hand either: {SPEED}")]

    # What the compiler brings back from channels last 3d is counted where it does so.
    graph = a_graph(IDLE, conversions=(RETURNED,))
    found = findings(a_trial_of(IDLE), a_trial("inductor-channels-last", graphs=(graph,)))
    assert [(f.message, f.suggestion) for f in found] == [
        (
            "layout optimization applied, 0 of 4 convolutions made channels-last: all are 3-D and Inductor's rule "
            "covers 2-D only, so toggling layout_optimization changes nothing; under inductor-channels-last the "
            "compiler brings 1 tensor from channels_last_3d back to contiguous, 2.00 MiB",
            f"{BY_HAND}, and measure: the flag will not do it",
        )
    ]

    # A graph lowered for a device that is not there is told too.
    trial = a_trial_of(IDLE, is_static=True, kernels=None, measurement=None, equivalence=None)
    assert [(f.severity, f.suggestion) for f in findings(trial)] == [
        ("note", f"{BY_HAND}, and measure: the flag will not do it")
    ]

    # The reason is given only where the ranks explain it.
    for ranks, reason, suggestion in (
        (
            (1, 3),
            ": all are 1-D or 3-D and Inductor's rule covers 2-D only, so toggling layout_optimization changes nothing",
            "convert the parameters and the input to torch.channels_last by hand, and measure: the flag will not do it",
        ),
        (
            (2, 3),
            "",
            "convert the parameters and the input to torch.channels_last by hand, and measure: the flag will not do it",
        ),
        (
            (None, 3),
            "",
            "convert the parameters and the input to torch.channels_last by hand, and measure: the flag will not do it",
        ),
    ):
        decision = a_decision(*(some_convolutions(1, rank)[0] for rank in ranks))
        assert [(f.message, f.suggestion) for f in findings(a_trial_of(decision))] == [
            (f"layout optimization applied, 0 of 2 convolutions made channels-last{reason}", suggestion)
        ]

    # Parameters in channels last 3d need nothing unless the compiler undoes it.
    for conversions, suggestion in (
        ((), "nothing: the parameters are in torch.channels_last_3d already, which does what the flag cannot"),
        ((RETURNED,), "compare with eager, where no compiler brings tensors back to contiguous (pytorch #177277)"),
    ):
        trial = a_trial(graphs=(a_graph(IDLE, conversions=conversions),))
        subject = a_subject(parameter_formats={"channels_last_3d": 4})
        assert [f.suggestion for f in findings(trial, subject=subject)] == [suggestion]


SHAPE = (2, 16, 8, 32, 32)
RETURNED = a_conversion(
    "buf3",
    owner="compiler",
    source=channels_last(SHAPE),
    target=contiguous(SHAPE),
    direction="to_contiguous",
    role="interior",
    bytes_moved=2_097_152,
)


def test_what_it_says() -> None:
    # Graphs without effect are counted together and told once.
    other = a_trial_of(IDLE, name="inductor-layout-opt-forced")
    listless = a_decision(convolution_count=2, channels_last_convolution_count=0, convolutions=())
    found = findings(other, a_trial_of(IDLE, ACTIVE, listless))
    assert [(f.configuration, f.message) for f in found] == [
        (
            "inductor",
            "layout optimization applied, 0 of 6 convolutions made channels-last: "
            "all are 3-D and Inductor's rule covers 2-D only, so toggling layout_optimization changes nothing",
        )
    ]

    # A count without a list of convolutions has no place and no reason.
    listless = a_decision(convolution_count=1, channels_last_convolution_count=0, convolutions=())
    assert [(f.message, f.location, f.module) for f in findings(a_trial_of(listless))] == [
        ("layout optimization applied, 0 of 1 convolution made channels-last", None, None)
    ]

    # The same code with and without is told whichever was measured.
    for first in ("inductor", "inductor-layout-opt-off"):
        on = a_trial_of(ACTIVE) if first == "inductor" else a_trial_of(ACTIVE, status="same_as", same_as=first)
        off = a_trial(first) if first != "inductor" else same_as("inductor-layout-opt-off", "inductor")
        assert [(f.configuration, f.severity, f.message) for f in findings(on, off)] == [
            (
                "inductor",
                "note",
                "layout optimization applied, but the generated code is the same without it (inductor-layout-opt-off)",
            )
        ]
