from __future__ import annotations

from typing import Any

import pytest
from builders import a_comparison, a_diagnosis, a_ratio, a_recommendation, a_speedup, a_trial

from layoutdoctor.diagnosis.records import Equivalence, Finding, Trial
from layoutdoctor.rules.ld203_compiled_slower_than_eager import check

EAGER = a_ratio("eager", 1.25)
EAGER_LAST = a_ratio("eager-channels-last", 1.28)


def findings(*ratios: Any, trials: tuple[Trial, ...] = (), **changes: Any) -> list[Finding]:
    return list(check(a_diagnosis(a_trial(), *trials, comparison=a_comparison(*ratios), **changes)))


def test_eager_faster_than_the_baseline_is_a_warning_with_the_interval() -> None:
    assert findings(EAGER) == [
        Finding(
            code="LD203",
            rule="compiled-slower-than-eager",
            severity="warning",
            configuration="inductor",
            message="inductor is slower than eager: "
            "eager runs at 1.25x the speed of inductor (99 % interval 1.22x to 1.28x)",
            suggestion="use eager, or compile only the parts that gain from it",
            seconds=pytest.approx(2e-3),
            evidence=("eager",),
        )
    ]


def test_only_eager_in_channels_last_faster_is_worded_as_a_matter_of_layout() -> None:
    assert [f.message for f in findings(a_ratio("eager", 0.9), EAGER_LAST)] == [
        "inductor is slower than eager in channels_last: "
        "eager-channels-last runs at 1.28x the speed of inductor (99 % interval 1.25x to 1.31x)"
    ]


def test_which_facts_it_gives() -> None:
    # Both faster is one finding about eager.
    assert [f.evidence for f in findings(EAGER_LAST, EAGER)] == [("eager",)]

    # Without raw times of the baseline the loss in seconds is unknown.
    diagnosis = a_diagnosis(a_trial(measurement=None), comparison=a_comparison(EAGER))
    assert [f.seconds for f in check(diagnosis)] == [None]


def test_what_is_no_finding() -> None:
    # A difference that could be noise is no finding.
    assert findings(a_ratio("eager", 1.02)) == []

    # A faster eager that computes something else is no finding.
    other = a_trial("eager-channels-last", equivalence=Equivalence(status="different"))
    assert findings(EAGER_LAST, trials=(other,)) == []

    # A baseline that is not compiled is excused.
    comparison = a_comparison(a_ratio("eager", 1.25), baseline="eager-channels-last")
    assert list(check(a_diagnosis(a_trial("eager-channels-last"), comparison=comparison))) == []


def test_it_is_an_error_where_a_verified_configuration_is_faster() -> None:
    trials = (a_trial("inductor-channels-last"),)
    cure = a_recommendation("inductor-channels-last", verified=True)
    measured_again = a_recommendation("inductor-channels-last", verified=True, speedup=a_speedup(1.4))

    assert [(f.severity, f.suggestion) for f in findings(EAGER, trials=trials, recommendation=cure)] == [
        ("error", "use inductor-channels-last")
    ]
    assert [f.suggestion for f in findings(EAGER, trials=trials, recommendation=measured_again)] == [
        "use inductor-channels-last: 1.40x faster (1.37x to 1.43x)"
    ]


def test_a_recommendation_of_the_baseline_is_no_cure() -> None:
    assert [f.severity for f in findings(EAGER, recommendation=a_recommendation("inductor", verified=True))] == [
        "warning"
    ]
