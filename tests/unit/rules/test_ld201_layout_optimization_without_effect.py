from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import (
    Told,
    a_comparison,
    a_configuration,
    a_conversion,
    a_convolution,
    a_decision,
    a_graph,
    a_ratio,
    a_subject,
    a_trial,
    channels_last,
    contiguous,
    finder,
)

from layoutdoctor.diagnosis.records import Equivalence, Trial
from layoutdoctor.rules.decisions import LD201

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Convolution, Decision

findings = finder(LD201.check)


def some_convolutions(count: int = 4, rank: int | None = 3) -> tuple[Convolution, ...]:
    return tuple(a_convolution(f"convolution_{i}", rank=rank, channels_last=False) for i in range(count))


IDLE = a_decision(*some_convolutions())
ACTIVE = a_decision(a_convolution())


def a_trial_of(*decisions: Decision | None, name: str = "inductor", **changes: Any) -> Trial:
    return a_trial(name, graphs=tuple(a_graph(d, name=f"graph {i}") for i, d in enumerate(decisions)), **changes)


def same_as(name: str, other: str) -> Trial:
    return Trial(configuration=a_configuration(name), status="same_as", same_as=other)


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


def test_what_it_suggests(told: Told) -> None:
    told(
        "It is a warning where channels last by hand was measured faster",
        findings(a_trial_of(IDLE), comparison=a_comparison(a_ratio("inductor-channels-last", 1.52))),
    )

    for median in (1.1, 0.95):
        unclear = a_comparison(a_ratio("inductor-channels-last", median, width=0.5))
        told("An inconclusive ratio is told with its numbers", findings(a_trial_of(IDLE), comparison=unclear))

    other = a_trial("inductor-channels-last", equivalence=Equivalence(status="different"))
    told(
        "A faster configuration that computes something else does not count",
        findings(a_trial_of(IDLE), other, comparison=a_comparison(a_ratio("inductor-channels-last", 1.52))),
    )

    graph = a_graph(IDLE, conversions=(RETURNED,))
    told(
        "What the compiler brings back from channels last 3d is counted where it does so",
        findings(a_trial_of(IDLE), a_trial("inductor-channels-last", graphs=(graph,))),
    )

    trial = a_trial_of(IDLE, is_static=True, kernels=None, measurement=None, equivalence=None)
    told("A graph lowered for a device that is not there is told too", findings(trial))
    for ranks in ((1, 3), (2, 3), (None, 3)):
        decision = a_decision(*(some_convolutions(1, rank)[0] for rank in ranks))
        told("The reason is given only where the ranks explain it", findings(a_trial_of(decision)))
    for conversions in ((), (RETURNED,)):
        trial = a_trial(graphs=(a_graph(IDLE, conversions=conversions),))
        subject = a_subject(parameter_formats={"channels_last_3d": 4})
        told(
            "Parameters in channels last 3d need nothing unless the compiler undoes it",
            findings(trial, subject=subject),
        )


def test_off_is_the_cure_where_the_compiler_converts_fewer_tensors_without_it(told: Told) -> None:
    subject = a_subject(parameter_formats={"channels_last_3d": 3})
    inductor = a_trial(graphs=(a_graph(IDLE, conversions=(RETURNED, RETURNED)),), is_static=True, measurement=None)
    for left in ((), (RETURNED,), (RETURNED, RETURNED)):
        off = a_trial("inductor-layout-opt-off", graphs=(a_graph(None, conversions=left),), measurement=None)
        told("The conversions without layout optimization are counted", findings(inductor, off, subject=subject))

    failed = a_trial("inductor-layout-opt-off", status="failed", graphs=(a_graph(None),))
    told("Nothing is said of a configuration that failed", findings(inductor, failed, subject=subject))
    slower = a_comparison(a_ratio("inductor-layout-opt-off", 0.8))
    off = a_trial("inductor-layout-opt-off", graphs=(a_graph(None),))
    found = findings(inductor, off, subject=subject, comparison=slower)
    told("It is not suggested if it was measured as slower", found)


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


def test_what_it_says(told: Told) -> None:
    told("Conv3d left alone by an applied optimization is a note that says why", findings(a_trial_of(IDLE)))
    other = a_trial_of(IDLE, name="inductor-layout-opt-forced")
    listless = a_decision(convolution_count=2, channels_last_convolution_count=0, convolutions=())
    told(
        "Graphs without effect are counted together and told once", findings(other, a_trial_of(IDLE, ACTIVE, listless))
    )

    listless = a_decision(convolution_count=1, channels_last_convolution_count=0, convolutions=())
    told("A count without a list of convolutions has no place and no reason", findings(a_trial_of(listless)))
    for first in ("inductor", "inductor-layout-opt-off"):
        on = a_trial_of(ACTIVE) if first == "inductor" else a_trial_of(ACTIVE, status="same_as", same_as=first)
        off = a_trial(first) if first != "inductor" else same_as("inductor-layout-opt-off", "inductor")
        told("The same code with and without is told whichever was measured", findings(on, off))
