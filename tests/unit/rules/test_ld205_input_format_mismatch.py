from __future__ import annotations

from typing import Any

from builders import (
    Told,
    a_comparison,
    a_conversion,
    a_diagnosis,
    a_graph,
    a_location,
    a_ratio,
    a_recommendation,
    a_speedup,
    a_subject,
    a_trial,
    an_input,
    channels_last,
    contiguous,
    kernels,
)

from layoutdoctor.diagnosis.records import Equivalence, Finding, InputTensor, Trial
from layoutdoctor.rules.formats import LD205

LAST = a_ratio("inductor-channels-last", 1.25)


def findings(
    *ratios: Any,
    baseline: Trial | None = None,
    trials: tuple[Trial, ...] = (),
    inputs: tuple[InputTensor, ...] = (an_input(),),
    **changes: Any,
) -> list[Finding]:
    subject = a_subject(inputs=inputs)
    comparison = a_comparison(*ratios)
    return list(
        LD205.check(a_diagnosis(baseline or a_trial(), *trials, comparison=comparison, subject=subject, **changes))
    )


def test_what_it_says(told: Told) -> None:
    for name in ("inductor-channels-last", "inductor-layout-opt-off"):
        trials = (a_trial("inductor-channels-last"), a_trial("inductor-layout-opt-off"))
        advice = a_recommendation(name, verified=True, speedup=a_speedup(1.25, name=name))
        told(
            "It is an error where channels last input was verified",
            findings(LAST, trials=trials, recommendation=advice),
        )
    for layouts in ([(2, 4, 8, 32, 32)], [(4, 3, 8, 8), (4, 3, 9, 9)], [(4, 3, 8, 8), (2, 4, 8, 32, 32)]):
        inputs = tuple(an_input(contiguous(shape), name=None) for shape in layouts)
        told("Each rank has its own format", findings(LAST, inputs=inputs))
    named = [an_input(contiguous((4, 3, 8, 8)), name=name) for name in ("sample", "batch['image']")]
    told("Inputs are called by their names", findings(LAST, inputs=tuple(named)))
    told("Without recorded conversions the gain alone is told", findings(LAST))

    baseline = a_trial(kernels=kernels(a_conversion(seconds=None)))
    told("Conversions without times are counted", findings(LAST, baseline=baseline))


def test_what_is_no_finding() -> None:
    # A gain that could be noise is no finding.
    assert findings(a_ratio("inductor-channels-last", 1.02)) == []

    # A model whose outputs differ is excused.
    other = a_trial("inductor-channels-last", equivalence=Equivalence(status="different"))
    assert findings(LAST, trials=(other,)) == []

    # An input that needs no conversion is excused.
    for layout in (
        channels_last((4, 3, 56, 56)),
        contiguous((4, 1, 56, 56)),  # one channel: both formats at once
        contiguous((4, 128)),
    ):
        assert findings(LAST, inputs=(an_input(layout),)) == []


def test_which_facts_it_gives(told: Told) -> None:
    entry = a_conversion("copy 0", owner="compiler", seconds=None, bytes_moved=8, location=a_location(3), module="a")
    exit_ = a_conversion("reorder 1", location=a_location(14), module="body.3")
    weight, weight2 = (a_conversion(f"reorder {number}", tensor="weight") for number in (2, 3))
    baseline = a_trial(kernels=kernels(exit_, weight), graphs=(a_graph(conversions=(entry,)),))
    told(
        "Contiguous input where channels last is faster is a warning with what is converted now",
        findings(LAST, baseline=baseline),
    )
    cured = a_trial("inductor-channels-last", kernels=kernels(weight))
    for other in (cured, a_trial("inductor-channels-last", kernels=kernels())):
        told(
            "Weights count where fewer are converted then",
            findings(LAST, baseline=a_trial(kernels=kernels(exit_, weight, weight2)), trials=(other,)),
        )
    told(
        "Of both channels last configurations the faster one is named",
        findings(LAST, a_ratio("inductor-channels-last-opt-off", 1.5)),
    )

    # Without times the place is that of the conversion that moves most.
    small = a_conversion("a", seconds=None, bytes_moved=8, module="body.0")
    large = a_conversion("b", seconds=None, bytes_moved=16, module="body.1")
    assert [f.module for f in findings(LAST, baseline=a_trial(kernels=kernels(small, large)))] == ["body.1"]
